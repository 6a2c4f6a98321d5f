"""deploy/example: every file is applied as it is, but for the server and its share."""
import os

from tests import api
from tests.objects import (SERVER, SHARE, apply, bound, claim, cleared, content, export, phase, pods_ready,
                           storage_class, succeeds)
from tests.runner import test

PARALLEL = 3
FOLDER = "../../deploy/example"


def set_up():
    example("storageclass.yaml")


def example(name):
    """Applies a file for the guest's server."""
    with open(os.path.join(FOLDER, name)) as file:
        text = file.read()
    return apply(text.replace("nfs.example.com", SERVER).replace("share: /export", f"share: {SHARE}"))


def ready(label):
    return api.wait(f"the pods of {label}", 120, lambda: pods_ready(label, "default"))


@test
def a_claim_and_a_pod_are_a_volume_that_is_written_and_grows_and_is_cloned_and_restored_from_a_snapshot():
    for name in ("pvc.yaml", "pod.yaml"):
        example(name)
    phase("writer", "Running")
    volume = bound("data")["metadata"]["name"]
    api.wait("the pod to write", 30, lambda: os.path.exists(export(volume, "dates")))
    example("expansion.yaml")
    def size():
        return api.get("PersistentVolumeClaim", "data")["status"]["capacity"]["storage"]
    api.wait("the claim to grow", 90, lambda: size() == "20Gi")
    # The copies' claims are as large as the volume now is.
    for name in ("clone.yaml", "snapshot.yaml"):
        with open(os.path.join(FOLDER, name)) as file:
            assert "storage: 20Gi" in file.read(), name
        example(name)
    for copy in ("data-clone", "data-restored"):
        assert os.path.exists(export(bound(copy)["metadata"]["name"], "dates"))


@test
def a_stateful_set_has_a_volume_a_pod():
    example("statefulset.yaml")
    api.wait("both pods", 180, lambda: api.get("StatefulSet", "members")["status"].get("readyReplicas") == 2)
    for number in (0, 1):
        volume = bound(f"data-members-{number}")["metadata"]["name"]
        wanted = f"members-{number}\n"
        api.wait("its line", 30, lambda: os.path.exists(export(volume, "names")) and content(volume, "names") == wanted)


@test
def a_directory_that_is_there_is_a_volume_for_writers_and_for_readers():
    os.makedirs(export("projects"), exist_ok=True)
    example("static-pv.yaml")
    bound("projects")
    example("read-only-many.yaml")
    phase("reader", "Running")


@test
def a_volume_that_goes_with_its_pod_and_an_inline_one():
    example("generic-ephemeral.yaml")
    example("inline.yaml")
    phase("scratch", "Running")
    phase("inline", "Running")


@test
def an_nfs_server_in_the_cluster_serves_a_volume():
    example("nfs-server.yaml")
    [server] = ready("nfs-server")
    # The cluster has no names for services here, and nobody who would carry their addresses' packets.
    storage_class("in-cluster", {"server": server["status"]["podIP"], "share": "/"})
    claim("in-cluster", "in-cluster")
    assert succeeds("in-cluster", "echo served > /data/file; cat /data/file", {"data": "in-cluster"}) == "served\n"
    with cleared("PersistentVolumeClaim in-cluster", "StorageClass in-cluster"):
        pass
    api.wait("the volume's end", 60, lambda: not [one for one in api.items("PersistentVolume")
                                                 if one["spec"].get("storageClassName") == "in-cluster"])
    api.delete("Deployment", "nfs-server")


@test
def every_example_is_tried_here():
    with open(__file__) as file:
        text = file.read()
    assert not [name for name in os.listdir(FOLDER) if f'"{name}"' not in text]
