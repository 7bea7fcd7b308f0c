"""Spans and log records of a rank for OpenTelemetry (the extra `otel`), sent to a collector by OTLP over HTTP.

OpenTelemetry's own variables configure it: OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES and
so on (https://opentelemetry.io/docs/languages/sdk-configuration/). A program that has set up a provider of its own
keeps it, and gets fanin's spans or records there.

The packages are imported when a Telemetry is made, and not before. They export on threads of their own, and drop what
they cannot send: no collective waits for a collector.
"""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fanin.errors import ConfigurationError

if TYPE_CHECKING:
    from opentelemetry.context import Context

Attributes = Mapping[str, str | int | float | bool]

LOGGER = "fanin"
DEFAULT_SERVICE = "fanin"
"""Name of the service where neither OTEL_SERVICE_NAME nor OTEL_RESOURCE_ATTRIBUTES gives one."""
REMEDY = "Remedy: pip install 'fanin[otel]'"
PROTOCOLS = {
    "http/json": ("opentelemetry.exporter.otlp.json.http", "opentelemetry-exporter-otlp-json-http"),
    "http/protobuf": ("opentelemetry.exporter.otlp.proto.http", "opentelemetry-exporter-otlp-proto-http"),
}
"""By value of OTEL_EXPORTER_OTLP_PROTOCOL: the exporter's module and package. The first is the default here, since
protobuf's package wants a newer protobuf than p4runtime takes; collectors take both at one port."""
FLUSH_MS = 2_000
"""Longest that the end of a job waits for a collector, for spans and for records."""


class Telemetry:
    """Spans of one rank's steps and collectives, and the records of the logger `fanin`. Methods may be called from any
    thread, and never raise."""

    def __init__(self, resource: Attributes) -> None:
        """`resource`: attributes of all spans and records of this rank. ConfigurationError where a package is missing,
        or a variable asks for a protocol without a package."""
        try:
            from opentelemetry import _logs, trace
            from opentelemetry.sdk._logs import LoggerProvider
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
        except ImportError:
            raise ConfigurationError(f"FANIN_OTEL needs opentelemetry-sdk. {REMEDY}") from None
        self._trace = trace
        said = Resource.create(dict(resource))
        if str(said.attributes.get("service.name", "")).startswith("unknown_service"):
            said = said.merge(Resource({"service.name": DEFAULT_SERVICE}))
        self._own: list[Any] = []
        """Providers that this object has made, and must shut down."""
        tracers: Any = trace.get_tracer_provider()
        if not isinstance(tracers, TracerProvider):
            tracers = TracerProvider(resource=said, shutdown_on_exit=False)
            self._own.append(tracers)
            if (exporter := _exporter("TRACES", "trace_exporter", "OTLPSpanExporter")) is not None:
                from opentelemetry.sdk.trace.export import BatchSpanProcessor

                tracers.add_span_processor(BatchSpanProcessor(exporter))
        loggers: Any = _logs.get_logger_provider()
        if not isinstance(loggers, LoggerProvider):
            loggers = LoggerProvider(resource=said, shutdown_on_exit=False)
            self._own.append(loggers)
            if (exporter := _exporter("LOGS", "_log_exporter", "OTLPLogExporter")) is not None:
                from opentelemetry.sdk._logs.export import BatchLogRecordProcessor

                loggers.add_log_record_processor(BatchLogRecordProcessor(exporter))
        self._tracer = tracers.get_tracer(LOGGER)
        self._handler = _Handler(loggers.get_logger(LOGGER))
        logging.getLogger(LOGGER).addHandler(self._handler)
        self._step: Any = None
        """The span of the step that is under way."""

    def step(self, number: int, now_ns: int) -> None:
        """Begin the span of a step, and end that of the step before."""
        if self._step is not None:
            self._step.end(now_ns)
        self._step = self._tracer.start_span(f"step {number}", start_time=now_ns, attributes={"fanin.step": number})

    def collective(
        self, name: str, began_ns: int, ended_ns: int, attributes: Attributes, error: BaseException | None = None
    ) -> None:
        """Record the span of a collective that has ended, well or with `error`. Times are those of time.time_ns()."""
        step = self._step
        within: Context | None = None if step is None else self._trace.set_span_in_context(step)
        span = self._tracer.start_span(
            name, context=within, kind=self._trace.SpanKind.CLIENT, start_time=began_ns, attributes=dict(attributes)
        )
        if error is not None:
            span.record_exception(error)
            span.set_status(self._trace.StatusCode.ERROR, str(error))
        span.end(ended_ns)

    def close(self, now_ns: int) -> None:
        """Send what is left, within FLUSH_MS each, and end. The step under way is marked `fanin.unfinished`."""
        logging.getLogger(LOGGER).removeHandler(self._handler)
        if self._step is not None:
            self._step.set_attribute("fanin.unfinished", True)
            self._step.end(now_ns)
            self._step = None
        for provider in self._own:
            if provider.force_flush(FLUSH_MS):
                provider.shutdown()


class _Handler(logging.Handler):
    """Hands log records to OpenTelemetry. Its own handler is deprecated, and its successor instruments all loggers."""

    def __init__(self, logger: Any) -> None:
        super().__init__()
        self._logger = logger

    def emit(self, record: logging.LogRecord) -> None:
        from opentelemetry._logs import LogRecord, SeverityNumber

        severity = min(max(record.levelno, logging.DEBUG), logging.CRITICAL)
        number = {10: 5, 20: 9, 30: 13, 40: 17, 50: 21}[severity // 10 * 10]
        attributes: dict[str, Any] = {"code.file.path": record.pathname, "code.line.number": record.lineno}
        if record.exc_info and record.exc_info[1] is not None:
            attributes["exception.type"] = type(record.exc_info[1]).__name__
            attributes["exception.message"] = str(record.exc_info[1])
        self._logger.emit(
            LogRecord(
                timestamp=int(record.created * 1e9), severity_text=record.levelname,
                severity_number=SeverityNumber(number), body=record.getMessage(), attributes=attributes,
            )
        )  # fmt: skip


def _exporter(signal: str, module: str, name: str) -> Any:
    """The exporter of TRACES or LOGS that the variables ask for; None for `none`, or where OpenTelemetry is off."""
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":  # as the SDK reads it
        return None
    wanted = os.environ.get(f"OTEL_{signal}_EXPORTER") or "otlp"
    if wanted == "none":
        return None
    if wanted != "otlp":
        raise ConfigurationError(
            f"OTEL_{signal}_EXPORTER={wanted!r}: fanin has otlp and none. Remedy: one of them, or set up a provider of "
            "your own before the group is made"
        )
    variables = f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"
    protocol = next((text for variable in variables if (text := os.environ.get(variable))), next(iter(PROTOCOLS)))
    if protocol not in PROTOCOLS:
        raise ConfigurationError(
            f"OTEL_EXPORTER_OTLP_PROTOCOL={protocol!r}: fanin has {' and '.join(PROTOCOLS)}",
            "OTEL_EXPORTER_OTLP_PROTOCOL",
        )
    place, package = PROTOCOLS[protocol]
    try:
        return getattr(importlib.import_module(f"{place}.{module}"), name)()
    except ImportError:
        raise ConfigurationError(
            f"OpenTelemetry by {protocol} needs {package}. Remedy: pip install {package}"
        ) from None
