"""What the tests of the chart have in common: helm, and the types of Kubernetes."""
import functools
import json
import os
import re
import shutil
import subprocess
import tempfile

TOP = os.path.realpath(os.path.join(os.path.dirname(__file__), "../.."))
CHART = os.path.join(TOP, "charts/nfs-csi")
IMAGE = "image.nfs.repository=localhost/nfs-csi"
EVERYTHING = ("externalSnapshotter.enabled=true,attacher.enabled=true,controller.replicas=2,node.sidecars.enabled=true,"
              "serviceMonitor.enabled=true,prometheusRule.enabled=true,dashboard.enabled=true,networkPolicy.enabled=true,"
              "securityContextConstraints.enabled=true,volumeSnapshotClass.create=true,"
              "storageClass.create=true,storageClass.parameters.server=nas,storageClass.parameters.share=/a,"
              "controller.sidecars.metrics.enabled=true,"
              "feature.enableInlineVolume=true,inlineVolumes.allow={nas:/a,*:/b}")


def helm(*arguments):
    return subprocess.run(["helm", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)


def template(*values, release="csi", kubernetes="1.35.0", chart=CHART, given=None):
    """What helm makes of values in its own notation, and of those that are given as a dict."""
    sets = [word for value in values for word in ("--set", value)]
    sets += [word for key, value in (given or {}).items() for word in ("--set-json", f"{key}={json.dumps(value)}")]
    return helm("template", release, chart, "--namespace", "kube-system", "--kube-version", kubernetes, *sets)


def rendered(*values, **more):
    done = template(IMAGE, *values, **more)
    assert done.returncode == 0, done.stdout
    return done.stdout


def refused(*values, **more):
    """What helm says to values with which nothing is rendered."""
    done = template(*values, **more)
    assert done.returncode != 0, done.stdout
    return done.stdout


def with_notes(folder):
    """A copy of the chart that renders its notes as an object too: helm shows them only where it installs."""
    copy = shutil.copytree(CHART, os.path.join(folder, "nfs-csi"))
    with open(os.path.join(copy, "templates/notes.yaml"), "w") as file:
        file.write('kind: Notes\nmetadata:\n  name: |\n{{ include (print .Template.BasePath "/NOTES.txt") . | indent 4 }}\n')
    return copy


def objects(text):
    """Kind and name of all that was rendered."""
    found = [(re.search(r"^kind: (\S+)", part, re.M), re.search(r"^  name: (\S+)", part, re.M))
             for part in re.split(r"^---$", text, flags=re.M)]
    return [(kind[1], name[1]) for kind, name in found if kind and name]


# The releases of Kubernetes whose types read what is rendered, the oldest that is supported and the newest: their module
# files.
OLDEST, NEWEST = "kubernetes-1.30.mod", "go.mod"
GO = {**os.environ, "GOWORK": "off", "GOFLAGS": "-mod=readonly -buildvcs=false", "CGO_ENABLED": "0"}


def go(*arguments):
    done = subprocess.run(["go", *arguments], cwd=os.path.dirname(os.path.realpath(__file__)), env=GO, text=True,
                          stdout=subprocess.PIPE, check=True)
    return done.stdout.strip()


@functools.cache
def programs():
    return tempfile.TemporaryDirectory(prefix="nfs-csi-chart-")  # pylint: disable=consider-using-with # clean_up


def clean_up():
    programs().cleanup()


@functools.cache
def reader(modules):
    """The program that reads manifests (objects/main.go), with the types of a release."""
    program = os.path.join(programs().name, modules)
    go("build", f"-modfile={modules}", "-o", program, "./objects")
    return program


def parsed(text, modules=NEWEST):
    """All objects in a text. One that the API server would not take as it is, is an error."""
    done = subprocess.run([reader(modules)], input=text, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def pods(parts):
    """The pods' metadata and specifications, by the name of the Deployment or DaemonSet."""
    return {part["metadata"]["name"]: part["spec"]["template"] for part in parts if "template" in part.get("spec", {})}


def containers(parts):
    """The containers of all these pods, by pod and name."""
    return {(pod, one["name"]): one for pod, template in pods(parts).items() for one in template["spec"]["containers"]}
