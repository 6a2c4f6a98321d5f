"""The driver as `helm install` with default values makes it, and volumes' lives on it."""
import os
import re
import tempfile
import urllib.request

from tests import api
from tests.objects import (CHART, DRIVER, HOST, MODE_ONE_POD, MODE_READ, SERVER, SHARE, apply, bound, claim, cleared, content,
                           driver_ready, events_of, export, helm, mounts_of, phase, pod, pods_ready, put, registered,
                           remove, run, static_volume, storage_class, succeeds)
from tests.runner import test

PARALLEL = 4


def set_up():
    helm("install", "csi", CHART)
    driver_ready()
    storage_class("nfs", mountOptions=["nfsvers=4.2"])


@test
def helm_install_with_default_values_makes_a_small_registered_driver():
    [node] = pods_ready("csi-nfs-node")
    assert [one["name"] for one in node["spec"]["containers"]] == ["nfs"], "one container on the node"
    [controller] = pods_ready("csi-nfs-controller")
    names = [one["name"] for one in controller["spec"]["containers"]]
    assert names == ["nfs", "csi-provisioner", "csi-resizer"], names
    assert not any(one.get("securityContext", {}).get("privileged") for one in controller["spec"]["containers"])
    assert DRIVER in registered()
    spec = api.get("CSIDriver", DRIVER)["spec"]
    assert (spec["attachRequired"], spec["podInfoOnMount"]) == (False, False), spec
    assert (spec["fsGroupPolicy"], spec["volumeLifecycleModes"]) == ("File", ["Persistent"]), spec


@test
def both_parts_answer_for_their_health_and_their_metrics():
    for port in (29652, 29653):
        for path, expected in (("healthz", "ok"), ("readyz", "ok"), ("metrics", 'nfs_csi_build_info{version="')):
            with urllib.request.urlopen(f"http://{HOST}:{port}/{path}", timeout=30) as answer:
                assert expected in answer.read().decode(), f"{port}/{path}"


@test
def the_first_volume_of_the_readme_is_bound_and_used():
    with open("../../README.md") as file:
        [text] = re.findall(r"```yaml\n(.*?)```", file.read(), re.S)
    for there, here in (("nfs.example.com", SERVER), ("share: /export", f"share: {SHARE}"), ("{name: nfs}", "{name: readme}"),
                        ("storageClassName: nfs", "storageClassName: readme"), ("{name: data}", "{name: readme}")):
        assert there in text, there
        text = text.replace(there, here)
    apply(text)
    assert succeeds("readme", "echo hello > /data/file; cat /data/file", {"data": "readme"}) == "hello\n"
    with cleared("PersistentVolumeClaim readme", "StorageClass readme"):
        pass


@test
def the_plugin_of_kubectl_lists_claims_and_jobs_by_the_controller_s_pod():
    claim("listed", "nfs")
    volume = bound("listed")["metadata"]["name"]
    with tempfile.TemporaryDirectory() as folder:
        os.symlink(os.environ["E2E_DRIVER"], f"{folder}/kubectl-nfs_csi")
        path = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
        listed = run("kubectl", "nfs-csi", "list", "--export", f"{HOST}:{SHARE}", env=path)
        run("kubectl", "nfs-csi", "jobs", env=path)
    [line] = [line for line in listed.splitlines() if f" {volume} " in line]
    assert line.startswith("volume ") and " default/listed " in line, listed
    with cleared("PersistentVolumeClaim listed"):
        pass


@test
def a_claim_is_written_by_one_pod_read_by_another_and_gone_with_its_directory():
    claim("life", "nfs")
    volume = bound("life")["metadata"]["name"]
    pod("life-writer", "echo written > /data/file && sleep 1000", {"data": "life"})
    phase("life-writer", "Running")
    assert succeeds("life-reader", "until [ -s /data/file ]; do sleep 0.1; done; cat /data/file", {"data": "life"}) == "written\n"
    # A pod that has ended may be deleted before its volumes are unmounted.
    api.wait("one mount", 60, lambda: len(mounts_of(volume)) == 1)
    [line] = mounts_of(volume)
    assert " - nfs4 " in line and "vers=4.2" in line, line
    remove("Pod", "life-writer")
    assert not mounts_of(volume)
    assert content(volume, "file") == "written\n"
    remove("PersistentVolumeClaim", "life")
    api.gone("PersistentVolume", volume)
    assert not os.path.exists(export(volume))


@test
def reclaim_policy_retain_keeps_the_volume_and_its_data():
    storage_class("kept", reclaimPolicy="Retain")
    claim("kept", "kept")
    volume = bound("kept")["metadata"]["name"]
    put("kept", volume, "file")
    remove("PersistentVolumeClaim", "kept")
    api.wait("the volume to be released", 60, lambda: api.get("PersistentVolume", volume)["status"]["phase"] == "Released")
    assert os.path.exists(export(volume, "file"))
    with cleared(f"PersistentVolume {volume}", "StorageClass kept"):
        pass


@test
def on_delete_archive_moves_the_directory_aside():
    storage_class("archive", {"onDelete": "archive"})
    claim("archived", "archive")
    volume = bound("archived")["metadata"]["name"]
    put("kept", volume, "file")
    remove("PersistentVolumeClaim", "archived")
    api.gone("PersistentVolume", volume)
    assert not os.path.exists(export(volume))
    assert os.path.exists(export(f"archived-{volume}", "file"))


