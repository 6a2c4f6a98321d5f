"""What is rendered is what the API server takes, in all releases that are supported."""
import os

from chart import EVERYTHING, NEWEST, OLDEST, TOP, parsed, rendered


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
