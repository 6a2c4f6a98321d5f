"""Snapshots, clones, expansion, and volumes that live as long as a pod: the chart with the snapshot controller."""
import os

from tests import api
from tests.objects import (CHART, DRIVER, MODE_READ, SERVER, SHARE, bound, claim, cleared, content, driver_ready,
                           events_of, export, helm, mounts_of, phase, pod, pods_ready, put, remove, succeeds)
from tests.runner import test

PARALLEL = 3


def set_up():
    # The tests of upgrades have done so, if they were run.
    if api.get("Deployment", "snapshot-controller", "kube-system") is None:
        helm("upgrade", "csi", CHART, "--set", "externalSnapshotter.enabled=true")
        driver_ready()
    [controller] = api.wait("the controller with its snapshotter", 120, lambda: pods_ready("csi-nfs-controller"))
    assert "csi-snapshotter" in [one["name"] for one in controller["spec"]["containers"]]
    api.wait("the snapshot controller", 120, lambda: pods_ready("snapshot-controller"))
    api.create({"kind": "VolumeSnapshotClass", "metadata": {"name": "nfs"}, "driver": DRIVER, "deletionPolicy": "Delete"})


def source(kind, name):
    group = {"VolumeSnapshot": {"apiGroup": "snapshot.storage.k8s.io"}}.get(kind, {})
    return {"kind": kind, "name": name, **group}


@test
def a_snapshot_is_restored_as_it_was_to_a_new_claim_and_read_without_a_copy():
    claim("shot", "nfs")
    volume = bound("shot")["metadata"]["name"]
    put("before\n", volume, "file")
    api.create({"kind": "VolumeSnapshot", "metadata": {"name": "shot"}, "spec": {
        "volumeSnapshotClassName": "nfs", "source": {"persistentVolumeClaimName": "shot"}}})
    def ready():
        status = api.get("VolumeSnapshot", "shot").get("status", {})
        return status.get("readyToUse") and status
    status = api.wait("the snapshot to be ready", 120, ready)
    put("after\n", volume, "file")
    claim("restored", "nfs", source=source("VolumeSnapshot", "shot"))
    claim("reader", "nfs", mode=MODE_READ, source=source("VolumeSnapshot", "shot"))
    assert succeeds("restored", "cat /data/file", {"data": "restored"}) == "before\n"
    remove("VolumeSnapshot", "shot")
    api.gone("VolumeSnapshotContent", status["boundVolumeSnapshotContentName"])
    assert content(bound("restored")["metadata"]["name"], "file") == "before\n"
    # Of a claim that is only read nothing was copied, and it outlives its snapshot.
    reader = bound("reader")["metadata"]["name"]
    assert not os.path.exists(export(reader)) and len(os.listdir(export(".nfs-csi/shared"))) == 1
    write = "cat /data/file; touch /data/file 2>&1 || rm -f /data/file 2>&1 || true"
    told = succeeds("reader", write, {"data": "reader"})
    assert told.startswith("before\n") and told.count("Read-only file system") == 2, told
    with cleared("PersistentVolumeClaim restored", "PersistentVolumeClaim reader", "PersistentVolumeClaim shot"):
        pass
    api.wait("the snapshot's tree to be freed", 90, lambda: not os.listdir(export(".nfs-csi/shared")))


@test
def a_claim_is_cloned_and_the_clone_is_its_own():
    claim("origin", "nfs")
    volume = bound("origin")["metadata"]["name"]
    put("origin\n", volume, "file")
    os.symlink("file", export(volume, "link"))
    claim("clone", "nfs", source=source("PersistentVolumeClaim", "origin"))
    assert succeeds("clone", "cat /data/link; echo clone > /data/file", {"data": "clone"}) == "origin\n"
    assert content(volume, "file") == "origin\n"
    assert content(bound("clone")["metadata"]["name"], "file") == "clone\n"
    with cleared("PersistentVolumeClaim clone", "PersistentVolumeClaim origin"):
        pass


@test
def a_generic_ephemeral_volume_lives_as_long_as_its_pod():
    template = {"spec": {"storageClassName": "nfs", "accessModes": ["ReadWriteOnce"],
                         "resources": {"requests": {"storage": "10Mi"}}}}
    pod("ephemeral", "echo here > /data/file && sleep 1000", {"data": {"ephemeral": {"volumeClaimTemplate": template}}})
    phase("ephemeral", "Running")
    volume = bound("ephemeral-data")["metadata"]["name"]
    api.wait("the file", 30, lambda: os.path.exists(export(volume, "file")))
    remove("Pod", "ephemeral")
    api.gone("PersistentVolumeClaim", "ephemeral-data")
    api.gone("PersistentVolume", volume)
    assert not os.path.exists(export(volume))


@test
def an_inline_volume_is_refused_by_default():
    inline = {"csi": {"driver": DRIVER, "volumeAttributes": {"server": SERVER, "share": SHARE}}}
    pod("inline-refused", "sleep 1000", {"data": inline})
    api.wait("the kubelet's refusal", 90, lambda: any("Ephemeral" in text for text in events_of("inline-refused")))
    assert api.get("Pod", "inline-refused")["status"]["phase"] == "Pending"
    assert not mounts_of("data")
    remove("Pod", "inline-refused")
