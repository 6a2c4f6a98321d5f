"""The server map: the ConfigMap has what the values say, both parts read it, and what is wrong is refused."""
import json
import os

from chart import IMAGE, TOP, containers, parsed, pods, refused, rendered

ID = "6f1c2b7a90d34e58b1c06a7d2e9f4835"
SERVERS = {
    "nas1": {"address": ["nfs-a.example.com", "10.1.0.5"], "was": ["10.0.0.5", "old-nas"], "mountOptions": ["nfsvers=4.2", "hard"],
             "exports": {"/export": {"id": ID}, "/": {"id": ID[::-1]}}},
    "fd00::1": {"address": "fe80::1%eth0", "was": ["[fd00::2]"]},
    "nas2.example.com": {}}
PARTS = {("csi-nfs-controller", "nfs"), ("csi-nfs-node", "nfs")}


def _config_map(parts, name="csi-nfs-servers"):
    [found] = [part for part in parts if part["kind"] == "ConfigMap" and part["metadata"]["name"] == name]
    return found


def _map(parts):
    [(name, text)] = _config_map(parts)["data"].items()
    assert name == "servers.json" and text.endswith("}\n"), text
    return text, json.loads(text)


def the_server_map_is_what_the_values_say_and_empty_by_default():
    text, content = _map(parsed(rendered(given={"servers": SERVERS})))
    assert content == {"servers": SERVERS} and f'        "/export": {{\n          "id": "{ID}"\n' in text, text
    # null: as after an upgrade that reuses the values of a chart which did not have it.
    for values in ((), ("servers=null",)):
        assert _map(parsed(rendered(*values)))[1] == {"servers": {}}
    assert _config_map(parsed(rendered()))["metadata"]["namespace"] == "kube-system"


def both_parts_have_the_server_map_as_a_directory_and_wait_for_it():
    more = ("fullnameOverride=files", "attacher.enabled=true", "node.sidecars.enabled=true")
    for values, prefix in (((), "csi-nfs"), (more, "files")):
        parts = parsed(rendered(*values))
        name = _config_map(parts, f"{prefix}-servers")["metadata"]["name"]
        mounts = {key: mount for key, one in containers(parts).items() for mount in one["volumeMounts"] if mount["name"] == "servers"}
        assert set(mounts) == {(f"{prefix}-controller", "nfs"), (f"{prefix}-node", "nfs")}, mounts
        for (pod, _), mount in mounts.items():
            assert mount == {"name": "servers", "mountPath": "/etc/nfs-csi", "readOnly": True}, mount
            assert {"name": "servers", "configMap": {"name": name}} in pods(parts)[pod]["spec"]["volumes"], pod


def a_change_of_the_server_map_restarts_no_pod():
    assert pods(parsed(rendered(given={"servers": SERVERS}))) == pods(parsed(rendered()))


def a_server_map_that_is_wrong_is_refused_at_the_value_that_is_wrong():
    for wrong, place in (
            ([], "'/servers': got array"), ({"nas:/export": {}}, "propertyName 'nas:/export'"), ({"": {}}, "propertyName ''"),
            ({"nas1": "10.0.0.5"}, "'/servers/nas1': got string"), ({"nas1": {"adress": "nas"}}, "'/servers/nas1': additional properties 'adress'")):
        assert place in refused(IMAGE, given={"servers": wrong}), (wrong, place)
    for key, wrong, place in (
            ("address", 7, ""), ("address", "", ""), ("address", "nas:/export", ""), ("address", [], ""), ("address", ["nas", 7], "/1"),
            ("was", "old-nas", ""), ("was", [7], "/0"), ("was", ["nas", "old nas"], "/1"),
            ("mountOptions", "hard", ""), ("mountOptions", [True], "/0"), ("mountOptions", ["hard", ""], "/1"),
            ("exports", ["/export"], ""), ("exports", {"/export": ID}, "/~1export"), ("exports", {"/export": {}}, "/~1export"),
            ("exports", {"/export": {"id": ID, "uuid": ID}}, "/~1export"),
            *(("exports", {"/export": {"id": one}}, "/~1export/id") for one in (ID[1:], f"{ID}0", ID.upper(), f"x{ID[1:]}", 7))):
        assert f"at '/servers/nas1/{key}{place}': " in refused(IMAGE, given={"servers": {"nas1": {key: wrong}}}), (key, wrong)
    path = {"nas1": {"exports": {"export": {"id": ID}}}}
    assert "propertyName 'export'" in refused(IMAGE, given={"servers": path})


def a_name_that_is_given_twice_in_the_server_map_is_refused():
    for servers in ({"nas1": {"was": ["old-nas"]}, "nas2": {"was": ["old-nas"]}}, {"nas1": {"was": ["old-nas"]}, "old-nas": {}},
                    {"nas1": {"was": ["old-nas", "Old-NAS."]}}, {"old-nas": {"was": ["old-nas"]}},
                    {"nas1": {"was": ["[fd00::1]"]}, "fd00::1": {}}):
        said = refused(IMAGE, given={"servers": servers})
        name = "fd00::1" if "fd00::1" in servers else "old-nas"
        assert f"servers: {name} is a name of" in said and "is given once" in said, said
    # An address is no name: two servers may be at one.
    rendered(given={"servers": {"nas1": {"address": "10.0.0.5"}, "nas2": {"address": "10.0.0.5"}}})


def the_plain_manifests_have_an_empty_server_map_that_the_pods_mount():
    for name in ("nfs-csi.yaml", "nfs-csi-snapshot.yaml"):
        with open(os.path.join(TOP, "deploy", name)) as file:
            parts = parsed(file.read())
        assert _map(parts)[1] == {"servers": {}}
        # By these uninstall-driver.sh finds it.
        labels = _config_map(parts)["metadata"]["labels"]
        assert labels["app.kubernetes.io/name"] == labels["app.kubernetes.io/instance"] == "nfs-csi", labels
        mounted = {key for key, one in containers(parts).items() for mount in one["volumeMounts"] if mount["name"] == "servers"}
        assert mounted == PARTS, mounted
