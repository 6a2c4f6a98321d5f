"""The end of the chart."""
import os

from tests import api
from tests.objects import DRIVER, bound, claim, export, helm, registered, storage_class, succeeds
from tests.runner import test


@test
def helm_uninstall_leaves_data_volumes_and_the_snapshot_api():
    storage_class("uninstall", reclaimPolicy="Retain")
    claim("uninstall", "uninstall")
    volume = bound("uninstall")["metadata"]["name"]
    succeeds("uninstall", "echo kept > /data/file", {"data": "uninstall"})
    helm("uninstall", "csi", "--wait")
    api.wait("the driver to be forgotten by the kubelet", 90, lambda: DRIVER not in registered())
    assert api.get("PersistentVolume", volume)["status"]["phase"] == "Bound"
    assert os.path.exists(export(volume, "file"))
    assert api.get("CustomResourceDefinition", "volumesnapshots.snapshot.storage.k8s.io")
    assert api.get("CSIDriver", DRIVER) is None
