"""The API server, by HTTP: kubectl's start alone takes more than a second in the guest."""
import http.client
import json
import os
import ssl
import threading
import time

_SERVER = os.environ["E2E_API"]
_CONTEXT = ssl._create_unverified_context()  # pylint: disable=protected-access # it makes its own certificate
_connections = threading.local()

_KINDS = {
    "ConfigMap": ("api/v1", "configmaps", True),
    "Event": ("api/v1", "events", True),
    "PersistentVolume": ("api/v1", "persistentvolumes", False),
    "PersistentVolumeClaim": ("api/v1", "persistentvolumeclaims", True),
    "Pod": ("api/v1", "pods", True),
    "DaemonSet": ("apis/apps/v1", "daemonsets", True),
    "Deployment": ("apis/apps/v1", "deployments", True),
    "StatefulSet": ("apis/apps/v1", "statefulsets", True),
    "Lease": ("apis/coordination.k8s.io/v1", "leases", True),
    "CustomResourceDefinition": ("apis/apiextensions.k8s.io/v1", "customresourcedefinitions", False),
    "CSIDriver": ("apis/storage.k8s.io/v1", "csidrivers", False),
    "CSINode": ("apis/storage.k8s.io/v1", "csinodes", False),
    "CSIStorageCapacity": ("apis/storage.k8s.io/v1", "csistoragecapacities", True),
    "StorageClass": ("apis/storage.k8s.io/v1", "storageclasses", False),
    "VolumeAttributesClass": ("apis/storage.k8s.io/v1", "volumeattributesclasses", False),
    "VolumeAttachment": ("apis/storage.k8s.io/v1", "volumeattachments", False),
    "VolumeSnapshot": ("apis/snapshot.storage.k8s.io/v1", "volumesnapshots", True),
    "VolumeSnapshotContent": ("apis/snapshot.storage.k8s.io/v1", "volumesnapshotcontents", False),
    "VolumeSnapshotClass": ("apis/snapshot.storage.k8s.io/v1", "volumesnapshotclasses", False),
}
NAMESPACE = "default"


class Refused(Exception):
    """The API server's no."""

    def __init__(self, status, message):
        super().__init__(f"{status}: {message}")
        self.status = status


def _path(kind, namespace, name=None):
    group, plural, namespaced = _KINDS[kind]
    inside = f"/namespaces/{namespace}" if namespaced and namespace else ""
    return f"/{group}{inside}/{plural}" + (f"/{name}" if name else "")


def call(method, path, body=None, kind="application/json"):
    """One call; the answer as text."""
    data = None if body is None else json.dumps(body)
    for attempt in range(5):
        try:
            connection = getattr(_connections, "one", None)
            if connection is None:
                connection = http.client.HTTPSConnection(_SERVER, 443, context=_CONTEXT, timeout=60)
                _connections.one = connection
            connection.request(method, path, data, {"Authorization": "Bearer admin", "Content-Type": kind})
            answer = connection.getresponse()
            text = answer.read().decode(errors="replace")
            break
        except (http.client.HTTPException, OSError):
            # A kept connection that the server has closed, or a server that is busy.
            _connections.one = None
            if attempt == 4:
                raise
            time.sleep(0.5 * attempt)
    if answer.status >= 400:
        try:
            text = json.loads(text)["message"]
        except (ValueError, KeyError):
            pass
        raise Refused(answer.status, text)
    return text


def get(kind, name, namespace=NAMESPACE):
    """An object; none if there is none."""
    try:
        return json.loads(call("GET", _path(kind, namespace, name)))
    except Refused as refused:
        if refused.status == 404:
            return None
        raise


def items(kind, namespace=NAMESPACE, selector=""):
    """All objects of a kind; with no namespace those of all namespaces."""
    return json.loads(call("GET", _path(kind, namespace) + (f"?labelSelector={selector}" if selector else "")))["items"]


def create(thing):
    kind = thing["kind"]
    group = _KINDS[kind][0]
    whole = {"apiVersion": group.removeprefix("apis/").removeprefix("api/"), **thing}
    namespace = thing["metadata"].get("namespace", NAMESPACE)
    return json.loads(call("POST", _path(kind, namespace), whole))


def delete(kind, name, namespace=NAMESPACE):
    """Asks for an object's end, and does not wait for it. One that is gone already is fine."""
    body = {"propagationPolicy": "Background"}
    if kind == "Pod":
        body["gracePeriodSeconds"] = 1
    try:
        call("DELETE", _path(kind, namespace, name), body)
    except Refused as refused:
        if refused.status != 404:
            raise


def patch(kind, name, change, namespace=NAMESPACE):
    return json.loads(call("PATCH", _path(kind, namespace, name), change, "application/merge-patch+json"))


def log(pod, namespace=NAMESPACE, container=None, lines=200):
    """The end of a container's log, or why there is none."""
    query = f"?tailLines={lines}" + (f"&container={container}" if container else "")
    try:
        return call("GET", _path("Pod", namespace, pod) + "/log" + query)
    except Refused as refused:
        return f"(no log: {refused})"


def wait(what, seconds, condition, every=1):
    """Polls until the condition gives something; fails with what was waited for."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"timed out after {seconds} s waiting for {what() if callable(what) else what}")
        time.sleep(every)


def gone(kind, name, namespace=NAMESPACE, seconds=90):
    wait(f"the end of {kind} {name}", seconds, lambda: get(kind, name, namespace) is None)
