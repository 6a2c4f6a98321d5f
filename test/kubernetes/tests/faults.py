"""Servers that die, and mounts that hang (test/guest/servers.sh)."""
import contextlib
import ctypes
import mmap
import os
import socket
import subprocess
import threading

from tests import api

# An NFS server of its own, which can die, and one that nothing is mounted from.
MORTAL, UNKNOWN = "10.0.11.1", "10.0.12.1"
# This guest, as its other network namespace sees it.
GUEST = "10.0.99.1"


def _pid(file):
    with open(file) as text:
        return text.read().strip()


@contextlib.contextmanager
def dead():
    """The server does not answer meanwhile."""
    def in_server(*command):
        subprocess.run(["nsenter", "-t", _pid("/run/server-mortal.pid"), "-n", *command], check=True)
    in_server("iptables-legacy", "-A", "INPUT", "-p", "tcp", "-j", "DROP")
    try:
        yield
    finally:
        in_server("iptables-legacy", "-F", "INPUT")


def _answer_null(connection):
    """Answers the NULL call of the NFS program, and nothing else."""
    while call := connection.recv(4096):
        if call[24:28] == bytes(4):
            connection.sendall(b"\x80\0\0\x18" + call[4:8] + b"\0\0\0\1" + bytes(16))


@contextlib.contextmanager
def hung_mount():
    """The first mount of a server hangs meanwhile, in another network namespace. So do then all first mounts of this
    kernel, uninterruptibly."""
    listener = socket.create_server(("0.0.0.0", 0))
    def serve():
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=_answer_null, args=(listener.accept()[0],), daemon=True).start()
    threading.Thread(target=serve, daemon=True).start()
    os.makedirs("/mnt/hung", exist_ok=True)
    options = f"vers=4.2,addr={GUEST},port={listener.getsockname()[1]}"
    mount = subprocess.Popen(["nsenter", "-t", _pid("/run/client-a.pid"), "-n", "-u", "mount", "-i", "-t", "nfs4",
                              "-o", options, f"{GUEST}:/", "/mnt/hung"])
    def hangs():
        with open(f"/proc/{mount.pid}/stack") as stack:
            return "nfs4_discover_server_trunking" in stack.read()
    try:
        api.wait("the mount to hang", 30, hangs)
        yield
    finally:
        mount.kill()
        mount.wait()
        listener.close()


class Mapped:
    """A page of a file in memory, which may be changed when the file is closed."""
    def __init__(self, path):
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
        libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        self.libc = libc
        file = os.open(path, os.O_RDWR | os.O_CREAT)
        os.write(file, bytes(mmap.PAGESIZE))
        os.fsync(file)
        # Python's own mapping would keep the file open.
        self.page = libc.mmap(None, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, file, 0)
        ctypes.memset(self.page, 1, 1)
        os.fsync(file)
        os.close(file)

    def change(self):
        ctypes.memset(self.page, 2, mmap.PAGESIZE)

    def forget(self):
        self.libc.munmap(self.page, mmap.PAGESIZE)
