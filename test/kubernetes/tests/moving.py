"""Moving from csi-driver-nfs and back, in place, while a pod writes.

What is there at first has that driver's names, labels, selectors, containers and volumes (../csi-driver-nfs); its program is
this driver's, by the other one's command line, since tests fetch no image.
"""
import os
import tarfile

from tests import api
from tests.objects import (CHART, DEPLOY, DRIVER, SERVER, SHARE, claim, cleared, driver_ready, export, helm, pods_ready,
                           put, remove, run, storage_class, succeeds)
from tests.runner import test
from tests.upgrade import writes_meanwhile

OTHER = os.path.realpath("csi-driver-nfs")
SNAPSHOTS = [f"{kind}.snapshot.storage.k8s.io" for kind in ("volumesnapshots", "volumesnapshotcontents", "volumesnapshotclasses")]
# Under these names it is the other driver's, and not this one's.
ROLES = ("nfs-external-provisioner-role", "nfs-external-resizer-role")


def version():
    with open(f"{CHART}/Chart.yaml") as file:
        return [line.split()[1] for line in file if line.startswith("appVersion:")][0]


def set_up():
    """No driver, the snapshot API, and an archive as csi-driver-nfs makes them."""
    helm("uninstall", "csi", "--wait", check=False)
    run(f"{DEPLOY}/uninstall-driver.sh", "--even-with-volumes", check=False)
    api.gone("CSIDriver", DRIVER)
    if api.get("Deployment", "snapshot-controller", "kube-system") is None:
        run("kubectl", "apply", "-f", f"{DEPLOY}/snapshot-controller.yaml")
    api.wait("the snapshot controller", 120, lambda: pods_ready("snapshot-controller"))
    if api.get("StorageClass", "nfs") is None:
        storage_class("nfs")
    put("from before\n", "file")
    os.makedirs(export("snapshot-old"))
    with tarfile.open(export("snapshot-old", "pvc-old.tar.gz"), "w:gz") as archive:
        archive.add(export("file"), "file")
    os.remove(export("file"))
    share = SHARE.strip("/")
    api.create({"kind": "VolumeSnapshotContent", "metadata": {"name": "old"}, "spec": {
        "driver": DRIVER, "deletionPolicy": "Retain", "volumeSnapshotRef": {"name": "old", "namespace": "default"},
        "source": {"snapshotHandle": f"{SERVER}#{share}#snapshot-old#snapshot-old#pvc-old"}}})
    api.create({"kind": "VolumeSnapshot", "metadata": {"name": "old"}, "spec": {"source": {"volumeSnapshotContentName": "old"}}})


def containers(kind, name):
    found = api.get(kind, name, "kube-system")
    return sorted(one["name"] for one in found["spec"]["template"]["spec"]["containers"])


def is_served_by(ours, before=frozenset()):
    """Waits until all pods are those of this driver, or of the other one; gives their uids. `before`: those that must go."""
    def replaced():
        pods = pods_ready("csi-nfs-controller") + pods_ready("csi-nfs-node")
        names = {one["name"] for pod in pods for one in pod["spec"]["containers"]}
        uids = {pod["metadata"]["uid"] for pod in pods}
        return len(pods) == 2 and ("liveness-probe" in names) != ours and not uids & before and uids
    uids = api.wait("pods of the driver that is wanted", 240, replaced)
    driver_ready()
    assert (containers("DaemonSet", "csi-nfs-node") == ["nfs"]) == ours, containers("DaemonSet", "csi-nfs-node")
    return uids


def works(name):
    """A new claim is bound and used, and a snapshot from before is restored."""
    claim(f"new-{name}", "nfs")
    assert succeeds(f"new-{name}", "echo new > /data/file; cat /data/file", {"data": f"new-{name}"}) == "new\n"
    claim(f"restored-{name}", "nfs", source={"kind": "VolumeSnapshot", "name": "old", "apiGroup": "snapshot.storage.k8s.io"})
    assert succeeds(f"restored-{name}", "cat /data/file", {"data": f"restored-{name}"}) == "from before\n"
    with cleared(f"PersistentVolumeClaim new-{name}", f"PersistentVolumeClaim restored-{name}"):
        pass
    assert all(api.get("CustomResourceDefinition", one) for one in SNAPSHOTS) and api.get("VolumeSnapshot", "old")


