"""What can be set, besides the driver's own flags, arrives where it belongs; and it is explained."""
import json
import os
import tempfile

from chart import CHART, EVERYTHING, IMAGE, containers, parsed, pods, refused, rendered, with_notes

PARTS = {"controller": "csi-nfs-controller", "node": "csi-nfs-node"}
# Values that a chart before these did not have: after an upgrade that keeps the old values they are missing.
NEWER = ["customAnnotations", "nameOverride", "fullnameOverride", "serviceAccount.annotations", "prometheusRule.labels", "dashboard", "test", "servers",
         "controller.topologySpreadConstraints", "controller.sidecars", "controller.minReadySeconds", "node.minReadySeconds",
         "node.updateStrategyType", "node.sidecars.extraArgs",
         *(f"{part}.{key}" for part in PARTS for key in (
             "readinessProbe", "extraEnv", "extraVolumes", "extraVolumeMounts", "initContainers", "podLabels", "hostAliases",
             "dnsConfig", "podSecurityContext", "securityContext")),
         *(f"externalSnapshotter.{key}" for key in (
             "controller.minReadySeconds", "extraArgs", "affinity", "nodeSelector", "tolerations", "topologySpreadConstraints",
             "podAnnotations", "podLabels"))]


def values_that_are_not_there_are_the_defaults():
    assert rendered("externalSnapshotter.enabled=true", *(f"{value}=null" for value in NEWER)) == rendered("externalSnapshotter.enabled=true")


def both_parts_take_what_pods_can_have():
    for part, name in PARTS.items():
        parts = parsed(rendered(*(f"{part}.{value}" for value in (
            "extraEnv[0].name=HTTP_PROXY", "extraVolumes[0].name=ca", "extraVolumes[0].configMap.name=ca",
            "extraVolumeMounts[0].name=ca", "extraVolumeMounts[0].mountPath=/ca", "initContainers[0].name=modules",
            "initContainers[0].image=x", "podLabels.team=storage", "podAnnotations.note=x", "hostAliases[0].ip=10.0.0.1",
            "hostAliases[0].hostnames={nas}", "dnsConfig.nameservers={10.0.0.2}", "nodeSelector.disk=fast", "minReadySeconds=7",
            "readinessProbe.periodSeconds=9", "livenessProbe.timeoutSeconds=8", "podSecurityContext.supplementalGroups={7}",
            "securityContext.readOnlyRootFilesystem=false", "securityContext.seLinuxOptions.type=x", "seLinuxOptions.type=spc_t"))))
        [spec] = [one["spec"] for one in parts if one["metadata"]["name"] == name and "template" in one.get("spec", {})]
        assert spec["minReadySeconds"] == 7
        template, driver = pods(parts)[name], containers(parts)[(name, "nfs")]
        assert template["metadata"]["labels"]["team"] == "storage" and template["metadata"]["annotations"] == {"note": "x"}
        pod = template["spec"]
        assert {"name": "ca", "configMap": {"name": "ca"}} in pod["volumes"]
        assert {"name": "ca", "mountPath": "/ca"} in driver["volumeMounts"]
        assert "HTTP_PROXY" in [one["name"] for one in driver["env"]]
        assert pod["initContainers"][0]["name"] == "modules" and pod["hostAliases"][0]["hostnames"] == ["nas"]
        assert pod["dnsConfig"] == {"nameservers": ["10.0.0.2"]}
        assert pod["nodeSelector"] == {"kubernetes.io/os": "linux", "disk": "fast"}
        assert driver["readinessProbe"]["periodSeconds"] == 9 and driver["readinessProbe"]["timeoutSeconds"] == 5
        assert driver["livenessProbe"]["timeoutSeconds"] == 8 and driver["livenessProbe"]["failureThreshold"] == 5
        # What is false takes the place of what was true; what is not named stays.
        assert driver["securityContext"]["readOnlyRootFilesystem"] is False
        assert driver["securityContext"]["seLinuxOptions"] == {"type": "spc_t"}
        assert driver["securityContext"].get("privileged") or driver["securityContext"]["capabilities"]["add"]
        assert pod["securityContext"]["supplementalGroups"] == [7] and "seccompProfile" in pod["securityContext"]
    assert pods(parsed(rendered("controller.topologySpreadConstraints[0].maxSkew=1")))["csi-nfs-controller"]["spec"]["topologySpreadConstraints"]


