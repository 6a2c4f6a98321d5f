"""A second install of the chart: with the attacher, inline volumes, and two replicas of the controller, which are on the
pod network, since they share the one node."""
import os

from tests import api
from tests.objects import (CHART, DRIVER, SERVER, SHARE, bound, claim, cleared, driver_ready, export, helm, phase, pod,
                           pods_ready, remove, settled_volumes, storage_class, succeeds, volumes_of)
from tests.runner import test

VALUES = ("attacher.enabled=true,feature.enableInlineVolume=true,inlineVolumes.allow={%s:%s},"
          "controller.storageCapacity=true,controller.replicas=2,controller.hostNetwork=false,externalSnapshotter.enabled=true" % (SERVER, SHARE))


def set_up():
    helm("uninstall", "csi", "--wait")
    # The sidecars that are to come would wait for those that are gone.
    for lease in api.items("Lease", "kube-system"):
        if "nfs-csi" in lease["metadata"]["name"]:
            api.delete("Lease", lease["metadata"]["name"], "kube-system")
    helm("install", "csi", CHART, "--set", VALUES)
    driver_ready()
    api.wait("both controllers", 120, lambda: len(pods_ready("csi-nfs-controller")) == 2)


@test
def with_the_attacher_a_volume_is_attached_by_the_trivial_path():
    assert api.get("CSIDriver", DRIVER)["spec"]["attachRequired"] is True
    claim("attached", "nfs")
    volume = bound("attached")["metadata"]["name"]
    pod("attached", "sleep 1000", {"data": "attached"})
    phase("attached", "Running")
    [attachment] = [one for one in api.items("VolumeAttachment")
                    if one["spec"]["source"]["persistentVolumeName"] == volume]
    assert attachment["status"]["attached"] is True and attachment["spec"]["attacher"] == DRIVER, attachment
    remove("Pod", "attached")
    api.gone("VolumeAttachment", attachment["metadata"]["name"])
    with cleared("PersistentVolumeClaim attached"):
        pass


@test
def a_class_that_waits_for_its_first_consumer_knows_what_its_export_has_left():
    storage_class("late", volumeBindingMode="WaitForFirstConsumer")
    def capacities():
        return api.items("CSIStorageCapacity", "kube-system")
    def of_class():
        return [one["metadata"]["uid"] for one in capacities() if one["storageClassName"] == "late" and one.get("capacity")]
    told = api.wait(lambda: f"the capacity of the class among {capacities()}", 60, of_class)
    claim("late", "late")
    succeeds("late", "echo here > /data/file", {"data": "late"})
    # The provisioner takes its objects back if it does not know them again, and makes new ones.
    assert of_class() == told, (told, capacities())
    with cleared("PersistentVolumeClaim late", "StorageClass late"):
        pass


@test
def an_inline_volume_works_where_it_is_allowed():
    os.makedirs(export("inline"))
    inline = {"csi": {"driver": DRIVER, "volumeAttributes": {"server": SERVER, "share": SHARE, "subDir": "inline"}}}
    succeeds("inline", "echo here > /data/file", {"data": inline})
    assert os.path.exists(export("inline/file")), "an inline volume's data stays"


def directories():
    return {name for name in os.listdir(SHARE) if name.startswith("pvc-")}


@test
def fifty_claims_are_bound_once_each_though_the_leader_is_killed_meanwhile():
    names = [f"lead-{number}" for number in range(50)]
    volumes_before = settled_volumes()
    before = directories()
    for name in names:
        claim(name, "nfs")
    lease = "external-provisioner-leader-nfs-csi-k8s-io"
    holders = [one for one in api.items("Lease", "kube-system") if "nfs-csi-k8s-io" in one["metadata"]["name"]]
    # The provisioner's lease has the driver's name only; the other sidecars' say what they are.
    [leader] = [one["spec"]["holderIdentity"] for one in holders if one["metadata"]["name"] in ("nfs-csi-k8s-io", lease)]
    killed = [one["metadata"]["name"] for one in pods_ready("csi-nfs-controller") if one["metadata"]["name"] in leader]
    assert killed, (leader, holders)
    api.call("DELETE", f"/api/v1/namespaces/kube-system/pods/{killed[0]}", {"gracePeriodSeconds": 0})
    volumes = api.wait("all claims to be bound", 180, volumes_of(*names), every=2)
    assert len(set(volumes)) == 50
    assert directories() - before == set(volumes)
    assert len(api.items("PersistentVolume")) == volumes_before + 50
    for name in names:
        api.delete("PersistentVolumeClaim", name)
    api.wait("all volumes to be gone", 120, lambda: len(api.items("PersistentVolume")) == volumes_before)
    api.wait("all directories to be gone", 60, lambda: directories() == before)
    api.wait("both controllers", 120, lambda: len(pods_ready("csi-nfs-controller")) == 2)
