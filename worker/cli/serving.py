"""The process of `backstay worker`: serve until a signal, let running steps end, say once that it is ready."""

import asyncio
import logging
import os
import signal
import sys
from types import FrameType
from typing import TYPE_CHECKING, Final

import structlog

from activities.catalog import PackError
from contracts.errors import SagaError
from worker import faults
from worker.cli.running import EXIT_REFUSED, EXIT_USAGE, fail, run_async
from worker.identity import IdentityError
from worker.service import serving, tracing_of
from worker.settings import Settings, SettingsError

if TYPE_CHECKING:
    from structlog.typing import Processor

log = structlog.get_logger("backstay.worker")
STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT. Ends the process with a sentence when it may not start."""
    configure_logs()
    try:
        run_async(_serve(settings))
    except (SettingsError, PackError, IdentityError) as error:
        fail(str(error), EXIT_USAGE)
    except SagaError as error:
        fail(str(error), EXIT_REFUSED)


def configure_logs() -> None:
    """Write every log, of ours and of libraries, as JSON lines on standard error."""
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    # A refusal is an answer, not an incident: the SDK would log each with its traceback.
    logging.getLogger("temporalio.activity").setLevel(logging.ERROR)
    logging.getLogger("alembic").setLevel(logging.WARNING)


async def _serve(settings: Settings) -> None:
    stop = asyncio.Event()
    task = asyncio.current_task()
    is_ready = False

    def on_signal(number: int, _frame: FrameType | None = None) -> None:
        if stop.is_set():
            os._exit(128 + number)
        stop.set()
        if not is_ready and task is not None:
            task.cancel()

    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, on_signal, number)
    tracing = tracing_of(settings)
    try:
        interceptors = faults.interceptors(settings.require_database_url())
        async with serving(settings, interceptors=interceptors, tracing=tracing) as engine:
            is_ready = True
            tools = len(engine.tools)
            log.info("ready", task_queue=settings.task_queue, tools=tools, pid=os.getpid())
            sys.stdout.write(f"ready: task queue {settings.task_queue}, {tools} tools, process {os.getpid()}\n")
            sys.stdout.flush()
            await stop.wait()
            log.info("stopping")
    except asyncio.CancelledError:
        if not stop.is_set():
            raise
    finally:
        if tracing is not None:
            tracing.close()
    log.info("stopped")
