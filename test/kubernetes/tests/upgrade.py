"""The driver's pods are replaced while other pods write: by `helm upgrade`, and by their end."""
from tests import api
from tests.objects import (CHART, bound, claim, cleared, driver_ready, export, helm, phase, pod, pods_ready,
                           succeeds)
from tests.runner import test

WRITER = "i=0; while i=$((i + 1)); echo $i >> /data/lines && sync /data/lines; do sleep 0.5; done; exit 1"


def written():
    with open(export(bound("upgrade")["metadata"]["name"], "lines")) as file:
        return [int(line) for line in file.read().split()]


def writes_meanwhile(work):
    """Runs `work` beside a pod that writes all the time, and makes sure that no write failed or was lost."""
    claim("upgrade", "nfs")
    bound("upgrade")
    pod("upgrade", WRITER, {"data": "upgrade"})
    phase("upgrade", "Running")
    api.wait("the first line", 60, lambda: written())
    work()
    before = len(written())
    api.wait("the writer to write on", 60, lambda: len(written()) > before + 5)
    assert api.get("Pod", "upgrade")["status"]["phase"] == "Running", api.log("upgrade")
    lines = written()
    assert lines == list(range(1, len(lines) + 1)), "a line is missing or double"
    with cleared("Pod upgrade", "PersistentVolumeClaim upgrade"):
        pass


@test
def no_write_fails_while_helm_upgrades_the_driver_and_snapshots_are_switched_on():
    before = {one["metadata"]["uid"] for label in ("csi-nfs-controller", "csi-nfs-node") for one in pods_ready(label)}
    def upgrade():
        helm("upgrade", "csi", CHART, "--set", "externalSnapshotter.enabled=true,log.level=debug")
        def replaced():
            pods = pods_ready("csi-nfs-controller") + pods_ready("csi-nfs-node")
            return len(pods) == 2 and not before & {one["metadata"]["uid"] for one in pods}
        api.wait("new pods of the driver", 240, replaced)
        driver_ready()
    writes_meanwhile(upgrade)


@test
def no_write_fails_while_the_driver_s_pods_are_killed():
    def kill():
        killed = pods_ready("csi-nfs-controller") + pods_ready("csi-nfs-node")
        for one in killed:
            api.delete("Pod", one["metadata"]["name"], "kube-system")
        for one in killed:
            api.gone("Pod", one["metadata"]["name"], "kube-system")
        driver_ready()
        # The new plugin unmounts what the old one mounted, and mounts on.
        succeeds("after-kill", "test -s /data/lines", {"data": "upgrade"})
    writes_meanwhile(kill)