def what_is_set_for_the_driver_is_a_flag_of_the_part_it_is_for():
    controller, node = (("csi-nfs-controller", "nfs"), ("csi-nfs-node", "nfs"))
    for value, places, flag in (
            ("log.format=json", (controller, node), "--log-format=json"), ("log.level=debug", (controller, node), "--log-level=debug"),
            ("driver.mountPermissions=0770", (controller, node), "--mount-permissions=0770"),
            ("controller.trashRetention=7d", (controller,), "--trash-retention=7d"),
            ("controller.defaultOnDeletePolicy=retain", (controller,), "--default-ondelete-policy=retain"),
            ("controller.exports={nas:/a}", (controller,), "--export=nas:/a"),
            ("controller.extraArgs={--grace-period=1s}", (controller,), "--grace-period=1s"),
            ("node.extraArgs={--grace-period=2s}", (node,), "--grace-period=2s"),
            ("node.maxVolumes=9", (node,), "--max-volumes-per-node=9"),
            ("controller.volumeNamePrefix=east", (("csi-nfs-controller", "csi-provisioner"),), "--volume-name-prefix=east")):
        found = {key for key, one in containers(parsed(rendered("controller.enableSnapshotter=true", value))).items() if flag in one["args"]}
        assert found == set(places), (value, found)
    for key, one in containers(parsed(rendered("metrics.enabled=false"))).items():
        assert not {"ports", "livenessProbe", "readinessProbe"} & set(one) and "--metrics-address" not in " ".join(one["args"]), key


def objects_that_are_there_already_are_not_made():
    def kinds(*values):
        return {part["kind"] for part in parsed(rendered(*values))}
    assert kinds() - kinds("serviceAccount.create=false") == {"ServiceAccount"}
    assert kinds() - kinds("rbac.create=false") == {"ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"}
    parts = parsed(rendered("serviceAccount.create=false", "serviceAccount.controller=mine", "imagePullSecrets[0].name=pull"))
    assert pods(parts)["csi-nfs-controller"]["spec"]["serviceAccountName"] == "mine"
    assert all(template["spec"]["imagePullSecrets"] == [{"name": "pull"}] for template in pods(parts).values())
    classes = parsed(rendered(*(f"storageClasses[{number}].{value}" for number in (0, 1) for value in (
        f"name=c{number}", "parameters.server=nas", "parameters.share=/a", "parameters.subDir=null"))))
    assert [one["parameters"] for one in classes if one["kind"] == "StorageClass"] == [{"server": "nas", "share": "/a"}] * 2


def labels_and_annotations_of_all_objects_are_there_once_and_never_instead_of_the_chart_s_own():
    values = [f"customLabels.{key}" for key in ("team=storage", "app=x", "app\\.kubernetes\\.io/name=x")]
    values += ["customAnnotations.note=all", "controller.podLabels.app=x", "node.nodeSelector.kubernetes\\.io/os=windows",
               "serviceAccount.annotations.own=x"]
    before = {(one["kind"], one["metadata"]["name"]): one for one in parsed(rendered(EVERYTHING))}
    parts = parsed(rendered(EVERYTHING, *values))
    assert len(parts) == len(before)
    for one in parts:
        labels, was = one["metadata"]["labels"], before[(one["kind"], one["metadata"]["name"])]["metadata"]["labels"]
        assert labels["team"] == "storage" and {key: labels[key] for key in was} == was, one
        assert one["metadata"]["annotations"]["note"] == "all", one
        assert one["kind"] != "ServiceAccount" or one["metadata"]["name"] == "snapshot-controller" or one["metadata"]["annotations"]["own"] == "x"
    for name, template in pods(parts).items():
        assert template["metadata"]["labels"]["app"] == name and template["spec"]["nodeSelector"] == {"kubernetes.io/os": "linux"}


def names_are_those_of_csi_driver_nfs_until_others_are_asked_for():
    assert set(pods(parsed(rendered()))) == {"csi-nfs-controller", "csi-nfs-node"}
    parts = parsed(rendered("fullnameOverride=files", "nameOverride=storage", "node.name=mounter"))
    assert set(pods(parts)) == {"files-controller", "mounter"}
    assert {one["metadata"]["labels"]["app.kubernetes.io/name"] for one in parts} == {"storage"}


