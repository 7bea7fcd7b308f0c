"""Metrics for Prometheus: one table, which the documents show, the ports export and the dashboard asks for."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import socket
import struct
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from fanin.emulation.processes import free_port
from fanin.errors import ConfigurationError
from fanin.host.session.exported import EXPORTED
from fanin.host.session.joining import JoinTerms
from fanin.host.session.session import Session
from fanin.options import Options
from fanin.protocol import control
from fanin.watching.exporter import Exporter, address_of
from fanin.watching.metrics import METRICS, of_switch
from tests.support.controllers import World, join
from tests.support.processes import DEADLINE_S, until
from tests.support.repository import ROOT
from tests.support.services import a_service
from tests.support.services import address_of as address_of_service

pytest.importorskip("prometheus_client", reason="needs prometheus_client: pip install 'fanin[metrics]'")

PROMETHEUS = shutil.which("prometheus")
BASE_UNITS = ("seconds", "bytes", "packets", "info", "jobs", "ranks", "suspected")
"""Ends of names of gauges and histograms: a unit, or the things that are counted."""


def test_no_label_is_one_that_prometheus_sets_itself() -> None:
    assert not {label for metric in METRICS for label in metric.labels} & {"job", "instance", "le", "quantile"}


def test_names_follow_the_conventions_of_prometheus() -> None:
    for metric in METRICS:
        assert re.fullmatch(r"fanin_(switch|job|rank|worker)_[a-z]+(_[a-z]+)*", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        if metric.kind != "counter":
            assert metric.name.rpartition("_")[2] in BASE_UNITS, metric.name
        assert not re.search(r"(_us|_ms|_mib|_kb)(_|$)", metric.name)
    assert len({metric.name for metric in METRICS}) == len(METRICS)


def test_the_page_shows_exactly_what_is_exported() -> None:
    page = (ROOT / "docs/watching.md").read_text()
    shown = re.findall(r"^\| `(fanin_\w+)` \| (\w+) \| (.*?) \| (.*) \|$", page, re.MULTILINE)
    labels = [", ".join(f"`{label}`" for label in metric.labels) or "-" for metric in METRICS]
    assert shown == [(m.name, m.kind, label, m.meaning) for m, label in zip(METRICS, labels, strict=True)]


def test_every_query_of_the_dashboard_names_metrics_that_exist() -> None:
    dashboard = json.loads((ROOT / "docs/grafana-dashboard.json").read_text())
    exported = {metric.name + "_bucket" * (metric.kind == "histogram") for metric in METRICS}
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    queries += [each["query"] for each in dashboard["templating"]["list"] if each["type"] == "query"]
    assert len(queries) > 10
    for query in queries:
        named = set(re.findall(r"\bfanin_\w+", query))
        assert named, query
        assert named <= exported, query


def test_statistics_become_samples_of_the_table() -> None:
    world = World()
    world.run(join(0), join(1))
    answer = world.say("tool", control.Ask())
    assert isinstance(answer, control.Stats)
    known = {metric.name: metric for metric in METRICS}
    samples = list(of_switch(answer))
    assert all(len(sample.labels) == len(known[sample.name].labels) for sample in samples)
    values = {(sample.name, sample.labels): sample.value for sample in samples}
    job = answer.jobs[0].name
    assert values["fanin_rank_last_arrivals_total", (job, "1")] == 1  # World's servers say so
    assert values["fanin_job_ranks", (job, "registered")] == 2


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (":9464", ("127.0.0.1", 9464)),
        ("9464", ("127.0.0.1", 9464)),
        ("0.0.0.0:1", ("0.0.0.0", 1)),
        ("[::1]:9464", ("::1", 9464)),
    ],
)
def test_a_port_without_a_host_is_on_loopback(text: str, found: tuple[str, int]) -> None:
    assert address_of(text, "--metrics") == found


@pytest.mark.parametrize("text", ["", ":", "host", ":65536", "::1", ":-1"])
def test_an_illegal_port_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"--metrics.*expected \[HOST\]:PORT"):
        address_of(text, "--metrics")


def text_at(port: int, **headers: str) -> str:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers=headers)
    with urllib.request.urlopen(request, timeout=DEADLINE_S) as page:
        return str(page.read().decode())


def named_in(text: str) -> set[str]:
    return set(re.findall(r"^# TYPE (\w+)", text, re.MULTILINE))


def test_a_switch_and_a_rank_serve_what_the_table_says() -> None:
    from fanin.cli.metrics import exporter

    known = {metric.name for metric in METRICS}
    with a_service() as service, exporter("0", service) as exported:
        options, there = Options(metrics="0"), address_of_service(service)
        with Session.join(JoinTerms(options=options, switch=there, job_name="seen", rank=0, size=1)):
            port = EXPORTED.port
            assert port is not None
            switch, rank = text_at(exported.port), text_at(port)
        assert EXPORTED.port is None
    assert {"fanin_switch_rounds_total", "fanin_job_ranks", "fanin_rank_waited_seconds_total"} <= named_in(switch)
    assert 'fanin_rank_last_arrivals_total{job_name="seen",rank="0"} 0.0' in switch
    assert {"fanin_worker_sent_packets_total", "fanin_worker_round_trip_seconds"} <= named_in(rank)
    assert named_in(switch) | named_in(rank) <= known


def test_a_rank_whose_metrics_port_is_taken_leaves_the_job_with_a_remedy() -> None:
    with a_service() as service:
        options, there = Options(metrics=f":{service.port}"), address_of_service(service)
        with pytest.raises(ConfigurationError, match=rf"metrics at 127\.0\.0\.1:{service.port} cannot be had"):
            Session.join(JoinTerms(options=options, switch=there, job_name="taken", rank=0, size=1))
        with Session.join(JoinTerms(options=Options(), switch=there, job_name="taken", rank=0, size=1)):
            pass


HALF, STRANGE = b"GET /metrics HT", b"GET / HTTP/1.0\r\nAccept: application/openmetrics-text; version=x\r\n\r\n"
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER with which `close` sends a reset."""


