"""The driver's pods are replaced: by `helm upgrade`, and by their end, while other pods write and servers are dead."""
import json
import urllib.request

from tests import api
from tests.faults import MORTAL, UNKNOWN, Mapped, dead, hung_mount
from tests.objects import (CHART, HOST, SERVER, SHARE, bound, claim, cleared, driver_ready, export, helm, mounts_of, phase,
                           pod, pods_ready, remove, run, static_volume, storage_class, succeeds)
from tests.runner import test

WRITER = "i=0; while i=$((i + 1)); echo $i >> /data/lines && sync /data/lines; do sleep 0.5; done; exit 1"


def written():
    with open(export(bound("upgrade")["metadata"]["name"], "lines")) as file:
        return [int(line) for line in file.read().split()]


def writes_meanwhile(work):
    """Runs `work` beside a pod that writes all the time, and makes sure that no write failed or was lost."""
    claim("upgrade", "nfs")
    bound("upgrade")
    pod("upgrade", WRITER, {"data": "upgrade"})
    phase("upgrade", "Running")
    api.wait("the first line", 60, lambda: written())
    work()
    before = len(written())
    api.wait("the writer to write on", 60, lambda: len(written()) > before + 5)
    assert api.get("Pod", "upgrade")["status"]["phase"] == "Running", api.log("upgrade")
    lines = written()
    assert lines == list(range(1, len(lines) + 1)), "a line is missing or double"
    with cleared("Pod upgrade", "PersistentVolumeClaim upgrade"):
        pass


@test
def no_write_fails_while_helm_upgrades_the_driver_and_snapshots_are_switched_on():
    before = {one["metadata"]["uid"] for label in ("csi-nfs-controller", "csi-nfs-node") for one in pods_ready(label)}
    def upgrade():
        helm("upgrade", "csi", CHART, "--set", "externalSnapshotter.enabled=true,log.level=debug")
        def replaced():
            pods = pods_ready("csi-nfs-controller") + pods_ready("csi-nfs-node")
            return len(pods) == 2 and not before & {one["metadata"]["uid"] for one in pods}
        api.wait("new pods of the driver", 240, replaced)
        driver_ready()
    writes_meanwhile(upgrade)


@test
def no_write_fails_while_the_driver_s_pods_are_killed():
    def kill():
        killed = pods_ready("csi-nfs-controller") + pods_ready("csi-nfs-node")
        for one in killed:
            api.delete("Pod", one["metadata"]["name"], "kube-system")
        for one in killed:
            api.gone("Pod", one["metadata"]["name"], "kube-system")
        driver_ready()
        # The new plugin unmounts what the old one mounted, and mounts on.
        succeeds("after-kill", "test -s /data/lines", {"data": "upgrade"})
    writes_meanwhile(kill)


def diagnosed(plugin, check):
    """The outcome of one of the doctor's checks in a pod of the driver."""
    command = ["kubectl", "--namespace", "kube-system", "exec", plugin["metadata"]["name"], "--container", "nfs", "--",
               "/nfs-csi", "doctor", "--output", "json"]
    report = json.loads(run(*command, check=False).stdout)
    [outcome] = [one["outcome"] for one in report["checks"] if one["name"] == check]
    return outcome


@test
def a_server_is_where_the_chart_s_map_says_without_a_restart_of_the_driver():
    pods = pods_ready("csi-nfs-controller") + pods_ready("csi-nfs-node")
    assert [diagnosed(one, "server-map") for one in pods] == ["skip", "skip"]
    servers = f"servers.nas.address={SERVER},servers.nas.was={{old-nas}}"
    helm("upgrade", "csi", CHART, "--reset-then-reuse-values", "--set", servers)
    api.wait("the map in the driver's pods", 240, lambda: {diagnosed(one, "server-map") for one in pods} == {"pass"})
    storage_class("moved", {"server": "old-nas"})
    claim("moved", "moved")
    assert bound("moved")["spec"]["csi"]["volumeHandle"].startswith("old-nas#")
    static_volume("of-another-driver", f"old-nas#{SHARE.strip('/')}#moved-by-hand##",
                  {"server": "old-nas", "share": SHARE, "subdir": bound("moved")["metadata"]["name"]})
    claim("of-another-driver", "", volume="of-another-driver")
    both = {"one": "moved", "other": "of-another-driver"}
    assert succeeds("moved", "echo here > /one/file; cat /other/file", both) == "here\n"
    after = pods_ready("csi-nfs-controller") + pods_ready("csi-nfs-node")
    assert [one["metadata"]["uid"] for one in after] == [one["metadata"]["uid"] for one in pods]
    with cleared("PersistentVolumeClaim of-another-driver", "PersistentVolumeClaim moved",
                 "PersistentVolume of-another-driver", "StorageClass moved"):
        pass


def metric(name):
    with urllib.request.urlopen(f"http://{HOST}:29653/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return [int(line.split()[1]) for line in lines if line.startswith(f"{name} ")][0]


@test
def a_plugin_is_replaced_whatever_the_kernel_keeps_of_its_processes_and_volumes():
    for name, server in (("mapped", MORTAL), ("unknown", UNKNOWN)):
        static_volume(name, name, {"server": server, "share": "/"})
        claim(name, "", volume=name)
    # The controller holds its export: mounts of a server that is in use wait for nothing.
    claim("as-ever", "nfs")
    bound("as-ever")
    pod("mapped", "sleep 1000", {"data": "mapped"})
    phase("mapped", "Running")
    mount = mounts_of("mapped")[0].split()[4]
    page = Mapped(f"{mount}/file")
    with hung_mount():
        with dead():
            # The server is away, and what was written for it is not written back: nobody has the file open.
            page.change()
            page.forget()
            remove("Pod", "mapped")
            assert mounts_of("mapped") == []
            pod("unknown", "sleep 1000", {"data": "unknown"})
            api.wait("a worker that the kernel does not let go", 120, lambda: metric("nfs_csi_worker_processes_stuck"))
            [plugin] = pods_ready("csi-nfs-node")
            api.delete("Pod", plugin["metadata"]["name"], "kube-system")
            api.gone("Pod", plugin["metadata"]["name"], "kube-system")
            driver_ready()
        succeeds("as-ever", "echo here > /data/file", {"data": "as-ever"})
    phase("unknown", "Running")
    # Without a buffer, which would show the file as it was first read.
    with open("/run/servers/mortal/file", "rb", buffering=0) as file:
        api.wait("what was written", 300, lambda: file.seek(0) == 0 and file.read(1) == b"\2")
    with cleared("Pod unknown", "PersistentVolumeClaim as-ever", "PersistentVolumeClaim unknown",
                 "PersistentVolumeClaim mapped", "PersistentVolume unknown", "PersistentVolume mapped"):
        pass
