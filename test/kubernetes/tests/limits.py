"""Limits that the server enforces, and VolumeAttributesClasses: the guest has a quota agent on one of its disks."""
import json
import os
import re

from tests import api
from tests.objects import (DRIVER, apply, bound, claim, cleared, events_of, pod, pods_ready, run, storage_class, succeeds)
from tests.runner import test

PARALLEL = 2
LIMITED = "/run/exports/quota-xfs"
# The disk of a server in the cluster.
IN_CLUSTER = "/run/in-cluster"
# Writes a second file once there is space for it. Then it stays: the kubelet measures volumes of running pods only.
WRITER = ("dd if=/dev/zero of=/data/first bs=1M count=24 conv=fsync 2>&1; echo full; "
          "until dd if=/dev/zero of=/data/second bs=1M count=24 conv=fsync 2> /dev/null; do sleep 1; done; "
          "df -m /data | tail -n 1; sleep 1000")


def set_up():
    storage_class("limited", {"share": LIMITED, "quota": "required"})
    api.create({"kind": "VolumeAttributesClass", "metadata": {"name": "kept"}, "driverName": DRIVER,
                "parameters": {"onDelete": "retain", "inodesPerGiB": "65536"}})
    api.create({"kind": "VolumeAttributesClass", "metadata": {"name": "wrong"}, "driverName": DRIVER,
                "parameters": {"onDelete": "burn"}})


def size_of(volume):
    """What the server shows of a volume's size, in bytes."""
    found = os.statvfs(f"{LIMITED}/{volume}")
    return found.f_blocks * found.f_frsize


def usage_of(name):
    """What the kubelet's metrics have for a claim, in bytes, by "capacity", "used" and "available"."""
    series = (r'^kubelet_volume_stats_(capacity|used|available)_bytes'
              rf'{{namespace="default",persistentvolumeclaim="{name}"}} (\S+)$')
    metrics = api.call("GET", "/api/v1/nodes/guest/proxy/metrics")
    return {kind: int(float(value)) for kind, value in re.findall(series, metrics, re.M)}


def kubelet_measures(name, capacity, used):
    """Waits until the kubelet's metrics show a claim's size exactly, and at least what was written to it.

    By default the driver keeps a volume's usage for a minute; the kubelet asks for it every 5 to 10 s.
    """
    def measured():
        usage = usage_of(name)
        return usage.get("capacity") == capacity and usage.get("used", 0) >= used and usage
    usage = api.wait(lambda: f"{capacity} and {used} bytes in {usage_of(name)}", 120, measured, every=2)
    assert usage["used"] + usage["available"] == capacity, usage


def record_of(volume):
    folder = f"{LIMITED}/.nfs-csi/volumes"
    for name in os.listdir(folder):
        with open(os.path.join(folder, name)) as file:
            record = json.load(file)
        if record["name"] == volume:
            return record
    raise AssertionError(f"{volume} has no record")


@test
def a_pod_writes_until_its_claim_is_full_and_goes_on_when_the_claim_has_grown():
    claim("growing", "limited", size="32Mi")
    volume = bound("growing")["metadata"]["name"]
    assert size_of(volume) == 32 << 20
    pod("growing", WRITER, {"data": "growing"})
    api.wait("the pod to be told that there is no space", 180, lambda: "full" in api.log("growing"))
    kubelet_measures("growing", capacity=32 << 20, used=24 << 20)
    api.patch("PersistentVolumeClaim", "growing", {"spec": {"resources": {"requests": {"storage": "64Mi"}}}})
    def size():
        return api.get("PersistentVolumeClaim", "growing")["status"]["capacity"]["storage"]
    api.wait("the claim to grow", 90, lambda: size() == "64Mi")
    assert api.get("PersistentVolume", volume)["spec"]["capacity"]["storage"] == "64Mi"
    # The end of a line of df: 1M-blocks, used, available, use, mounted on.
    api.wait(lambda: f"the second file: {api.log('growing')}", 180, lambda: api.log("growing").split()[-1:] == ["/data"])
    assert api.log("growing").split()[-5] == "64", api.log("growing")
    kubelet_measures("growing", capacity=64 << 20, used=48 << 20)
    with cleared("Pod growing", "PersistentVolumeClaim growing"):
        pass


@test
def a_volume_is_changed_by_editing_its_claim():
    claim("changed", "limited", size="16Mi")
    volume = bound("changed")["metadata"]["name"]
    api.patch("PersistentVolumeClaim", "changed", {"spec": {"volumeAttributesClassName": "wrong"}})
    api.wait("the driver's refusal", 120, lambda: any("burn" in text for text in events_of("changed")))
    api.patch("PersistentVolumeClaim", "changed", {"spec": {"volumeAttributesClassName": "kept"}})
    def current():
        return api.get("PersistentVolumeClaim", "changed")["status"].get("currentVolumeAttributesClassName")
    api.wait("the claim to have its new class", 180, lambda: current() == "kept")
    assert record_of(volume)["on_delete"] == "retain"
    assert os.statvfs(f"{LIMITED}/{volume}").f_files == 1024
    with cleared("PersistentVolumeClaim changed"):
        pass
    api.gone("PersistentVolume", volume)
    assert os.path.isdir(f"{LIMITED}/{volume}")
    os.rmdir(f"{LIMITED}/{volume}")


@test
def a_server_in_the_cluster_with_its_agent_beside_it_limits_volumes():
    run("kubectl", "label", "node", "guest", "nfs-csi/quota-server=")
    with open("../../deploy/quota/nfs-server.yaml") as file:
        # There is another server in the cluster, of deploy/example.
        text = file.read().replace("nfs-server", "limited-server").replace("/srv/nfs", IN_CLUSTER)
    apply(text)
    [server] = api.wait("the server's pod", 180, lambda: pods_ready("limited-server", "default"))
    storage_class("in-pod", {"server": server["status"]["podIP"], "share": "/", "quota": "required"})
    claim("in-pod", "in-pod", size="16Mi")
    volume = bound("in-pod")["metadata"]["name"]
    found = os.statvfs(f"{IN_CLUSTER}/{volume}")
    assert found.f_blocks * found.f_frsize == 16 << 20
    script = "dd if=/dev/zero of=/data/large bs=1M count=17 conv=fsync 2>&1 | grep -o 'No space'; df -m /data | tail -n 1"
    written = succeeds("in-pod", script, {"data": "in-pod"}).split()
    assert (written[:2], written[-5]) == (["No", "space"], "16"), written
    with cleared("PersistentVolumeClaim in-pod", "StorageClass in-pod"):
        pass
    api.gone("PersistentVolume", volume)
    api.delete("Deployment", "limited-server")
