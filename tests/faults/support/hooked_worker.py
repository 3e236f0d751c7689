"""A worker as `backstay worker` starts it, that misbehaves where a test has armed a fault, and notes all it does.

Nothing of the engine is replaced: the hooks stand around `Database.run` and around each activity, and listen to the
events that the workflow takes. `NEUTRALISED` is the exception, for the tests that must see money being lost.
"""

# pyright: reportPrivateUsage=false

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar
from unittest import mock

from temporalio import activity, workflow
from temporalio.exceptions import ApplicationError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from activities import database as databases
from activities import dispatch
from contracts.base import JsonObject
from contracts.risk import DEFAULT_POLICY
from contracts.saga import AdmitRequest, Claim
from tests.faults.support.control import Control, Point, Rule
from worker import faults
from worker.cli import serving
from worker.settings import Settings
from workflows.intent_workflow import IntentWorkflow

T = TypeVar("T")

DIRECTORY: Final = "FAULTS_TEST_DIRECTORY"
READY: Final = "ready: task queue"
"""What `backstay worker` prints once it serves."""
POLICY: Final = "FAULTS_TEST_POLICY"
CONNECTIONS_MAX: Final = "FAULTS_TEST_CONNECTIONS_MAX"
NEUTRALISED: Final = "FAULTS_TEST_NEUTRALISED"
PAUSE_SECONDS_MAX: Final = 60.0
_SIGNALS: Final = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


@dataclass(frozen=True, slots=True)
class Doing:
    """The activity that a task is carrying out."""

    name: str
    intent: str | None
    attempt: int


_doing: ContextVar[Doing | None] = ContextVar("doing", default=None)


class Hooks:
    """Brings the faults of a directory to this process."""

    def __init__(self, control: Control) -> None:
        """Let happen what `control` says."""
        self.control = control

    async def reach(self, point: Point, transaction: databases.Transaction | None = None) -> None:
        """Note that a point is reached and let happen what is meant for it."""
        doing = _doing.get()
        if doing is None:
            return
        self.note(point, doing)
        for rule in self.control.rules(doing.intent):
            if rule.is_at(doing.name, point) and not self.control.is_released(rule) and self.control.claim(rule):
                self.note("fault", doing, rule.name)
                await self._happen(rule, transaction)

    def note(self, what: str, doing: Doing, detail: str = "") -> None:
        """Write a line of the journal."""
        self.control.note(what, doing.name, doing.intent, attempt=doing.attempt, detail=detail)

    def wants(self, point: Point) -> bool:
        """True when a fault is armed for this point of the activity that is being carried out."""
        doing = _doing.get()
        return doing is not None and any(rule.is_at(doing.name, point) for rule in self.control.rules(doing.intent))

    async def _happen(self, rule: Rule, transaction: databases.Transaction | None) -> None:
        match rule.action:
            case "error":
                assert transaction is not None, "only a transaction can meet an error of the server"
                await transaction.one("select public.fail_on_purpose(%s)", (rule.sqlstate,))
            case "delay":
                await asyncio.sleep(rule.seconds)
            case "fail":
                raise ApplicationError("a fault on purpose", type="DEPENDENCY_DOWN")
            case "pause":
                async with asyncio.timeout(PAUSE_SECONDS_MAX):
                    while not self.control.is_released(rule):  # noqa: ASYNC110 - another process ends it, by a file
                        await asyncio.sleep(0.01)
            case _:
                os.kill(os.getpid(), _SIGNALS[rule.action])


def hook_database(hooks: Hooks) -> None:
    """Reach a point before each transaction of an activity, before its commit, and after it."""
    original = databases.Database.run

    async def run(self: databases.Database, work: Callable[[databases.Transaction], Awaitable[T]]) -> T:
        async def written(transaction: databases.Transaction) -> T:
            result = await work(transaction)
            if hooks.wants("written"):
                await transaction.one("select 1")  # all that was queued has been carried out
                await hooks.reach("written", transaction)
            return result

        await hooks.reach("begin")
        result = await original(self, written)
        await hooks.reach("committed")
        return result

    databases.Database.run = run  # type: ignore[method-assign]


