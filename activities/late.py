"""What the tables say of steps that are graded late, and what a barrier has to make of it."""

from typing import Final, LiteralString

from activities.database import Row, Transaction
from activities.standing import graded_of
from contracts.errors import SagaError
from contracts.keys import canonical_json
from contracts.plan import PlannedStep
from contracts.reasons import Reason
from contracts.saga import Graded, StepCall
from contracts.tool import Duty

_GRADES: Final[LiteralString] = """
select step_id, level, duty, because, arguments, digest from backstay.late_grades where intent_key = %s
"""


async def graded_steps(transaction: Transaction, intent_key: str) -> dict[str, Graded]:
    """Read the late grades of an intent, by step id."""
    return {row["step_id"]: graded_of(row) for row in await transaction.all(_GRADES, (intent_key,))}


async def asked_digest(transaction: Transaction, planned: PlannedStep, call: StepCall, standing: Row) -> str | None:
    """What the decision names that a step has to spend; None when nobody has to decide about it.

    Raises SagaError(MISMATCH) for a late step that was not graded, or was graded with other arguments.
    """
    if not planned.late:
        return standing["plan_digest"] if planned.duty is not Duty.NONE else None
    graded = (await graded_steps(transaction, call.claim.intent_key)).get(planned.step_id)
    if graded is None:
        raise SagaError(
            Reason.MISMATCH,
            f"Step {call.step_id!r} is graded only when {', '.join(planned.late)} is known, and was not.",
            details={"step_id": call.step_id},
        )
    late = {name.partition(".")[0] for name in planned.late}
    if any(canonical_json(graded.arguments[name]) != canonical_json(call.arguments.get(name)) for name in late):
        raise SagaError(
            Reason.MISMATCH,
            f"Step {call.step_id!r} was graded with other arguments.",
            details={"step_id": call.step_id},
        )
    return graded.digest if graded.duty is not Duty.NONE else None
