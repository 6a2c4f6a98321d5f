"""What the pods may do: no more than they need."""
import os
import re
import shutil
import tempfile

from chart import CHART, EVERYTHING, containers, parsed, pods, rendered

TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount"
DRIVERS = {("csi-nfs-controller", "nfs"), ("csi-nfs-node", "nfs")}


def only_sidecars_of_the_controller_have_a_token_of_the_api_server():
    parts = parsed(rendered(EVERYTHING))
    for name in ("csi-nfs-controller", "csi-nfs-node"):
        assert pods(parts)[name]["spec"]["automountServiceAccountToken"] is False, name
    mounted = {key for key, one in containers(parts).items() if any(m["mountPath"] == TOKEN for m in one.get("volumeMounts", []))}
    assert mounted == {("csi-nfs-controller", name) for name in ("csi-provisioner", "csi-resizer", "csi-snapshotter", "csi-attacher")}
    [volume] = [one for one in pods(parts)["csi-nfs-controller"]["spec"]["volumes"] if one["name"] == "token"]
    assert [list(source) for source in volume["projected"]["sources"]] == [["serviceAccountToken"], ["configMap"], ["downwardAPI"]]


def what_needs_no_rights_has_none_and_is_not_root_except_on_the_node():
    parts = parsed(rendered(EVERYTHING))
    # A group of all containers of the pod: the driver's socket is open to it.
    assert pods(parts)["csi-nfs-controller"]["spec"]["securityContext"]["fsGroup"]
    for (pod, name), one in containers(parts).items():
        if (pod, name) in DRIVERS:
            continue
        context = {**pods(parts)[pod]["spec"]["securityContext"], **one["securityContext"]}
        assert context["capabilities"] == {"drop": ["ALL"]} and context["readOnlyRootFilesystem"], (pod, name)
        assert context["allowPrivilegeEscalation"] is False, (pod, name)
        if pod != "csi-nfs-node":
            assert context["runAsNonRoot"] and context["runAsUser"] != 0, (pod, name)


def the_node_plugin_sees_no_more_of_the_kubelet_s_directory_than_pods_its_own_folder_and_the_sockets():
    for values, registrar in (((), "nfs"), (("node.sidecars.enabled=true",), "node-driver-registrar")):
        parts = parsed(rendered("kubeletDir=/k", *values))
        spec = pods(parts)["csi-nfs-node"]["spec"]
        paths = {one["name"]: one["hostPath"]["path"] for one in spec["volumes"] if "hostPath" in one}
        assert paths == {"pods": "/k/pods", "csi": "/k/plugins/csi-nfsplugin", "registry": "/k/plugins_registry"}, paths
        [driver] = [one for one in spec["containers"] if one["name"] == "nfs"]
        shared = [one for one in driver["volumeMounts"] if "mountPropagation" in one]
        assert shared == [{"name": "pods", "mountPath": "/k/pods", "mountPropagation": "Bidirectional"}], shared
        assert "--kubelet-dir=/k" in driver["args"]
        # The driver reports a wrong directory, not the kubelet: no type is asked for.
        assert [one for one in spec["volumes"] if one["name"] == "pods"] == [{"name": "pods", "hostPath": {"path": "/k/pods"}}]
        holders = {one["name"] for one in spec["containers"] if any(m["name"] == "registry" for m in one["volumeMounts"])}
        assert holders == {registrar}, holders


def a_new_version_of_the_chart_alone_restarts_nothing_and_is_a_label_in_any_form():
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copytree(CHART, os.path.join(folder, "nfs-csi"))
        with open(os.path.join(copy, "Chart.yaml"), "r+") as file:
            text = re.sub("^version: .*", "version: 0.1.1+build.7", file.read(), flags=re.M)
            file.seek(0)
            file.write(text)
            file.truncate()
        newer = parsed(rendered(EVERYTHING, chart=copy))
    assert {part["metadata"]["labels"]["helm.sh/chart"] for part in newer} == {"nfs-csi-0.1.1_build.7"}
    assert pods(newer) == pods(parsed(rendered(EVERYTHING)))


def on_the_host_s_network_an_update_ends_the_old_pod_first():
    def strategy(*values):
        [found] = [part["spec"]["strategy"] for part in parsed(rendered(*values)) if part["kind"] == "Deployment"]
        return found
    assert strategy() == {"type": "Recreate"}
    rolling = "controller.strategyType=RollingUpdate"
    assert strategy(rolling)["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
    assert strategy(rolling, "controller.hostNetwork=false") == {"type": "RollingUpdate"}
