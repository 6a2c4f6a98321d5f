"""What explains a failure: pods, claims, events, and the driver's own log."""
import subprocess

from tests import api

_LINES = 40
_told = set()


def write(name):
    """Prints the short form for the first failures, and puts the long one into the folder of logs."""
    with open(f"/run/out/{name.replace('::', '.')}.txt", "w") as file:
        for command in (["kubectl", "get", "pods,pvc,pv,volumesnapshots,volumeattachments", "-A", "-o", "wide"],
                        ["kubectl", "describe", "pods", "-A"],
                        ["kubectl", "get", "events", "-A", "--sort-by=.lastTimestamp"],
                        ["dmesg"]):
            file.write(f"--- {' '.join(command)}\n")
            file.flush()
            subprocess.run(command, stdout=file, stderr=file, check=False)
    if len(_told) >= 3:
        return
    _told.add(name)
    print("--- pods that are not ready, and the last events")
    for pod in api.items("Pod", None):
        conditions = {one["type"]: one["status"] for one in pod["status"].get("conditions", [])}
        if conditions.get("Ready") != "True" and pod["status"].get("phase") != "Succeeded":
            states = [one.get("state") for one in pod["status"].get("containerStatuses", [])]
            print(pod["metadata"]["namespace"], pod["metadata"]["name"], pod["status"].get("phase"), states)
    events = sorted(api.items("Event", None), key=lambda one: one["metadata"]["creationTimestamp"])
    for event in events[-25:]:
        about = event["involvedObject"]
        print(event["type"], event["reason"], about.get("kind"), about.get("name"), event.get("message", "")[:400])
    print("--- the driver's log")
    for pod in api.items("Pod", "kube-system"):
        if "csi-nfs" in pod["metadata"]["name"]:
            for container in pod["spec"]["containers"]:
                log = api.log(pod["metadata"]["name"], "kube-system", container["name"], _LINES)
                print(f"[{pod['metadata']['name']} {container['name']}]\n{log}")
    print("---", flush=True)