def sidecars_take_flags_timeouts_and_the_times_of_their_leases():
    parts = parsed(rendered("externalSnapshotter.enabled=true", "attacher.enabled=true", *(f"controller.sidecars.{value}" for value in (
        "timeouts.csiProvisioner=2h", "extraArgs.csiResizer={--workers=3}", "securityContext.runAsUser=1000",
        "leaderElection.leaseDuration=137s", "leaderElection.renewDeadline=107s", "leaderElection.retryPeriod=26s"))))
    times = ["--leader-election-lease-duration=137s", "--leader-election-renew-deadline=107s", "--leader-election-retry-period=26s"]
    timeouts = {"csi-provisioner": "2h", "csi-resizer": "60s", "csi-snapshotter": "1200s", "csi-attacher": "15s"}
    for name, timeout in timeouts.items():
        one = containers(parts)[("csi-nfs-controller", name)]
        assert f"--timeout={timeout}" in one["args"] and set(times) <= set(one["args"]), one
        assert one["securityContext"]["runAsUser"] == 1000 and one["securityContext"]["runAsNonRoot"]
    assert containers(parts)[("csi-nfs-controller", "csi-resizer")]["args"][-1] == "--workers=3"
    assert set(times) <= set(containers(parts)[("snapshot-controller", "snapshot-controller")]["args"])
    parts = parsed(rendered("node.sidecars.enabled=true", "node.sidecars.extraArgs.nodeDriverRegistrar={--v=9}"))
    assert containers(parts)[("csi-nfs-node", "node-driver-registrar")]["args"][-1] == "--v=9"


def the_snapshot_controller_runs_where_the_controller_does():
    def pod(*values):
        parts = parsed(rendered("externalSnapshotter.enabled=true", *values))
        return pods(parts)["snapshot-controller"]["spec"], pods(parts)["csi-nfs-controller"]["spec"]
    default, controller = pod()
    assert default["tolerations"] == controller["tolerations"]
    assert "podAntiAffinity" in default["affinity"]
    own, _ = pod("externalSnapshotter.tolerations[0].operator=Exists", "externalSnapshotter.nodeSelector.disk=fast")
    assert own["tolerations"] == [{"operator": "Exists"}] and own["nodeSelector"]["disk"] == "fast"


def an_update_of_the_node_plugin_can_wait_until_its_pod_is_deleted():
    def strategy(*values):
        [found] = [part["spec"]["updateStrategy"] for part in parsed(rendered(*values)) if part["kind"] == "DaemonSet"]
        return found
    assert strategy() == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}}
    assert strategy("node.updateStrategyType=OnDelete") == {"type": "OnDelete"}


def commands_of_the_driver_mount_where_its_container_can_be_written_to():
    parts = parsed(rendered("controller.workingMountDir=/work"))
    driver = containers(parts)[("csi-nfs-controller", "nfs")]
    assert {"name": "TMPDIR", "value": "/work"} in driver["env"]
    assert {"name": "exports", "mountPath": "/work"} in driver["volumeMounts"]


def the_notes_say_why_snapshots_are_off_and_how_to_test():
    with tempfile.TemporaryDirectory() as folder:
        copy = with_notes(folder)
        def notes(*values):
            return rendered(*values, chart=copy)
        assert "the cluster does not know VolumeSnapshots" in notes()
        off = notes("controller.enableSnapshotter=false")
        assert "as controller.enableSnapshotter=false asks" in off and "does not know" not in off
        assert "Snapshots are off" not in notes("controller.enableSnapshotter=true")
        assert "helm test csi" in notes("test.storageClass=nfs") and "helm test" not in notes()


def each_value_has_a_description_in_the_schema():
    def missing(path, schema):
        found = [".".join([*path, key]) for key, one in schema.get("properties", {}).items() if not one.get("description")]
        inner = [(key, one) for key, one in schema.get("properties", {}).items()]
        inner += [("[]", schema["items"])] if isinstance(schema.get("items"), dict) else []
        return found + [one for key, value in inner for one in missing([*path, key], value)]
    with open(os.path.join(CHART, "values.schema.json")) as file:
        schema = json.load(file)
    assert not missing([], schema), missing([], schema)


def a_chart_that_has_this_one_as_a_dependency_may_switch_it_by_enabled():
    assert rendered("enabled=true") == rendered()
    assert "enabled" in refused(IMAGE, "enabled=perhaps")
