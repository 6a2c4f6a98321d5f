"""What tests make in the cluster, what it is to become, and its end."""
import contextlib
import os
import subprocess

from tests import api

DRIVER = "nfs.csi.k8s.io"
# The node's address: where pods with and without host network reach the NFS server.
SERVER = os.environ["E2E_NODE"]
# The same in a URL.
HOST = f"[{SERVER}]" if ":" in SERVER else SERVER
SHARE = "/run/export"
CHART, DEPLOY = (os.path.realpath(f"../../{folder}") for folder in ("charts/nfs-csi", "deploy"))
MODE_ALL, MODE_READ, MODE_ONE_POD = "ReadWriteMany", "ReadOnlyMany", "ReadWriteOncePod"


def run(*command, seconds=400, check=True, **more):
    """A command's whole output; fails with it."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds,
                          check=False, **more)
    if check and done.returncode != 0:
        raise AssertionError(f"{' '.join(command)} ended with status {done.returncode}:\n{done.stdout}")
    return done if not check else done.stdout


def apply(text):
    return run("kubectl", "apply", "-f", "-", input=text)


def export(*parts):
    """A path on the server's own disk."""
    return os.path.join(SHARE, *parts)


def put(text, *parts):
    """Writes a file on the server's own disk: a pod is not needed for everything."""
    with open(export(*parts), "w") as file:
        file.write(text)


def content(*parts):
    with open(export(*parts)) as file:
        return file.read()


def storage_class(name, parameters=None, **more):
    api.create({"kind": "StorageClass", "metadata": {"name": name}, "provisioner": DRIVER,
                "parameters": {"server": SERVER, "share": SHARE, **(parameters or {})},
                "allowVolumeExpansion": True, **more})
    return name


def claim(name, class_name, mode=MODE_ALL, source=None, volume=None, size="10Mi"):
    spec = {"storageClassName": class_name, "accessModes": [mode], "resources": {"requests": {"storage": size}}}
    if source:
        spec["dataSource"] = source
    if volume:
        spec["volumeName"] = volume
    api.create({"kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec})
    return name


def bound(name, seconds=120):
    """Waits until a claim is bound; gives its PersistentVolume."""
    def volume():
        found = api.get("PersistentVolumeClaim", name)
        return found["status"].get("phase") == "Bound" and found["spec"]["volumeName"]
    return api.get("PersistentVolume", api.wait(f"claim {name} to be bound", seconds, volume))


def static_volume(name, handle, attributes, modes=(MODE_ALL,), **more):
    api.create({"kind": "PersistentVolume", "metadata": {"name": name}, "spec": {
        "capacity": {"storage": "10Mi"}, "accessModes": list(modes), "storageClassName": "",
        "persistentVolumeReclaimPolicy": "Retain",
        "csi": {"driver": DRIVER, "volumeHandle": handle, "volumeAttributes": attributes}, **more}})
    return name


def pod(name, script, volumes, read_only=False, **more):
    """A pod that runs a shell script; `volumes` are claims, or volume sources, that it finds as /NAME.

    It is on the host network: an address of its own would cost as much processor time as half a pod. The examples' pods
    have one.
    """
    mounts, sources = [], []
    for mount, source in volumes.items():
        mount, _, sub_path = mount.partition(":")
        mounts.append({"name": mount, "mountPath": f"/{mount}", "readOnly": read_only,
                       **({"subPath": sub_path} if sub_path else {})})
        sources.append({"name": mount, **({"persistentVolumeClaim": {"claimName": source}}
                                          if isinstance(source, str) else source)})
    api.create({"kind": "Pod", "metadata": {"name": name, "labels": {"test": name}}, "spec": {
        "restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "hostNetwork": True,
        "containers": [{"name": "main", "image": "busybox:1", "imagePullPolicy": "Never",
                        "command": ["sh", "-c", script], "volumeMounts": mounts}],
        "volumes": sources, **more}})
    return name


def phase(name, *wanted, seconds=180):
    """Waits until a pod's phase is one of these."""
    def is_there():
        found = api.get("Pod", name)["status"].get("phase")
        return found in wanted and found
    reached = api.wait(f"pod {name} to be {' or '.join(wanted)}", seconds, is_there)
    return reached


def succeeds(name, script, volumes, **more):
    """Runs a script in a pod to its good end, and removes the pod; gives its output."""
    pod(name, f"set -e; {script}", volumes, **more)
    ended = phase(name, "Succeeded", "Failed")
    output = api.log(name)
    assert ended == "Succeeded", f"pod {name}: {output}"
    remove("Pod", name)
    return output


def remove(kind, name, seconds=120):
    api.delete(kind, name)
    api.gone(kind, name, seconds=seconds)


def events_of(name, reason=None):
    return [event["message"] for event in api.items("Event")
            if event["involvedObject"].get("name") == name and reason in (None, event["reason"])]


@contextlib.contextmanager
def cleared(*things):
    """Removes these ("Kind name") in this order at the end of a test that passes; a failed one's are evidence."""
    yield
    for thing in things:
        api.delete(*thing.split())
    for thing in things:
        api.gone(*thing.split(), seconds=120)


def mounts_of(volume):
    """The mount table's lines for a PersistentVolume's mounts on the node."""
    with open("/proc/self/mountinfo") as table:
        return [line for line in table if f"kubernetes.io~csi/{volume}/mount " in line]


def registered():
    """The drivers that the kubelet knows."""
    node = api.get("CSINode", "guest")
    return [driver["name"] for driver in (node or {"spec": {}})["spec"].get("drivers") or []]


def pods_ready(label, namespace="kube-system"):
    """The pods of an app, if there are some and all of them are ready and none is on its way out."""
    pods = api.items("Pod", namespace, f"app={label}")
    def is_ready(one):
        conditions = {condition["type"]: condition["status"] for condition in one["status"].get("conditions", [])}
        return conditions.get("Ready") == "True" and "deletionTimestamp" not in one["metadata"]
    return pods if pods and all(is_ready(one) for one in pods) else []


def driver_ready(seconds=240):
    """Waits for the driver's pods and its registration."""
    for label in ("csi-nfs-controller", "csi-nfs-node"):
        api.wait(f"the pods of {label}", seconds, lambda label=label: pods_ready(label))
    api.wait("the registration", 60, lambda: DRIVER in registered())


def helm(*arguments, check=True):
    image = ["--set", "image.nfs.repository=localhost/nfs-csi"] if CHART in arguments else []
    return run("helm", "--namespace", "kube-system", *arguments, *image, check=check)


def settled_volumes():
    """How many PersistentVolumes there are, when none of an earlier test is about to go."""
    def is_going(volume):
        is_deleted = volume["spec"]["persistentVolumeReclaimPolicy"] == "Delete" and volume["status"]["phase"] == "Released"
        return is_deleted or "deletionTimestamp" in volume["metadata"]

    def count():
        volumes = api.items("PersistentVolume")
        return None if any(is_going(volume) for volume in volumes) else [len(volumes)]
    return api.wait("the volumes of earlier tests to be gone", 300, count, every=2)[0]


def volumes_of(*names):
    """The PersistentVolumes of these claims, when all of them are bound."""
    wanted = set(names)
    def all_bound():
        found = [one for one in api.items("PersistentVolumeClaim") if one["metadata"]["name"] in wanted]
        phases = [one["status"].get("phase") for one in found]
        return phases.count("Bound") == len(wanted) and [one["spec"]["volumeName"] for one in found]
    return all_bound
