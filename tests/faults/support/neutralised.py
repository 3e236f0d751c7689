"""What the engine would be without its second look: only for the tests that must see money being lost.

`memory`: the way back undoes what the workflow remembers, not what `close_intent` lists. `trust`: settling looks for
no live effect on the way back. Both together are the usual hand-written saga.
"""

# pyright: reportPrivateUsage=false

from typing import Final
from unittest import mock

from activities import phase
from activities.database import Row, Transaction
from activities.standing import locked
from contracts.envelope import StepState
from contracts.saga import Claim, Closed, EffectSeen
from workflows import reducer
from workflows.state import State

MEMORY: Final = "memory"
TRUST: Final = "trust"


def apply(what: str) -> None:
    """Take the walls away that are named, separated by commas."""
    for wall in what.split(","):
        {MEMORY: undo_what_is_remembered, TRUST: trust_the_memory}[wall]()


def undo_what_is_remembered() -> None:
    """Let `close_intent` fence; but instead of its list, undo the steps that the workflow saw landing."""
    original = reducer._closed

    def closed(state: State, closed: Closed) -> reducer.Advance:
        remembered = tuple(
            EffectSeen(step_id=step.step_id, state="LANDED", transaction_id=step.transaction_id)
            for step in state.steps.values()
            if step.state is StepState.DONE and step.transaction_id is not None
        )
        return original(state, closed.model_copy(update={"effects": remembered}))

    mock.patch.object(reducer, "_closed", closed).start()


def trust_the_memory() -> None:
    """Let no live effect be seen once the intent is closing."""

    async def blind(transaction: Transaction, claim: Claim) -> tuple[Row, list[Row], list[Row]]:
        row, asked, effects = await locked(transaction, claim)
        seen = [effect for effect in effects if row["phase"] != "CLOSING" or effect["state"] != "LANDED"]
        return row, asked, seen

    mock.patch.object(phase, "locked", blind).start()
