"""The alerts, tried by promtool on the metrics in metrics/: each fires on its fault alone, and none on a healthy hour."""
import functools
import json
import os
import re
import subprocess
import tempfile

from chart import parsed, rendered

METRICS = os.path.join(os.path.dirname(os.path.realpath(__file__)), "metrics")
# What Prometheus adds to the metrics of each: the file in metrics/, and the labels.
TARGETS = {"controller": {"job": "csi-nfs-controller", "instance": "10.0.0.1:29652"},
           "node": {"job": "csi-nfs-node", "instance": "10.0.0.2:29653"},
           "agent": {"job": "quota-agent", "instance": "nas:9809"},
           "kube": {"job": "kube-state-metrics", "instance": "10.0.0.3:8080"},
           "kubelet": {"job": "kubelet", "instance": "10.0.0.2:10250"}}
# Minutes: when a fault begins, and until when there are metrics.
BEGIN, END = 10, 540
NODE, CONTROLLER, AGENT = (TARGETS[name]["instance"] for name in ("node", "controller", "agent"))
EXPORT = {"export": "nas:/export"}
CLAIM = {"namespace": "shop", "persistentvolumeclaim": "data"}


def _turns(healthy, faulty):
    """A metric that has one value and then another."""
    return f"{healthy}+0x{BEGIN - 1} {faulty}+0x{END}"


def _grows(first, by):
    """A metric that grows each minute, from when the fault begins."""
    return f"{first}+0x{BEGIN - 1} {first}+{by}x{END}"


def _appears(by):
    """A counter that is not there before the first of what it counts."""
    return f"_x{BEGIN} 1+{by}x{END}"


def _failing(method, code):
    return f'nfs_csi_call_duration_seconds_count{{method="{method}",code="{code}"}}'


# By alert: what is other than in a healthy hour, as promtool has series of values, and the labels of the alert.
FAULTS = {
    "NotRegistered": ({"node nfs_csi_registered": _turns(1, 0)}, {"instance": NODE}),
    "NodePodsNotReady": ({'kube kube_daemonset_status_number_ready{namespace="kube-system",daemonset="csi-nfs-node"}': _turns(3, 2)},
                         {"namespace": "kube-system", "daemonset": "csi-nfs-node"}),
    "ControllerDown": (
        {'kube kube_deployment_status_replicas_available{namespace="kube-system",deployment="csi-nfs-controller"}': _turns(1, 0)},
        {"namespace": "kube-system", "deployment": "csi-nfs-controller"}),
    "ServerRefused": ({'node nfs_csi_server_refused{server="nas"}': _turns(0, 1)}, {"instance": NODE, "server": "nas"}),
    "ServerMapRefused": ({"node nfs_csi_server_map_refused": _turns(0, 1)}, {"instance": NODE}),
    "NodeCannotMount": ({f'node {_failing("NodePublishVolume", "UNAVAILABLE")}': _appears(2)},
                        {"instance": NODE, "code": "UNAVAILABLE"}),
    "CallsFailing": ({f'controller {_failing("CreateVolume", "RESOURCE_EXHAUSTED")}': _appears(1)},
                     {"instance": CONTROLLER, "method": "CreateVolume", "code": "RESOURCE_EXHAUSTED"}),
    "ExportCallsHang": ({'controller nfs_csi_export_calls_hanging{server="nas"}': _turns(0, 4)},
                        {"instance": CONTROLLER, "server": "nas"}),
    "WorkersStuck": ({"node nfs_csi_worker_processes_stuck": _turns(0, 1)}, {"instance": NODE}),
    "FileSystemsDetached": ({'node nfs_csi_detached_file_systems{server="nas"}': _turns(0, 1)}, {"instance": NODE, "server": "nas"}),
    "VolumeNearlyFull": ({'kubelet kubelet_volume_stats_available_bytes{namespace="shop",persistentvolumeclaim="data"}':
                          _turns(6442450944, 536870912)}, CLAIM),
    "VolumeFewInodes": ({'kubelet kubelet_volume_stats_inodes_free{namespace="shop",persistentvolumeclaim="data"}':
                         _turns(61000, 600)}, CLAIM),
    "TrashStuck": ({'controller nfs_csi_trash_stuck_entries{export="nas:/export"}': _turns(0, 2)}, EXPORT),
    "TrashGrowing": ({'controller nfs_csi_trash_entries{export="nas:/export"}': _grows(40, 1)}, EXPORT),
    "StagingGrowing": ({'controller nfs_csi_staging_entries{export="nas:/export"}': _grows(1, 1)}, EXPORT),
    "VolumesUnenforced": ({'controller nfs_csi_volumes_unenforced{export="nas:/export"}': _turns(0, 3)}, EXPORT),
    "QuotaAgentSilent": ({"agent up": _turns(1, 0), "agent *": "gone"}, {"job": "quota-agent", "instance": AGENT}),
    "QuotaAgentFails": ({"agent nfs_csi_quota_errors_total": _grows(0, 1)}, {"instance": AGENT}),
}
# How long the fault is there before the alert is pending, in minutes: what grows is compared with six hours before.
SLOW = {"TrashGrowing": 350, "StagingGrowing": 350}


