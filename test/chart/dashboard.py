"""The dashboard: where it is, and that a Prometheus which scrapes a running driver answers each of its queries."""
import contextlib
import functools
import http.server
import json
import os
import re
import socket
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

from chart import CHART, TOP, parsed, refused, rendered

METRICS = os.path.join(os.path.dirname(os.path.realpath(__file__)), "metrics")
# What runs only with an NFS server or in a cluster has its metrics in metrics/, in the form in which it answers them. A
# controller without a server runs here.
SAMPLES = ("controller", "node", "agent", "kube", "kubelet")
OPENMETRICS, PLAIN = "application/openmetrics-text; version=1.0.0; charset=utf-8", "text/plain; version=0.0.4"
# What Grafana puts in for its variables.
VARIABLES = {"$instance": ".*", "$driver": "nfs.csi.k8s.io", "$__rate_interval": "1m"}
NAME = r"\b(?:nfs_csi|kube|kubelet)_[a-z_]+\b"
# How long anything here may take on a busy machine, in seconds.
DEADLINE = 120


@functools.cache
def _dashboard():
    with open(os.path.join(CHART, "dashboards/nfs-csi.json")) as file:
        return json.load(file)


def _targets():
    return [(panel["title"], target) for panel in _dashboard()["panels"] for target in panel.get("targets", [])]


def the_dashboard_is_a_config_map_where_it_is_wanted():
    def found(*values):
        return [part for part in parsed(rendered(*values)) if part["metadata"]["name"] == "csi-nfs-dashboard"]
    assert not found()
    [part] = found("dashboard.enabled=true")
    assert part["metadata"]["namespace"] == "kube-system" and part["metadata"]["labels"]["grafana_dashboard"] == "1", part["metadata"]
    assert {name: json.loads(text) for name, text in part["data"].items()} == {"nfs-csi.json": _dashboard()}
    [part] = found("dashboard.enabled=true", "dashboard.namespace=monitoring", "dashboard.labels.team=storage")
    assert part["metadata"]["namespace"] == "monitoring" and part["metadata"]["labels"]["team"] == "storage", part["metadata"]
    assert "metrics.enabled" in refused("image.nfs.repository=x", "dashboard.enabled=true", "metrics.enabled=false")


def the_dashboard_works_with_any_data_source():
    text = json.dumps(_dashboard())
    assert set(re.findall(r'"uid": "([^"]*)"', text)) == {"${datasource}"}
    assert "id" not in _dashboard() and "uid" not in _dashboard()
    assert {target["datasource"]["type"] for _, target in _targets()} == {"prometheus"}
    names = {variable["name"] for variable in _dashboard()["templating"]["list"]}
    assert names == {"datasource"} | {name[1:] for name in VARIABLES if "__" not in name}, names


def no_two_panels_are_in_one_place():
    taken = set()
    for panel in _dashboard()["panels"]:
        place = panel["gridPos"]
        own = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert place["x"] + place["w"] <= 24 and not own & taken, panel["title"]
        taken |= own
    numbers = [panel["id"] for panel in _dashboard()["panels"]]
    assert len(set(numbers)) == len(numbers)


def _free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _until(what, look):
    """Waits until `look` gives something, and gives that."""
    end = time.monotonic() + DEADLINE
    while True:
        with contextlib.suppress(OSError):
            found = look()
            if found:
                return found
        assert time.monotonic() < end, f"{what}: not within {DEADLINE} s"
        time.sleep(0.1)


def _get(address):
    with urllib.request.urlopen(address, timeout=DEADLINE) as answer:
        return answer.read().decode()


@contextlib.contextmanager
def _running(folder, name, *command):
    """A program that is ended afterwards. What it prints is shown where the test fails."""
    path = os.path.join(folder, f"{name}.log")
    with open(path, "w") as log, subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT) as process:
        try:
            yield
        except BaseException:
            with open(path) as file:
                print(f"{name}:\n{file.read()[-4000:]}")
            raise
        finally:
            process.terminate()
            try:
                process.wait(DEADLINE)
            except subprocess.TimeoutExpired:
                process.kill()


@contextlib.contextmanager
def _driver(folder):
    """A controller that has answered a call for a server which is not there. Gives the port of its metrics."""
    program = os.environ.get("E2E_DRIVER")
    assert program, "E2E_DRIVER is the path of the driver's program: run make chart"
    port, endpoint, exports = _free_port(), os.path.join(folder, "csi.sock"), os.path.join(folder, "exports")
    os.mkdir(exports)
    with _running(folder, "driver", program, "controller", f"--endpoint=unix://{endpoint}",
                  f"--metrics-address=127.0.0.1:{port}", f"--working-mount-dir={exports}"):
        _until("the driver's metrics", lambda: _get(f"http://127.0.0.1:{port}/readyz"))
        # DeleteVolumeRequest, of which the first field is the volume's id: in a message of gRPC.
        volume = b"127.0.0.1#export#pvc-1##"
        message = b"\x0a" + bytes([len(volume)]) + volume
        subprocess.run(["curl", "--silent", "--show-error", "--max-time", str(DEADLINE), "--http2-prior-knowledge", "--unix-socket",
                        endpoint, "--header", "content-type: application/grpc", "--header", "te: trailers", "--data-binary", "@-",
                        "http://localhost/csi.v1.Controller/DeleteVolume"],
                       input=b"\0" + len(message).to_bytes(4, "big") + message, stdout=subprocess.DEVNULL, check=True)
        yield port