@pytest.mark.parametrize("sent", [b"", HALF, b"GET / HTTP/1.0\r\n\r\n", STRANGE, b"\xff" * 300, b"a: b\r\n" * 300])
@pytest.mark.parametrize("reset", [True, False])
def test_no_client_makes_the_metrics_port_print_a_traceback(
    sent: bytes, reset: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    import prometheus_client

    from fanin.watching.metrics_server import MetricsServer

    server = MetricsServer("127.0.0.1", 0, prometheus_client.CollectorRegistry())
    with contextlib.closing(server.socket):
        client = socket.create_connection(("127.0.0.1", server.server_port))
        request, address = server.get_request()
        with contextlib.closing(client):
            client.sendall(sent)
            if reset:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                client.close()
            else:
                client.shutdown(socket.SHUT_WR)
            server.process_request_thread(request, address)
    assert capsys.readouterr() == ("", "")


def test_strange_requests_have_one_line_in_the_log_together(caplog: pytest.LogCaptureFixture) -> None:
    with Exporter("127.0.0.1", 0, tuple) as exported:
        for _ in range(3):
            with pytest.raises(urllib.error.HTTPError, match="500"):
                text_at(exported.port, Accept="application/openmetrics-text; version=x")
        assert "python_info" not in text_at(exported.port)
    (record,) = caplog.records
    assert re.search(r"a request of 127\.0\.0\.1 failed: \w+: .*; no line for further ones", record.getMessage())


@pytest.mark.processes
@pytest.mark.skipif(PROMETHEUS is None, reason="prometheus is not on PATH (apt-get install prometheus)")
def test_prometheus_scrapes_a_switch(tmp_path: Path) -> None:
    from fanin.cli.metrics import exporter

    assert PROMETHEUS is not None
    port = free_port()

    def asked(query: str) -> list[dict[str, Any]]:
        url = f"http://127.0.0.1:{port}/api/v1/query?query={urllib.parse.quote(query)}"
        try:
            with urllib.request.urlopen(url, timeout=DEADLINE_S) as page:
                return list(json.load(page)["data"]["result"])
        except (urllib.error.URLError, ConnectionError):
            return []

    with a_service() as service, exporter("0", service) as exported:
        config = tmp_path / "prometheus.yml"
        target = f"127.0.0.1:{exported.port}"
        config.write_text(
            "global: {scrape_interval: 1s, scrape_timeout: 1s}\n"
            f"scrape_configs: [{{job_name: fanin, static_configs: [{{targets: ['{target}']}}]}}]\n"
        )
        command = [PROMETHEUS, f"--config.file={config}", f"--storage.tsdb.path={tmp_path}/data"]
        with (
            Session.join(
                JoinTerms(options=Options(), switch=address_of_service(service), job_name="seen", rank=0, size=1)
            ),
            (tmp_path / "log").open("wb") as log,
            subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log) as process,
            contextlib.ExitStack() as ending,
        ):
            ending.callback(process.terminate)
            until(lambda: bool(asked('fanin_rank_waited_seconds_total{job_name="seen"}')))
            (up,) = asked("up")
            (kind,) = asked('fanin_switch_rounds_total{scheme="udp"}')
    assert up["value"][1] == "1"
    assert kind["metric"]["instance"] == target