def _labelled(series, labels):
    """A series with more labels."""
    name, _, own = series.rstrip("}").partition("{")
    added = ",".join(f'{key}="{value}"' for key, value in labels.items())
    return f"{name}{{{own + ',' if own else ''}{added}}}"


def _samples(target):
    """What a target's metrics are in a healthy hour: the series and the values, by the series without its target."""
    with open(os.path.join(METRICS, f"{target}.txt")) as file:
        lines = re.findall(r"^([a-z_]+(?:\{.*\})?) (\S+)$", file.read(), re.M)
    found = {"up": f"1+0x{END}"}
    for series, value in lines:
        is_counter = re.match(r"[a-z_]+_(total|count|sum|bucket)(\{|$)", series)
        is_fault = re.search("errors|refused|failures|timeouts|killed", series)
        found[series] = f"{value}+{1 if is_counter and not is_fault else 0}x{END}"
    return found


def _input(changes):
    """All series with what a fault changes, as promtool takes them."""
    values = {(target, series): value for target in TARGETS for series, value in _samples(target).items()}
    for name, value in changes.items():
        target, series = name.split(" ", 1)
        if value == "gone":
            for key in values:
                if key[0] == target and key[1] != "up":
                    values[key] = f"{values[key].split('+')[0]}+0x{BEGIN - 1} stale"
        else:
            values[target, series] = value
    return [{"series": _labelled(series, TARGETS[target]), "values": value} for (target, series), value in values.items()]


@functools.cache
def _rules():
    [rule] = [part for part in parsed(rendered("prometheusRule.enabled=true")) if part["kind"] == "PrometheusRule"]
    return rule["spec"]


def _promtool(rules, *arguments, tests=None):
    with tempfile.TemporaryDirectory() as folder:
        # JSON is YAML.
        for name, content in (("rules.yaml", rules), ("tests.yaml", tests)):
            with open(os.path.join(folder, name), "w") as file:
                json.dump(content, file)
        done = subprocess.run(["promtool", *arguments, "tests.yaml" if tests else "rules.yaml"], cwd=folder, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    assert done.returncode == 0, done.stdout


def _tried(*tests):
    _promtool(_rules(), "test", "rules", tests={"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": [
        {"interval": "1m", **test} for test in tests]})


def _minutes(text):
    return int(text[:-1]) * {"m": 1, "h": 60}[text[-1]]


def promtool_takes_the_alerts():
    for values in ((), ("driver.name=other.example.com", "fullnameOverride=other")):
        [rule] = [part for part in parsed(rendered("prometheusRule.enabled=true", *values)) if part["kind"] == "PrometheusRule"]
        _promtool(rule["spec"], "check", "rules", "--lint=all", "--lint-fatal")


def each_alert_has_a_time_a_severity_and_what_to_do():
    for rule in _rules()["groups"][0]["rules"]:
        assert rule["for"] and rule["labels"]["severity"] in ("warning", "critical"), rule
        assert set(rule["annotations"]) == {"summary", "description"}, rule
        assert "://" not in "".join(rule["annotations"].values()), rule


def each_alert_fires_on_its_fault_and_no_other_does():
    rules = {rule["alert"].removeprefix("NfsCsi"): rule for rule in _rules()["groups"][0]["rules"]}
    assert set(rules) == set(FAULTS), set(rules) ^ set(FAULTS)
    tests = []
    for name, (changes, labels) in FAULTS.items():
        rule = rules[name]
        alert, pending = {**labels, **rule["labels"]}, BEGIN + SLOW.get(name, 0) + _minutes(rule["for"])
        # The annotations name only labels that the alert has.
        annotations = {key: re.sub(r"\{\{ \$labels\.([a-z]+) \}\}", lambda found, labels=labels: labels[found[1]], text)
                       for key, text in rule["annotations"].items()}
        fired = _labelled(f'ALERTS{{alertname="NfsCsi{name}",alertstate="firing"}}', alert)
        firing = 'ALERTS{alertstate="firing"}'
        tests.append({
            "input_series": _input(changes),
            "alert_rule_test": [{"eval_time": f"{pending + 20}m", "alertname": f"NfsCsi{name}",
                                 "exp_alerts": [{"exp_labels": alert, "exp_annotations": annotations}]}],
            "promql_expr_test": [
                {"expr": firing, "eval_time": f"{pending - 1}m", "exp_samples": []},
                {"expr": firing, "eval_time": f"{pending + 20}m", "exp_samples": [{"labels": fired, "value": 1}]}]})
    _tried(*tests)


def a_healthy_hour_has_no_alert():
    _tried({"input_series": _input({}), "promql_expr_test": [
        {"expr": "count_over_time(ALERTS[1h])", "eval_time": "1h", "exp_samples": []},
        {"expr": "count_over_time(ALERTS[9h])", "eval_time": "9h", "exp_samples": []}]})