@contextlib.contextmanager
def _samples():
    """Answers what is in metrics/. Gives its port."""
    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self):  # pylint: disable=invalid-name # http.server's name
            with open(os.path.join(METRICS, os.path.basename(self.path)), "rb") as file:
                content = file.read()
            self.send_response(200)
            self.send_header("Content-Type", OPENMETRICS if content.endswith(b"# EOF\n") else PLAIN)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):  # pylint: disable=arguments-differ
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server.server_port
        finally:
            server.shutdown()


@contextlib.contextmanager
def _prometheus(folder, targets):
    """A Prometheus that scrapes these: the port and the path of each, by name. Gives what asks its API."""
    jobs = [{"job_name": name, "metrics_path": path, "scrape_interval": "1s",
             "static_configs": [{"targets": [f"127.0.0.1:{port}"], "labels": {"instance": name}}]}
            for name, (port, path) in targets.items()]
    with open(os.path.join(folder, "prometheus.yaml"), "w") as file:
        json.dump({"scrape_configs": jobs}, file)  # JSON is YAML
    port = _free_port()
    api = f"http://127.0.0.1:{port}"

    def ask(path, **parameters):
        try:
            answer = json.loads(_get(f"{api}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"))
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from error
        assert answer["status"] == "success", answer
        return answer["data"]

    with _running(folder, "prometheus", "prometheus", f"--config.file={folder}/prometheus.yaml",
                  f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{port}"):
        _until("Prometheus", lambda: _get(f"{api}/-/ready"))
        yield ask


def each_query_is_answered_by_a_prometheus_that_scrapes_the_driver():
    queries = []
    for title, target in _targets():
        query = target["expr"]
        for name, value in VARIABLES.items():
            query = query.replace(name, value)
        assert "$" not in query.replace('"$1"', ""), query
        queries.append((title, query))
    with tempfile.TemporaryDirectory(prefix="nfs-csi-dashboard-") as folder, _driver(folder) as driver, _samples() as samples:
        targets = {"driver": (driver, "/metrics"), **{name: (samples, f"/{name}.txt") for name in SAMPLES}}
        with _prometheus(folder, targets) as ask:
            def unanswered():
                return [query for query in queries if not ask("query", query=query[1])["result"]]
            # A rate needs two samples. A query that is wrong fails at once.
            end = time.monotonic() + DEADLINE
            while left := unanswered():
                assert time.monotonic() < end, f"without an answer: {left}"
                time.sleep(0.5)
            states = {target["labels"]["job"]: target["lastError"] for target in ask("targets")["activeTargets"]}
            assert states == dict.fromkeys(targets, ""), states
            scraped = set(ask("label/__name__/values"))
            failed = ask("query", query='nfs_csi_call_duration_seconds_count{job="driver",method="DeleteVolume",code!="OK"}')
            assert failed["result"], "the driver's own call is not among the metrics"
    # Also those that an "or" makes up for.
    [rule] = [part for part in parsed(rendered("prometheusRule.enabled=true")) if part["kind"] == "PrometheusRule"]
    texts = [query for _, query in queries] + [one["expr"] for one in rule["spec"]["groups"][0]["rules"]]
    texts += [variable.get("definition", "") for variable in _dashboard()["templating"]["list"]]
    asked = {name for text in texts for name in re.findall(NAME, text)}
    assert asked and asked <= scraped, asked - scraped


def the_metrics_of_these_tests_are_all_of_the_driver_s():
    """Each family is in src/metrics.rs with this kind, and each metric in the documentation."""
    with open(os.path.join(TOP, "src/metrics.rs")) as file:
        source = file.read()
    with open(os.path.join(TOP, "docs/metrics.md")) as file:
        documented = set(re.findall(r"`(nfs_csi_[a-z_]+)`", file.read()))
    kinds = {name: kind.lower() for name, kind in re.findall(r'name: "(nfs_csi_[a-z_]+)",.*?kind: Kind::(\w+)', source, re.S)}
    families, there = set(re.findall(r'"(nfs_csi_[a-z_]+)"', source)), set()
    for name in SAMPLES:
        with open(os.path.join(METRICS, f"{name}.txt")) as file:
            found = re.findall(r"^# TYPE (nfs_csi_[a-z_]+) (\w+)$", file.read(), re.M)
        for family, kind in found:
            assert family in families and kinds.get(family, kind) == kind, (name, family, kind)
            metric = family + {"counter": "_total", "info": "_info"}.get(kind, "")
            assert metric in documented, metric
            there.add(family)
    assert there == families, families - there
