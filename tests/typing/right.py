"""The correct twin of `wrong/`: every call there, as it should be. Both type checkers find nothing here."""

from typing import Annotated, Final

from pydantic import Field

from activities.database import Transaction
from activities.tool import Compensated, Pack, StepContext, Tool
from contracts.base import Contract
from contracts.envelope import Envelope
from contracts.errors import SagaError
from contracts.intent import Caller
from contracts.reasons import Reason
from contracts.saga import Claim, Decision, StepCall
from contracts.tool import Description, Example, SideEffect, ToolContract
from worker.door import Door


class GrantPoints(Contract):
    """Arguments."""

    card_id: Annotated[str, Field(pattern=r"^L[0-9]{6}$", description="The card.", examples=["L000001"])]
    points: Annotated[int, Field(gt=0, le=10_000, description="How many points.", examples=[250])]


class GrantedPoints(Contract):
    """What comes back."""

    points_total: Annotated[int, Field(ge=0, le=10**9, description="Points on the card now.", examples=[750])]


class OtherInput(Contract):
    """Arguments of another tool."""

    other_id: Annotated[str, Field(pattern=r"^L[0-9]{6}$", description="Another.", examples=["L000001"])]


class OtherOutput(Contract):
    """What another tool gives."""

    other_total: Annotated[int, Field(ge=0, le=10**9, description="Another.", examples=[1])]


async def grant(transaction: Transaction, points: GrantPoints, context: StepContext) -> GrantedPoints:
    """Do it."""
    row = await transaction.one("select %s as total, %s as key", (points.points, context.step_key))
    return GrantedPoints(points_total=row["total"] if row else 0)


async def undo(
    transaction: Transaction, points: GrantPoints, output: GrantedPoints | None, context: StepContext
) -> Compensated:
    """Undo it."""
    await transaction.later("select %s, %s", (points.card_id, context.step_key))
    return Compensated(residue=None if output else "the outcome was not known")


async def check_total(_: Transaction, points: GrantPoints, output: GrantedPoints, context: StepContext) -> None:
    """Look whether it holds."""
    if output.points_total < points.points:
        raise SagaError(Reason.POSTCONDITION_FAILED, f"Step {context.step_id} left too few points.")


CONTRACT: Final = ToolContract(
    name="grant_typed_points",
    title="Grant points",
    description=Description(
        does="Adds points to a card.",
        use_when="points were promised.",
        not_when="money is meant.",
        needs="a card, looked up.",
        returns="the card's points.",
    ),
    side_effect=SideEffect.REVERSIBLE,
    compensates_by="Takes the points back.",
    input=GrantPoints,
    output=GrantedPoints,
    reasons=(Reason.OBJECT_NOT_FOUND,),
    examples=(Example(utterance="Give me my 250 points.", arguments={"card_id": "L000001", "points": 250}),),
)
TOOL: Final = Tool(contract=CONTRACT, execute=grant, compensate=undo, verify=check_total)
PACK: Final = Pack(name="typed", tools=(TOOL,), resources={})

CLAIM: Final = Claim(intent_key="0" * 64, workflow_id="w", run_id="r", epoch=1)
CALL: Final = StepCall(claim=CLAIM, step_id="a", arguments={"card_id": "L000001", "points": 250})
DECISION: Final = Decision(
    decision_id="d1", plan_digest="0" * 64, verdict="approve", approver="ann", step_id="a", reason="seen"
)


async def post(door: Door, caller: Caller) -> Envelope:
    """Post bytes."""
    return await door.post(b"{}", caller, wait_seconds=0.5, eager=False)
