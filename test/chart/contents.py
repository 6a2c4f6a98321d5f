"""What is rendered is what the API server takes, in all releases that are supported, and the snapshot API is the published one."""
import os
import re

from chart import EVERYTHING, NEWEST, OLDEST, TOP, containers, go, parsed, refused, rendered

PUBLISHED = "github.com/kubernetes-csi/external-snapshotter/client/v8"


def all_that_is_rendered_is_valid_on_every_release_that_is_supported():
    for values in ((), (EVERYTHING,), ("podMonitor.enabled=true", "controller.storageCapacity=true")):
        texts = {rendered(*values, kubernetes=f"1.{minor}.0") for minor in range(30, 38)}
        assert len(texts) == 1, "a release gets other objects: read them all"
        for modules in (OLDEST, NEWEST):
            assert len(parsed(*texts, modules)) > 5
    for name in sorted(os.listdir(os.path.join(TOP, "deploy"))):
        if name.endswith(".yaml"):
            with open(os.path.join(TOP, "deploy", name)) as file:
                assert parsed(file.read(), OLDEST), name


def a_field_that_is_unknown_or_there_twice_and_a_label_that_is_none_are_found():
    for wrong in ("spec: {clusterIp: None}", "spec: {clusterIP: None, clusterIP: None}", "kind: Servise",
                  "metadata: {name: x, labels: {version: 1.0.0+build}}"):
        service = "apiVersion: v1\nkind: Service\n"
        assert parsed(service)
        try:
            parsed(f"{service}{wrong}\n")
        except AssertionError:
            continue
        raise AssertionError(f"{wrong}: accepted")


def _definitions(text):
    return {part["metadata"]["name"]: part for part in parsed(text)}


def _without_words(value):
    """A schema without what is for people only. A field may have the name of a word for people: then it is a schema."""
    if isinstance(value, list):
        return [_without_words(one) for one in value]
    if isinstance(value, dict):
        return {key: _without_words(one) for key, one in value.items()
                if not (key in ("description", "message") and isinstance(one, str))}
    return value


