"""install-driver.sh and uninstall-driver.sh, from a checkout."""
import os

from tests import api
from tests.objects import (DEPLOY, DRIVER, SERVER, SHARE, claim, cleared, driver_ready, export, registered, run, static_volume,
                           succeeds)
from tests.runner import test


def uninstall(*more, check=True):
    return run(f"{DEPLOY}/uninstall-driver.sh", *more, check=check)


@test
def an_install_that_does_not_come_up_ends_with_what_to_do():
    wrong = {**os.environ, "NFS_CSI_IMAGE": "localhost/nfs-csi:none", "NFS_CSI_TIMEOUT": "5"}
    failed = run(f"{DEPLOY}/install-driver.sh", "local", check=False, env=wrong)
    assert failed.returncode == 1 and "is not ready after 5 s" in failed.stdout, failed.stdout
    assert "NFS_CSI_IMAGE" in failed.stdout and "logs deployment/csi-nfs-controller" in failed.stdout, failed.stdout


@test
def the_install_script_brings_up_a_registered_driver():
    run(f"{DEPLOY}/install-driver.sh", "v0.1.0", "local")
    driver_ready(seconds=5)
    spec = api.get("CSIDriver", DRIVER)["spec"]
    assert (spec["attachRequired"], spec["fsGroupPolicy"]) == (False, "File"), spec


@test
def the_uninstall_script_refuses_while_there_are_volumes_and_leaves_them_and_their_data():
    os.makedirs(export("stays"))
    static_volume("stays", "stays", {"server": SERVER, "share": SHARE, "subDir": "stays"})
    claim("stays", "", volume="stays")
    succeeds("stays", "echo kept > /data/file", {"data": "stays"})
    refused = uninstall(check=False)
    assert refused.returncode == 1 and "stays" in refused.stdout, refused.stdout
    assert api.get("CSIDriver", DRIVER)
    uninstall("--even-with-volumes")
    assert api.get("CSIDriver", DRIVER) is None
    api.wait("the driver to be forgotten by the kubelet", 60, lambda: DRIVER not in registered())
    for kind, name in (("Deployment", "csi-nfs-controller"), ("DaemonSet", "csi-nfs-node")):
        assert api.get(kind, name, "kube-system") is None
    assert run("kubectl", "get", "clusterrole,clusterrolebinding,role,rolebinding,serviceaccount,configmap", "-n", "kube-system",
               "-l", "app.kubernetes.io/name=nfs-csi", "-o", "name") == ""
    assert api.get("PersistentVolume", "stays") and os.path.exists(export("stays/file"))
    with cleared("PersistentVolumeClaim stays", "PersistentVolume stays"):
        pass
