"""The worker process: what it checks before it serves, and how it serves.

It refuses to start on a database that may forget a commit, on missing search attributes (Temporal would retry the
workflow task for ever), on pending migrations, with a pack whose objects admission cannot read, and when an open plan
needs a tool that it does not have.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.client import Client, Interceptor
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Interceptor as WorkerInterceptor
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from activities import migrate
from activities.catalog import check_resources, load_packs
from activities.database import Database, check_durability
from activities.dispatch import Engine
from contracts import saga
from worker.identity import check_identity
from worker.settings import Settings, SettingsError
from workflows.intent_workflow import IntentWorkflow

if TYPE_CHECKING:
    from worker.telemetry import Tracing

LOCAL_SLOTS: Final = 200
CACHED_SAGAS_MAX: Final = 5_000


def tracing_of(settings: Settings) -> "Tracing | None":
    """Start tracing if the settings say so; None costs nothing anywhere."""
    if not settings.trace:
        return None
    from worker.telemetry import Tracing  # noqa: PLC0415 - only when switched on

    return Tracing.exporting()


async def connect(settings: Settings, interceptors: Sequence[Interceptor] = ()) -> Client:
    """Connect to Temporal as settings and `temporalio.envconfig` say. Raises SettingsError when nobody answers."""
    connection = settings.temporal_connection()
    try:
        return await Client.connect(**connection, data_converter=pydantic_data_converter, interceptors=interceptors)
    except RuntimeError as error:
        raise SettingsError(
            f"Temporal at {connection.get('target_host')} does not answer ({error})."
            " Run `make up`, or set TEMPORAL_ADDRESS."
        ) from error


async def ensure_search_attributes(client: Client) -> None:
    """Register what is missing; a search attribute that is not known stops every workflow task."""
    listed = await client.operator_service.list_search_attributes(
        ListSearchAttributesRequest(namespace=client.namespace)
    )
    wanted: dict[str, Any] = dict.fromkeys(saga.SEARCH_KEYWORDS, IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD)
    wanted[saga.SEARCH_TOOLS] = IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD_LIST
    missing = {name: kind for name, kind in wanted.items() if name not in listed.custom_attributes}
    if missing:
        await client.operator_service.add_search_attributes(
            AddSearchAttributesRequest(namespace=client.namespace, search_attributes=missing)
        )


async def check_ready(engine: Engine, settings: Settings, client: Client) -> None:
    """Do every start-up check. Raises SettingsError or SagaError naming the next step."""
    check_identity()
    if waiting := await asyncio.to_thread(migrate.pending, settings.require_database_url()):
        raise SettingsError(f"The database lacks {', '.join(waiting)}; run `backstay db upgrade`.")
    await check_durability(engine.database)
    rows = await engine.database.all(
        "select distinct unnest(tools) as tool from backstay.intents where final_at is null limit 1000"
    )
    registry = engine.registry
    if lacking := sorted(row["tool"] for row in rows if row["tool"] not in registry):
        raise SettingsError(
            f"Open intents need tools that this worker does not have: {', '.join(lacking)}."
            " Name their modules in BACKSTAY_PACKS."
        )
    await check_resources(engine.database, engine.packs)
    await ensure_search_attributes(client)


def build_worker(
    client: Client, engine: Engine, settings: Settings, interceptors: Sequence[WorkerInterceptor] = ()
) -> Worker:
    """Make a worker: our one workflow outside the sandbox (vetted, replay-tested), every activity, bounded slots."""
    return Worker(
        client,
        task_queue=settings.task_queue,
        workflows=[IntentWorkflow],
        activities=engine.activities(),
        workflow_runner=UnsandboxedWorkflowRunner(),
        max_concurrent_local_activities=LOCAL_SLOTS,
        max_cached_workflows=CACHED_SAGAS_MAX,
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=settings.sticky_timeout_seconds),
        graceful_shutdown_timeout=timedelta(seconds=5),
        interceptors=interceptors,
    )


@asynccontextmanager
async def serving(
    settings: Settings,
    client: Client | None = None,
    interceptors: Sequence[WorkerInterceptor] = (),
    tracing: "Tracing | None" = None,
) -> AsyncGenerator[Engine]:
    """Serve in the background for as long as the block runs; yields the engine.

    With `tracing`, a given `client` must have been connected with its interceptor.
    """
    async with AsyncExitStack() as stack:
        tracer = tracing.statement if tracing else None
        database = await stack.enter_async_context(Database(settings.require_database_url(), tracer=tracer))
        engine = Engine(database, load_packs(settings.packs, settings.downstream_addresses))
        client = client or await connect(settings, [tracing.interceptor] if tracing else [])
        await check_ready(engine, settings, client)
        await stack.enter_async_context(build_worker(client, engine, settings, interceptors))
        yield engine
