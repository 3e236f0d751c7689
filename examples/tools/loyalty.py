"""A tool is one file: closed models, two handlers inside the effect's transaction, one contract, one PACK."""

from typing import Annotated

from pydantic import Field

from activities.database import Transaction
from activities.tool import Compensated, Pack, StepContext, Tool
from contracts import tool as of
from contracts.base import Contract
from contracts.errors import SagaError
from contracts.reasons import Reason

ADD = """
update loyalty.cards set points = points + %s
where card_id = %s and tenant = %s and principal = %s
returning points
"""


class Grant(Contract):
    """What the agent fills in; whose card it is comes from the engine."""

    card_id: Annotated[str, Field(pattern=r"^L[0-9]{6}$", description="The card.", examples=["L000001"])]
    points: Annotated[int, Field(gt=0, le=10_000, description="How many points.", examples=[250])]


class Granted(Contract):
    """What the agent gets back."""

    points_total: Annotated[int, Field(ge=0, le=10**9, description="Points on the card now.", examples=[750])]


async def grant_points(transaction: Transaction, grant: Grant, context: StepContext) -> Granted:
    """Add the points, or refuse with a typed reason; the engine makes it happen once."""
    card = await transaction.one(ADD, (grant.points, grant.card_id, context.tenant, context.principal))
    if card is None:
        raise SagaError(Reason.OBJECT_NOT_FOUND, f"There is no card {grant.card_id}; look it up.")
    return Granted(points_total=card["points"])


async def take_back(transaction: Transaction, grant: Grant, _: Granted | None, context: StepContext) -> Compensated:
    """Undo it; a refusal here parks the step and calls a person."""
    await grant_points(transaction, grant.model_copy(update={"points": -grant.points}), context)
    return Compensated()


CONTRACT = of.ToolContract(
    name="grant_loyalty_points",
    title="Grant loyalty points",
    description=of.Description(
        does="Adds points to a card.",
        use_when="points were promised.",
        not_when="money is meant.",
        needs="a card, looked up.",
        returns="the card's points.",
    ),
    side_effect=of.SideEffect.REVERSIBLE,
    compensates_by="Takes the points back.",
    input=Grant,
    output=Granted,
    reasons=(Reason.OBJECT_NOT_FOUND,),
    examples=(of.Example(utterance="Give me my 250 points.", arguments={"card_id": "L000001", "points": 250}),),
)
PACK = Pack(name="loyalty", tools=(Tool(contract=CONTRACT, execute=grant_points, compensate=take_back),))
