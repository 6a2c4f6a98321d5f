"""The end of the chart."""
import os

from tests import api
from tests.objects import (DEPLOY, DRIVER, bound, claim, cleared, driver_ready, export, helm, pods_ready, put, registered,
                           remove, run, storage_class)
from tests.runner import test

API = [f"{kind}.snapshot.storage.k8s.io" for kind in ("volumesnapshots", "volumesnapshotcontents", "volumesnapshotclasses")]


@test
def all_that_the_examples_made_can_be_removed():
    api.delete("StatefulSet", "members")
    pods = ("writer", "reader", "scratch", "inline")
    with cleared(*(f"Pod {name}" for name in pods)):
        pass
    api.wait("the pods' end", 60, lambda: not api.items("Pod", "default", "app=members"))
    remove("VolumeSnapshot", "data-today")
    for one in ("data", "data-clone", "data-restored", "projects", "projects-to-read", "data-members-0", "data-members-1"):
        api.delete("PersistentVolumeClaim", one)
    for name in ("projects", "projects-to-read"):
        remove("PersistentVolume", name)
    api.wait("the volumes' end", 90, lambda: not [one for one in api.items("PersistentVolume")
                                                 if one["spec"].get("storageClassName") == "nfs-csi"])
    for kind in ("StorageClass", "VolumeSnapshotClass"):
        remove(kind, "nfs-csi")


@test
def helm_uninstall_leaves_data_volumes_and_the_snapshot_api():
    storage_class("uninstall", reclaimPolicy="Retain")
    claim("uninstall", "uninstall")
    volume = bound("uninstall")["metadata"]["name"]
    put("kept", volume, "file")
    helm("uninstall", "csi", "--wait")
    api.wait("the driver to be forgotten by the kubelet", 90, lambda: DRIVER not in registered())
    assert api.get("PersistentVolume", volume)["status"]["phase"] == "Bound"
    assert os.path.exists(export(volume, "file"))
    assert all(api.get("CustomResourceDefinition", name) for name in API)
    assert api.get("CSIDriver", DRIVER) is None


@test
def the_install_script_brings_the_snapshot_api_along_and_uninstalling_leaves_it():
    run("kubectl", "delete", "crd", *API, "--wait")
    # As it is used without a checkout.
    told = run("bash", "-o", "pipefail", "-c",
               f"curl -skSL file://{DEPLOY}/install-driver.sh | bash -s master snapshot --")
    assert "is installed" in told, told
    driver_ready(seconds=60)  # what was there before may still be on its way out
    [controller] = pods_ready("csi-nfs-controller")
    assert "csi-snapshotter" in [one["name"] for one in controller["spec"]["containers"]]
    api.wait("the snapshot controller", 120, lambda: pods_ready("snapshot-controller"))
    run(f"{DEPLOY}/uninstall-driver.sh", "--even-with-volumes")
    assert api.get("CSIDriver", DRIVER) is None and api.get("Deployment", "csi-nfs-controller", "kube-system") is None
    assert all(api.get("CustomResourceDefinition", name) for name in API) and pods_ready("snapshot-controller")
