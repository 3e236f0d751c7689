"""The engine's activities, and one execute and one compensate activity for each tool, named after the tool.

A refusal crosses the wire as an ApplicationError whose type is our reason; Temporal retries only what nothing was
decided about. A bug's text never enters history: it may hold secrets (measured: exception text and file names are
stored in clear).
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TypeVar

import structlog
from pydantic import BaseModel
from temporalio import activity
from temporalio.client import WorkflowExecutionStatus
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.service import RPCError, RPCStatusCode

from activities.adding import Adding
from activities.admission import Admission
from activities.barrier import execute_step
from activities.compensation import compensate_step
from activities.database import Database
from activities.decisions import admit_decision
from activities.grading import Grading
from activities.phase import close_intent, park_intent, settle_intent
from activities.remote import execute_remote_step
from activities.remote_compensation import compensate_remote_step
from activities.reservations import confirming
from activities.resolutions import admit_resolution
from activities.sightings import look_up_step
from activities.tool import AnyRemoteTool, AnyTool, Pack, RemoteTool
from contracts import opening, saga
from contracts.errors import SagaError
from contracts.locks import asks_again_after
from contracts.reasons import Reason
from contracts.registry import Registry
from contracts.risk import DEFAULT_POLICY, Policy

Input = TypeVar("Input", bound=BaseModel)
Output = TypeVar("Output", bound=BaseModel)
ActivityFunction = Callable[..., Awaitable[Any]]
DESCRIBE_TIMEOUT: Final = timedelta(seconds=2)
log = structlog.get_logger(__name__)


def to_application_error(error: SagaError) -> ApplicationError:
    """Carry our reason over the wire; Temporal matches retries on `type`, and logs no trace of what only waits."""
    wait = error.info.details.get("retry_after_seconds")
    only_waits = asks_again_after(error.info) is not None
    return ApplicationError(
        str(error),
        error.info.model_dump(mode="json"),
        type=error.reason.value,
        non_retryable=not error.reason.is_transient,
        next_retry_delay=timedelta(seconds=wait) if wait else None,
        category=ApplicationErrorCategory.BENIGN if only_waits else ApplicationErrorCategory.UNSPECIFIED,
    )


def named(
    name: str, work: Callable[[Input], Awaitable[Output]], takes: type[Input], gives: type[Output]
) -> ActivityFunction:
    """Make an activity of `work`, with typed refusals and no leaking bugs."""

    async def run(request: Input) -> Output:
        try:
            return await work(request)
        except SagaError as error:
            raise to_application_error(error) from None
        except ApplicationError:
            raise
        except Exception as error:
            log.exception("activity failed", activity=name)
            raise ApplicationError(
                f"{name} failed inside ({type(error).__name__}); the worker's log has the rest.",
                type=Reason.INTERNAL.value,
            ) from None

    run.__annotations__ = {"request": takes, "return": gives}
    run.__name__ = run.__qualname__ = name
    return activity.defn(name=name)(run)


async def is_open(workflow_id: str, run_id: str) -> bool:
    """Ask the Temporal that runs this activity whether a run is open; one that it never had is not.

    Raises SagaError(DEPENDENCY_DOWN).
    """
    handle = activity.client().get_workflow_handle(workflow_id, run_id=run_id)
    try:
        described = await handle.describe(rpc_timeout=DESCRIBE_TIMEOUT)
    except RPCError as error:
        if error.status in (RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT):  # INVALID: no run id at all
            return False
        raise SagaError(
            Reason.DEPENDENCY_DOWN,
            f"Temporal did not say whether run {run_id} is open ({error.status.name}); it is asked again.",
            details={"status": error.status.name},
        ) from error
    return described.status is WorkflowExecutionStatus.RUNNING


@dataclass(frozen=True)
class Engine:
    """Everything a worker serves."""

    database: Database
    packs: tuple[Pack, ...]
    policy: Policy = DEFAULT_POLICY

    @property
    def tools(self) -> tuple[AnyTool | AnyRemoteTool, ...]:
        """All tools of all packs."""
        return tuple(tool for pack in self.packs for tool in pack.tools)

    @property
    def registry(self) -> Registry:
        """Their contracts."""
        return Registry.of([tool.contract for tool in self.tools])

    def activities(self) -> list[ActivityFunction]:
        """List the activity functions to register."""
        database = self.database
        remote = {tool.contract.wire_name: tool for tool in self.tools if isinstance(tool, RemoteTool)}
        admission = Admission(database, self.registry, self.packs, self.policy, is_open)
        adding = Adding(database, self.registry, self.packs, self.policy)
        grading = Grading(database, self.registry, self.packs, self.policy)
        found = [
            named(saga.ADMIT, admission.admit, saga.AdmitRequest, saga.Standing),
            named(saga.CLOSE, lambda request: close_intent(database, request), saga.CloseRequest, saga.Closed),
            named(saga.SETTLE, lambda request: settle_intent(database, request), saga.SettleRequest, saga.Standing),
            named(saga.GRADE, grading.grade_step, saga.GradeCall, saga.GradeAnswer),
            named(opening.ADMIT_STEP, adding.admit_step, opening.AddRequest, opening.AddAnswer),
            named(saga.PARK, lambda request: park_intent(database, request), saga.ParkRequest, saga.Standing),
            named(
                saga.ADMIT_DECISION,
                lambda request: admit_decision(database, request),
                saga.DecisionRequest,
                saga.DecisionAnswer,
            ),
            named(
                saga.ADMIT_RESOLUTION,
                lambda request: admit_resolution(database, request, remote),
                saga.ResolutionRequest,
                saga.ResolutionAnswer,
            ),
        ]
        for tool in self.tools:
            if isinstance(tool, RemoteTool):
                found.extend(_remote_activities(database, tool))
            else:
                found.extend(_tool_activities(database, tool))
        return found


def _tool_activities(database: Database, tool: AnyTool) -> list[ActivityFunction]:
    async def execute(call: saga.StepCall) -> saga.StepResult:
        return await execute_step(database, tool, call)

    async def compensate(call: saga.CompensateCall) -> saga.CompensateResult:
        return await compensate_step(database, tool, call)

    functions = [named(tool.contract.wire_name, execute, saga.StepCall, saga.StepResult)]
    if tool.contract.writes:
        functions.append(named(tool.contract.compensate_name, compensate, saga.CompensateCall, saga.CompensateResult))
    confirmation = confirming(tool)
    return functions if confirmation is None else [*functions, *_tool_activities(database, confirmation)]


def _remote_activities(database: Database, tool: AnyRemoteTool) -> list[ActivityFunction]:
    async def execute(call: saga.StepCall) -> saga.StepResult:
        return await execute_remote_step(database, tool, call)

    async def look_up(call: saga.LookupCall) -> saga.Sighting:
        return await look_up_step(database, tool, call)

    async def compensate(call: saga.CompensateCall) -> saga.CompensateResult:
        return await compensate_remote_step(database, tool, call)

    contract = tool.contract
    functions = [named(contract.wire_name, execute, saga.StepCall, saga.StepResult)]
    if contract.writes:
        functions.append(named(contract.lookup_name, look_up, saga.LookupCall, saga.Sighting))
        functions.append(named(contract.compensate_name, compensate, saga.CompensateCall, saga.CompensateResult))
    return functions
