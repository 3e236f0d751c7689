"""Tracing: one OpenTelemetry trace per intent, from the command that posted it down to each SQL statement.

Off (the default) imports and costs nothing: no interceptor, no wrapper, no span. On (`BACKSTAY_TRACE=true`) spans go
out over OTLP/HTTP to where the standard `OTEL_EXPORTER_OTLP_*` variables say. Statements are recorded without their
parameters: values never leave the database through a trace.
"""

from collections.abc import Generator
from contextlib import contextmanager

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.trace import SpanKind
from temporalio.contrib.opentelemetry import TracingInterceptor

SERVICE_NAME = "backstay"
STATEMENT_LENGTH_MAX = 400


class Tracing:
    """A tracer and what has to be hung into Temporal and into the database for it."""

    def __init__(self, processor: SpanProcessor) -> None:
        """Send every finished span to `processor`."""
        self._provider = TracerProvider(resource=Resource.create({"service.name": SERVICE_NAME}))
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("backstay")
        self.interceptor = TracingInterceptor(self._tracer)

    @classmethod
    def exporting(cls) -> "Tracing":
        """Export over OTLP/HTTP, in batches, in the background."""
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415 - only when switched on
            OTLPSpanExporter,
        )
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415 - as above

        return cls(BatchSpanProcessor(OTLPSpanExporter()))

    @contextmanager
    def command(self, name: str) -> Generator[None]:
        """Open the root span of what a person or an agent asked for."""
        with self._tracer.start_as_current_span(name, kind=SpanKind.SERVER):
            yield

    @contextmanager
    def statement(self, text: str) -> Generator[None]:
        """Open a span around one SQL statement; its name is the verb and the first table."""
        shown = " ".join(text.split())
        with self._tracer.start_as_current_span(
            f"sql {shown[:60]}",
            kind=SpanKind.CLIENT,
            attributes={"db.system.name": "postgresql", "db.query.text": shown[:STATEMENT_LENGTH_MAX]},
        ):
            yield

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()