class HookInterceptor(Interceptor):
    """Stands around every activity."""

    def __init__(self, hooks: Hooks) -> None:
        """Reach points of `hooks`."""
        self._hooks = hooks

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002
        """Stand before `next`."""
        return _Inbound(next, self._hooks)


class _Inbound(ActivityInboundInterceptor):
    def __init__(self, following: ActivityInboundInterceptor, hooks: Hooks) -> None:
        super().__init__(following)
        self._hooks = hooks

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002, ANN401
        info = activity.info()
        doing = Doing(info.activity_type, intent_of(input.args[0]), info.attempt)
        _doing.set(doing)
        await self._hooks.reach("started")
        going_on = asyncio.create_task(self._go_on(input, doing))
        if any(rule.is_stubborn for rule in self._hooks.control.rules(doing.intent)):
            return await asyncio.shield(going_on)
        return await going_on

    async def _go_on(self, input: ExecuteActivityInput, doing: Doing) -> Any:  # noqa: A002, ANN401
        try:
            result = await super().execute_activity(input)
        except ApplicationError as error:
            self._hooks.note("refused", doing, error.type or "")
            raise
        except asyncio.CancelledError:
            self._hooks.note("cancelled", doing)
            raise
        await self._hooks.reach("answered")
        return result


def intent_of(request: object) -> str | None:
    """The intent key that an activity works for; its session before admission has said the key."""
    if isinstance(request, AdmitRequest):
        return session_of(request.request)
    claim: object = getattr(request, "claim", None)
    return claim.intent_key if isinstance(claim, Claim) else None


def session_of(request: JsonObject | None) -> str:
    """The session of the intent that a workflow was started with."""
    return str((request or {})["intent"]["session_id"])


def hook_workflow(control: Control) -> None:
    """Note every event that a saga takes and every wish to stop that reaches it, unless it is being replayed."""
    original_take, original_cancel = IntentWorkflow._take, IntentWorkflow._cancel

    def note(self: IntentWorkflow, what: str, name: str) -> None:
        if not workflow.unsafe.is_replaying():
            plan = self._state.plan
            intent = plan.intent_key if plan else session_of(self._request)
            control.note(what, name, intent, detail=self._state.stage)

    def take(self: IntentWorkflow, event: Any) -> None:  # noqa: ANN401 - any event
        original_take(self, event)
        note(self, "took", type(event).__name__)

    def cancel(self: Any, cancellation: Any) -> Any:  # noqa: ANN401 - as the original
        note(self, "took", "CancelAsked")
        return original_cancel(self, cancellation)

    IntentWorkflow._take = take  # type: ignore[method-assign]
    IntentWorkflow._cancel = cancel  # type: ignore[method-assign]


def apply_limits() -> None:
    """Make times short and the pool small where a test says so: faults that take hours otherwise."""
    if policy := os.environ.get(POLICY):
        patched(dispatch.Engine, policy=replace(DEFAULT_POLICY, **json.loads(policy)))
    if connections := os.environ.get(CONNECTIONS_MAX):
        patched(databases.Database, connections_max=int(connections))


def patched(made: type[Any], **defaults: object) -> None:
    """Change what a class is made with when nobody says otherwise."""
    original = made.__init__

    def start(self: object, *given: object, **named: object) -> None:
        original(self, *given, **defaults | named)

    made.__init__ = start


def main() -> None:
    """Hook everything, then be the worker that `backstay worker` is."""
    hooks = Hooks(Control(Path(os.environ[DIRECTORY])))
    hook_database(hooks)
    hook_workflow(hooks.control)
    apply_limits()
    if os.environ.get(NEUTRALISED):
        from tests.faults.support import neutralised  # noqa: PLC0415 - only where a test asks for it

        neutralised.apply(os.environ[NEUTRALISED])
    mock.patch.object(faults, "interceptors", return_value=[HookInterceptor(hooks)]).start()
    serving.serve(Settings.load())


if __name__ == "__main__":
    main()