@test
def a_static_volume_is_mounted_where_its_attributes_say():
    os.makedirs(export("by-hand/inside"))
    static_volume("by-hand", "by-hand", {"server": SERVER, "share": SHARE, "subDir": "by-hand/inside"})
    claim("by-hand", "", volume="by-hand")
    succeeds("by-hand", "echo here > /data/file", {"data": "by-hand"})
    assert os.path.exists(export("by-hand/inside/file"))
    with cleared("PersistentVolumeClaim by-hand", "PersistentVolume by-hand"):
        pass
    assert os.path.exists(export("by-hand/inside/file")), "a static volume's data stays"


@test
def a_read_only_many_volume_refuses_writes():
    os.makedirs(export("read-only"))
    put("to be read\n", "read-only/file")
    static_volume("read-only", "read-only", {"server": SERVER, "share": SHARE, "subDir": "read-only"}, [MODE_READ])
    claim("read-only", "", MODE_READ, volume="read-only")
    # The pod says nothing of reading: the claim's access mode is enough.
    pod("read-only", "cat /data/file; touch /data/new; sleep 1000", {"data": "read-only"})
    phase("read-only", "Running")
    output = api.wait("the pod to try", 30, lambda: "touch" in api.log("read-only") and api.log("read-only"))
    assert "to be read" in output and "Read-only file system" in output, output
    [line] = mounts_of("read-only")
    assert " ro," in line.split(" - ")[0], line
    assert os.listdir(export("read-only")) == ["file"]
    with cleared("Pod read-only", "PersistentVolumeClaim read-only", "PersistentVolume read-only"):
        pass


@test
def a_read_write_once_pod_volume_is_refused_to_a_second_pod():
    claim("one-pod", "nfs", MODE_ONE_POD)
    bound("one-pod")
    pod("one-pod", "sleep 1000", {"data": "one-pod"})
    phase("one-pod", "Running")
    pod("two-pods", "sleep 1000", {"data": "one-pod"})
    api.wait("the scheduler's refusal", 60, lambda: any("ReadWriteOncePod" in text for text in events_of("two-pods")))
    assert api.get("Pod", "two-pods")["status"]["phase"] == "Pending"
    remove("Pod", "one-pod")
    phase("two-pods", "Running")
    with cleared("Pod two-pods", "PersistentVolumeClaim one-pod"):
        pass


@test
def a_sub_path_of_a_volume_is_mounted():
    claim("sub-path", "nfs")
    succeeds("sub-path", "echo deep > /data/file", {"data:some/where": "sub-path"})
    volume = bound("sub-path")["metadata"]["name"]
    assert os.path.exists(export(volume, "some/where/file"))
    with cleared("PersistentVolumeClaim sub-path"):
        pass


@test
def an_fs_group_is_given_the_volume():
    claim("group", "nfs")
    script = "echo mine > /data/file; stat -c %g /data; stat -c %g /data/file"
    context = {"runAsUser": 1000, "runAsGroup": 3000, "fsGroup": 2000}
    assert succeeds("group", script, {"data": "group"}, securityContext=context).split() == ["2000", "2000"]
    with cleared("PersistentVolumeClaim group"):
        pass


@test
def mount_options_are_honoured():
    storage_class("options", mountOptions=["nfsvers=4.1", "noatime", "rsize=65536"])
    claim("options", "options")
    volume = bound("options")["metadata"]["name"]
    pod("options", "sleep 1000", {"data": "options"})
    phase("options", "Running")
    [line] = mounts_of(volume)
    assert all(option in line for option in ("vers=4.1", "noatime", "rsize=65536")), line
    with cleared("Pod options", "PersistentVolumeClaim options", "StorageClass options"):
        pass


@test
def a_sub_dir_template_is_filled_with_the_claim_s_name_and_namespace():
    storage_class("template", {"subDir": "${pvc.metadata.namespace}/${pvc.metadata.name}"})
    claim("template", "template")
    bound("template")
    assert os.path.isdir(export("default/template"))
    remove("PersistentVolumeClaim", "template")
    api.wait("the directory's end", 60, lambda: not os.path.exists(export("default/template")))


@test
def a_volume_that_csi_driver_nfs_made_is_mounted_and_deleted():
    name = "pvc-8d9a2b54-go"
    os.makedirs(export(name))
    put("of another driver\n", name, "old")
    attributes = {"server": SERVER, "share": SHARE, "csi.storage.k8s.io/pv/name": name, "subdir": name,
                  "csi.storage.k8s.io/pvc/name": "go", "csi.storage.k8s.io/pvc/namespace": "default",
                  "storage.kubernetes.io/csiProvisionerIdentity": "1700000000000-8081-nfs.csi.k8s.io"}
    api.create({"kind": "PersistentVolume", "metadata": {
        "name": name, "annotations": {"pv.kubernetes.io/provisioned-by": DRIVER}}, "spec": {
            "capacity": {"storage": "10Mi"}, "accessModes": ["ReadWriteMany"], "storageClassName": "nfs",
            "persistentVolumeReclaimPolicy": "Delete", "claimRef": {"name": "go", "namespace": "default"},
            "csi": {"driver": DRIVER, "volumeHandle": f"{SERVER}#run/export#{name}##", "volumeAttributes": attributes}}})
    claim("go", "nfs", volume=name)
    assert succeeds("go", "cat /data/old", {"data": "go"}) == "of another driver\n"
    remove("PersistentVolumeClaim", "go")
    api.gone("PersistentVolume", name)
    assert not os.path.exists(export(name))
