"""Spans and log records as a collector of OpenTelemetry's gets them: a real server of HTTP, and OTLP as JSON."""

from __future__ import annotations

import gzip
import json
import logging
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'fanin[torch]'")
pytest.importorskip("opentelemetry.sdk", reason="needs opentelemetry: pip install 'fanin[otel]'")

from torch._C import _distributed_c10d as c10d  # noqa: E402

from fanin.errors import CollectiveTimeoutError, ConfigurationError  # noqa: E402
from fanin.options import Options  # noqa: E402
from fanin.watching.telemetry import Telemetry  # noqa: E402
from tests.torch.groups import SIZE, groups_of, on_every_rank  # noqa: E402

pytestmark = [pytest.mark.processes, pytest.mark.slow]


class Collector:
    """A server that keeps the bodies that were sent to it, by path."""

    def __init__(self) -> None:
        self.bodies: list[tuple[str, dict[str, Any]]] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                collector.bodies.append((self.path, json.loads(body)))
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_: object) -> None:
                """Leave the terminal to pytest."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    def of(self, path: str, resources: str, scopes: str, items: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """All spans or records that came to a path, each with the attributes of its resource."""
        return [
            (attributes(resource["resource"]), item)
            for at, body in self.bodies
            if at == path
            for resource in body[resources]
            for scope in resource[scopes]
            for item in scope[items]
        ]

    @property
    def spans(self) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """All spans, with the attributes of their resources."""
        return self.of("/v1/traces", "resourceSpans", "scopeSpans", "spans")

    @property
    def records(self) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """All log records, likewise."""
        return self.of("/v1/logs", "resourceLogs", "scopeLogs", "logRecords")


def attributes(of: dict[str, Any]) -> dict[str, Any]:
    """Attributes by name; whole numbers are text in OTLP's JSON."""
    return {each["key"]: next(iter(each["value"].values())) for each in of["attributes"]}


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    made = Collector()
    thread = threading.Thread(target=made.server.serve_forever)
    thread.start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{made.server.server_port}")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "digits")
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join()


def test_collectives_steps_and_the_log_come_to_a_collector(collector: Collector) -> None:
    with groups_of(Options(otel=True, lanes=8)) as groups:
        job = groups[0].job_name

        def act(rank: int) -> None:
            work = groups[rank].allreduce([torch.ones(100_000)])
            assert work.wait()

        on_every_rank(act)
        weight = torch.ones(3, requires_grad=True)
        torch.optim.SGD([weight]).step()
        logging.getLogger("fanin").error("rank %d is late", 2)
        options = c10d.AllreduceOptions()
        options.timeout = timedelta(milliseconds=50)
        late = groups[1].allreduce([torch.ones(3)], options)
        with pytest.raises(CollectiveTimeoutError):
            late.wait()

    by_rank = {resource["service.instance.id"]: resource for resource, _ in collector.spans}
    assert sorted(by_rank) == [str(rank) for rank in range(SIZE)]
    assert {resource["service.name"] for resource in by_rank.values()} == {"digits"}

    of_one = [span for resource, span in collector.spans if resource["service.instance.id"] == "1"]
    well, failed = (span for span in of_one if span["name"] == "all_reduce")
    facts = attributes(well)
    assert (facts["fanin.job"], facts["fanin.bytes"], facts["fanin.lanes"]) == (job, "400000", "8")
    assert (facts["fanin.rank"], facts["fanin.ranks"], facts["fanin.collective"]) == ("1", str(SIZE), "1")
    assert int(well["startTimeUnixNano"]) < int(well["endTimeUnixNano"])
    assert "Timed out" in failed["status"]["message"]

    first, second = (span for span in of_one if span["name"].startswith("step "))
    assert well["parentSpanId"] == first["spanId"]
    assert failed["parentSpanId"] == second["spanId"]

    said = [record["body"]["stringValue"] for _, record in collector.records]
    assert "rank 2 is late" in said


@pytest.mark.parametrize(
    ("variable", "value", "complaint"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "fanin has http/json and http/protobuf"),
        ("OTEL_TRACES_EXPORTER", "zipkin", "fanin has otlp and none"),
    ],
)
def test_what_cannot_be_sent_is_refused(
    variable: str, value: str, complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigurationError, match=complaint):
        Telemetry({})


def test_variables_of_an_opentelemetry_that_is_off_matter_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "zipkin")
    telemetry = Telemetry({})
    telemetry.step(1, 0)
    telemetry.close(1)


def test_without_the_packages_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'fanin\[otel\]'"):
        Telemetry({})
