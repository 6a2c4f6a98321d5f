"""What is rendered is what the API server takes, in all releases that are supported, and the snapshot API is the published one."""
import os

from chart import EVERYTHING, NEWEST, OLDEST, TOP, go, parsed, rendered

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
    folder = os.path.join(go("list", "-m", "-f", "{{.Dir}}", PUBLISHED), "config/crd")
    ours = _definitions(rendered("externalSnapshotter.enabled=true", kubernetes="1.30.0"))
    for name in ("volumesnapshots", "volumesnapshotcontents", "volumesnapshotclasses"):
        with open(os.path.join(folder, f"snapshot.storage.k8s.io_{name}.yaml")) as file:
            [(full, theirs)] = _definitions(file.read()).items()
        mine = ours[full]
        approved = "api-approved.kubernetes.io"
        assert mine["metadata"]["annotations"][approved] == theirs["metadata"]["annotations"][approved], name
        assert mine["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep", name
        # A version that is not served serves nobody: a new cluster has stored nothing of it.
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