def the_snapshot_api_is_the_published_one_in_all_but_its_words():
    go("mod", "download", PUBLISHED)
    folder = os.path.join(go("list", "-m", "-f", "{{.Dir}}", PUBLISHED), "config/crd")
    ours = _definitions(rendered("externalSnapshotter.enabled=true", kubernetes="1.30.0"))
    for name in ("volumesnapshots", "volumesnapshotcontents", "volumesnapshotclasses"):
        with open(os.path.join(folder, f"snapshot.storage.k8s.io_{name}.yaml")) as file:
            [(full, theirs)] = _definitions(file.read()).items()
        mine = ours[full]
        approved = "api-approved.kubernetes.io"
        assert mine["metadata"]["annotations"][approved] == theirs["metadata"]["annotations"][approved], name
        assert mine["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep", name
        # A version that is not served is of no use to a new cluster, which has stored nothing of it.
        theirs["spec"]["versions"] = [one for one in theirs["spec"]["versions"] if one["served"] or one["storage"]]
        assert _without_words(mine["spec"]) == _without_words(theirs["spec"]), name


def each_field_of_the_snapshot_api_has_a_description():
    def missing(path, schema):
        found = [] if "description" in schema or path[-1:] == ["metadata"] else [".".join(path)]
        return found + [one for key, field in schema.get("properties", {}).items() for one in missing([*path, key], field)]
    for name, part in _definitions(rendered("externalSnapshotter.enabled=true")).items():
        if part["kind"] == "CustomResourceDefinition":
            [version] = part["spec"]["versions"]
            assert not missing([name], version["schema"]["openAPIV3Schema"])


def the_snapshot_api_is_left_out_where_that_is_asked_for():
    text = rendered("externalSnapshotter.enabled=true", "externalSnapshotter.customResourceDefinitions.enabled=false")
    assert "CustomResourceDefinition" not in text and "name: snapshot-controller\n" in text


def the_provisioner_protects_snapshots_that_are_being_restored_where_there_are_any():
    def rules(*values):
        [role] = [part for part in parsed(rendered(*values)) if part["kind"] == "ClusterRole"
                  and part["metadata"]["name"] == "csi-nfs-controller-provisioner"]
        return {resource: rule["verbs"] for rule in role["rules"] for resource in rule["resources"]
                if rule["apiGroups"] == ["snapshot.storage.k8s.io"]}
    assert not rules("controller.enableSnapshotter=false")
    assert rules("controller.enableSnapshotter=true") == {"volumesnapshots": ["get", "list", "watch", "update"],
                                                          "volumesnapshotcontents": ["get"]}


def alerts_ask_for_metrics_that_the_docs_have():
    with open(os.path.join(TOP, "docs/metrics.md")) as file:
        text = file.read()
    [rule] = [part for part in parsed(rendered("prometheusRule.enabled=true")) if part["kind"] == "PrometheusRule"]
    [group] = rule["spec"]["groups"]
    documented = set(re.findall(r"^    (\S.*)$", text, re.M))
    assert group["rules"] and {one["expr"] for one in group["rules"]} <= documented


def monitors_need_the_metrics_and_there_is_one_kind_of_them():
    for monitor in ("serviceMonitor", "podMonitor", "prometheusRule"):
        assert "metrics.enabled" in refused("image.nfs.repository=x", f"{monitor}.enabled=true", "metrics.enabled=false")
    assert "choose one" in refused("image.nfs.repository=x", "serviceMonitor.enabled=true", "podMonitor.enabled=true")


def each_sidecar_has_a_port_for_its_metrics_where_they_are_wanted():
    def ports(*values):
        parts = parsed(rendered("attacher.enabled=true", "controller.enableSnapshotter=true", *values))
        found = {name: one["ports"][0] for (pod, name), one in containers(parts).items()
                 if pod == "csi-nfs-controller" and name != "nfs" and "ports" in one}
        for name, port in found.items():
            [one] = [one for (_, key), one in containers(parts).items() if key == name]
            assert f"--http-endpoint=:{port['containerPort']}" in one["args"], one
            assert one["livenessProbe"]["httpGet"] == {"path": "/healthz/leader-election", "port": port["containerPort"]}
        monitored = [part for part in parts if part["kind"] == "PodMonitor" and part["metadata"]["name"] == "csi-nfs-controller"]
        return {name: port["containerPort"] for name, port in found.items()}, monitored
    assert ports() == ({}, [])
    found, [monitor] = ports("controller.sidecars.metrics.enabled=true", "podMonitor.enabled=true")
    assert found == {"csi-provisioner": 29660, "csi-resizer": 29661, "csi-snapshotter": 29662, "csi-attacher": 29663}
    names = {one["port"] for one in monitor["spec"]["podMetricsEndpoints"]}
    assert names == {"metrics", "provisioner", "resizer", "snapshotter", "attacher"}, names


def a_class_without_a_server_or_a_share_is_refused_with_what_to_set():
    image, create = "image.nfs.repository=x", "storageClass.create=true"
    assert "storageClass.parameters.server" in refused(image, create)
    assert "storageClass.parameters.share" in refused(image, create, "storageClass.parameters.Server=nas")
    assert "the StorageClass fast has no share" in refused(image, "storageClasses[0].name=fast", "storageClasses[0].parameters.server=nas")


def helm_test_has_a_volume_of_the_class_that_is_named_or_made():
    def tried(*values):
        return [part["spec"]["volumes"][0]["ephemeral"]["volumeClaimTemplate"]["spec"]["storageClassName"]
                for part in parsed(rendered(*values)) if part["kind"] == "Pod"]
    made = ("storageClass.create=true", "storageClass.parameters.server=nas", "storageClass.parameters.share=/a")
    assert not tried()
    assert tried(*made) == ["nfs-csi"]
    assert tried(*made, "test.storageClass=other") == ["other"]