def old_driver():
    """The other driver's objects as its script applies them."""
    return run("helm", "template", "csi-driver-nfs", OTHER, "--set", f"image.nfs.tag=v{version()},plain=true")


def roles():
    return {name for name in run("kubectl", "get", "clusterrole", "-o", "name").split() if "nfs" in name}


@test
def the_install_script_takes_the_other_script_s_place_and_that_one_takes_it_back_while_a_pod_writes():
    run("kubectl", "apply", "-f", "-", input=old_driver())
    before = is_served_by(ours=False)
    refused = run(f"{DEPLOY}/install-driver.sh", "snapshot", check=False)
    assert refused.returncode == 1 and "take-over" in refused.stdout, refused.stdout
    refused = run(f"{DEPLOY}/uninstall-driver.sh", "--even-with-volumes", check=False)
    assert refused.returncode == 1 and "nothing is removed" in refused.stdout, refused.stdout
    assert before == is_served_by(ours=False)

    def there_and_back():
        told = run(f"{DEPLOY}/install-driver.sh", "snapshot", "take-over")
        assert "is installed" in told, told
        here = is_served_by(ours=True, before=before)
        assert not {f"clusterrole.rbac.authorization.k8s.io/{name}" for name in ROLES} & roles(), roles()
        works("here")
        listed = run(f"{DEPLOY}/uninstall-driver.sh", "--going-back")
        assert "default/old of " in listed, listed
        run("kubectl", "apply", "-f", "-", input=old_driver())
        is_served_by(ours=False, before=here)
        # What is this driver's alone goes: its permissions.
        run(f"{DEPLOY}/uninstall-driver.sh")
        assert not [name for name in roles() if "csi-nfs-controller" in name], roles()
        works("back")
    writes_meanwhile(there_and_back)
    run("kubectl", "delete", "--wait", "-f", "-", input=old_driver())
    api.wait("the old driver's end", 90, lambda: not api.items("Pod", "kube-system", "app=csi-nfs-node"))


@test
def helm_upgrades_the_other_chart_s_release_to_this_one_and_rolls_it_back_while_a_pod_writes():
    helm("install", "csi-driver-nfs", OTHER, "--set", f"image.nfs.tag=v{version()}")
    before = is_served_by(ours=False)
    refused = run(f"{DEPLOY}/install-driver.sh", "take-over", check=False)
    assert refused.returncode == 1 and "helm upgrade csi-driver-nfs" in refused.stdout, refused.stdout
    upgrade = ("upgrade", "csi-driver-nfs", CHART, "--reset-then-reuse-values", "--wait")
    # The definitions of snapshots as a chart installs them that does not keep them.
    owner = ["meta.helm.sh/release-name=csi-driver-nfs", "meta.helm.sh/release-namespace=kube-system"]
    run("kubectl", "annotate", "--overwrite", "crd", SNAPSHOTS[0], *owner, "helm.sh/resource-policy-")
    refused = helm(*upgrade, check=False)
    assert refused.returncode != 0 and "would remove all VolumeSnapshots" in refused.stdout, refused.stdout
    run("kubectl", "annotate", "crd", SNAPSHOTS[0], *(f"{one.split('=')[0]}-" for one in owner))

    def there_and_back():
        helm(*upgrade)
        here = is_served_by(ours=True, before=before)
        works("upgraded")
        helm("rollback", "csi-driver-nfs", "1", "--wait")
        is_served_by(ours=False, before=here)
        works("rolled-back")
    writes_meanwhile(there_and_back)
    helm("uninstall", "csi-driver-nfs", "--wait")
    remove("VolumeSnapshot", "old")
