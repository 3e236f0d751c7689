"""Starting sagas: one start call, and what its silence means.

A start that was tried may have been taken, whatever Temporal says or does not say: its errors leave an unknown
outcome, and the same post joins what runs.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from temporalio.client import Client, WorkflowHandle
from temporalio.common import Priority, WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.service import RPCError, RPCStatusCode

from contracts.envelope import Envelope
from contracts.errors import SagaError
from contracts.intent import IntentRequest
from contracts.proposal import Proposal
from contracts.reasons import EffectOutcome, Reason
from contracts.saga import WORKFLOW
from worker.settings import Settings

RPC_SECONDS: Final = 5.0
_SUMMARY_LENGTH_MAX: Final = 200
_FAIRNESS_KEY_LENGTH_MAX: Final = 64
_BUSY = (RPCStatusCode.RESOURCE_EXHAUSTED,)


@dataclass(frozen=True)
class Starts:
    """Starts sagas under the ids that are made from their keys."""

    client: Client
    settings: Settings

    async def start(
        self, request: IntentRequest, proposal: Proposal, *, eager: bool = False, over_a_closed_run: bool = False
    ) -> WorkflowHandle[Any, Envelope]:
        """Start the saga; `over_a_closed_run`: also when a run under this id ended well.

        Raises SagaError (DEPENDENCY_DOWN, RATE_LIMITED), WorkflowAlreadyStartedError.
        """
        policy = WorkflowIDReusePolicy
        tools = " → ".join(step.contract.name for step in proposal.steps if step.stands_for is None)
        try:
            handle: WorkflowHandle[Any, Envelope] = await self.client.start_workflow(
                WORKFLOW,
                request,
                id=proposal.intent_id,
                task_queue=self.settings.task_queue,
                result_type=Envelope,
                id_reuse_policy=policy.ALLOW_DUPLICATE if over_a_closed_run else policy.ALLOW_DUPLICATE_FAILED_ONLY,
                id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
                task_timeout=timedelta(seconds=self.settings.workflow_task_timeout_seconds),
                memo={"body_digest": proposal.body_digest, "tenant": proposal.caller.tenant},
                static_summary=tools[:_SUMMARY_LENGTH_MAX],
                request_eager_start=eager,
                priority=Priority(fairness_key=proposal.caller.tenant[:_FAIRNESS_KEY_LENGTH_MAX]),
                rpc_timeout=timedelta(seconds=RPC_SECONDS),
            )
        except RPCError as error:
            raise down(error) from error
        except RuntimeError as error:  # a client that connects with its first call
            raise SagaError(Reason.DEPENDENCY_DOWN, "Temporal does not answer; send the same post again.") from error
        return handle


def down(error: RPCError) -> SagaError:
    """Translate Temporal's silence; the same post may be sent again and joins."""
    if error.status in _BUSY:
        return SagaError(
            Reason.RATE_LIMITED,
            "Temporal takes no more starts just now; post it again in a moment.",
            outcome=EffectOutcome.UNKNOWN,
        )
    return SagaError(
        Reason.DEPENDENCY_DOWN,
        f"Temporal did not acknowledge ({error.status.name}); the same post may be sent again and joins what runs.",
        details={"status": error.status.name},
    )
