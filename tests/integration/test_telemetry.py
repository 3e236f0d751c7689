"""One trace per intent: command, workflow, activities and SQL hang together, and no value is in it."""

import uuid

import psycopg
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter

from contracts.saga import WORKFLOW
from worker.service import serving
from worker.settings import Settings
from worker.stack import LocalStack
from worker.telemetry import Tracing

OPEN = """
select ledger.open_account('S00000001', 'demo-bank', null, 'CASH', 'EUR'),
    ledger.open_account('A00000001', 'demo-bank', 'demo-customer', 'CURRENT', 'EUR')
"""


async def test_an_intent_is_one_trace_from_the_command_to_the_statements(
    stack: LocalStack, database_url: str, task_queue: str
) -> None:
    exporter = InMemorySpanExporter()
    tracing = Tracing(SimpleSpanProcessor(exporter))
    settings = Settings.load(database_url=database_url, task_queue=task_queue)
    with psycopg.connect(database_url) as owner:
        owner.execute(OPEN)
        owner.execute("select ledger.fund_account('A00000001', 'S00000001', 5000)")
    client = await Client.connect(
        stack.temporal_address, data_converter=pydantic_data_converter, interceptors=[tracing.interceptor]
    )
    request = {
        "caller": {"tenant": "demo-bank", "principal": "demo-customer", "agent": "demo-agent"},
        "intent": {
            "protocol": 1,
            "session_id": "traced",
            "steps": [
                {
                    "step_id": "freeze",
                    "tool": "freeze_account_funds",
                    "arguments": {
                        "account_id": "A00000001",
                        "amount_cents": 4321,
                        "currency": "EUR",
                        "hold_ttl_seconds": 3600,
                        "reason_code": "PURCHASE",
                    },
                }
            ],
        },
    }

    async with serving(settings, client, tracing=tracing):
        with tracing.command("intent post"):
            await client.execute_workflow(WORKFLOW, request, id=str(uuid.uuid4()), task_queue=task_queue)

    spans = exporter.get_finished_spans()
    contexts = {id(span): span.context.trace_id for span in spans if span.context is not None}
    trace_id = next(contexts[id(span)] for span in spans if span.name == "intent post")
    ours = [span for span in spans if contexts[id(span)] == trace_id]
    names = [span.name for span in ours]
    assert any(name == f"StartWorkflow:{WORKFLOW}" for name in names)
    assert any(name == f"RunWorkflow:{WORKFLOW}" for name in names)
    assert any(name == "RunActivity:freeze_account_funds@1" for name in names)
    assert any(name == "RunActivity:settle_intent" for name in names)
    assert any("backstay.intents" in str(span.attributes) for span in spans if span.name.startswith("sql"))
    assert sum(name.startswith("sql") for name in names) >= 8
    assert not any("4321" in str(span.attributes) for span in spans)
