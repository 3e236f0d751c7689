"""A tool for tests that reserves a note and confirms it; it does what its `Behaviour` says, as the sample pack does."""

from typing import TYPE_CHECKING, Annotated, Final, LiteralString

from pydantic import AwareDatetime, Field

from activities.database import Transaction
from activities.tool import Compensated, StepContext, Tool
from contracts.base import Contract, JsonObject
from contracts.reasons import Reason
from contracts.tool import Access, Confirmation, Description, Example, ResourceUse, SideEffect, ToolContract

if TYPE_CHECKING:
    from tests.support.samples import Behaviour

LASTS_SECONDS: Final = 100_000
_RESERVE: Final[LiteralString] = """
insert into samples.notes (step_key, transaction_id, text, memo_given, tags)
values (%s, %s, %s, false, '{}') returning note_number, text, now() + make_interval(secs => %s) as expires_at
"""
_CONFIRM: Final[LiteralString] = """
update samples.notes set memo = 'confirmed' where note_number = %s and not struck returning note_number
"""


class HoldSampleNote(Contract):
    """Arguments of a note that is reserved."""

    book_id: Annotated[str, Field(pattern=r"^B[0-9]{8}$", description="The book.", examples=["B00000001"])] = (
        "B00000001"
    )
    text: Annotated[str, Field(max_length=2_000, description="The note itself.", examples=["Called back."])]
    ttl_seconds: Annotated[
        int, Field(ge=1, le=10_000_000, description="How long it is kept.", examples=[LASTS_SECONDS])
    ] = LASTS_SECONDS


class HeldSampleNote(Contract):
    """What a reserved note gives."""

    note_number: Annotated[int, Field(ge=1, le=2**53 - 1, description="Number of the note.", examples=[7])]
    text: Annotated[str, Field(max_length=2_000, description="As kept.", examples=["Called back."])]
    expires_at: Annotated[AwareDatetime, Field(description="Until when it is kept.")]


class ConfirmedSampleNote(Contract):
    """What a confirmed note gives."""

    note_number: Annotated[int, Field(ge=1, le=2**53 - 1, description="Number of the note.", examples=[7])]


CONTRACT: Final = ToolContract(
    name="hold_sample_note",
    title="Reserve a note",
    description=Description(
        does="Reserves a note.",
        use_when="a test needs it.",
        not_when="it does not.",
        needs="nothing else.",
        returns="what it did.",
    ),
    side_effect=SideEffect.REVERSIBLE,
    input=HoldSampleNote,
    output=HeldSampleNote,
    reasons=(Reason.WRONG_STATE,),
    resources=(ResourceUse(argument="book_id", kind="book", access=Access.HOLD, states=frozenset({"OPEN"})),),
    compensates_by="The note is struck out.",
    confirms=Confirmation(
        does="Makes the note final.", output=ConfirmedSampleNote, expires_at="expires_at", lasts="ttl_seconds"
    ),
    examples=(Example(utterance="Note it.", arguments={"text": "Called back."}),),
    attempts_max=2,
    owner="tests",
)


def reserving_tool(behaviour: "Behaviour") -> Tool[HoldSampleNote, HeldSampleNote]:
    """Make the tool."""

    async def execute(transaction: Transaction, held: HoldSampleNote, context: StepContext) -> HeldSampleNote:
        await behaviour.at(context.step_id, "before")
        params = (context.step_key, context.transaction_id, held.text, held.ttl_seconds)
        row = await transaction.one(_RESERVE, params)
        assert row is not None, "an insert returns its row"
        await behaviour.at(context.step_id, "after")
        return HeldSampleNote.model_validate(row)

    async def cancel(
        transaction: Transaction, _: HoldSampleNote, output: HeldSampleNote | None, context: StepContext
    ) -> Compensated:
        assert output is not None, "a database tool's outcome is known"
        await behaviour.at(f"undo:{context.step_id}", "before")
        await transaction.later("update samples.notes set struck = true where note_number = %s", (output.note_number,))
        return Compensated(residue=behaviour.residue(f"undo:{context.step_id}"))

    async def confirm(
        transaction: Transaction, _: HoldSampleNote, output: HeldSampleNote, context: StepContext
    ) -> ConfirmedSampleNote:
        await behaviour.at(context.step_id, "before")
        row = await transaction.one(_CONFIRM, (output.note_number,))
        assert row is not None, "what is confirmed was not cancelled"
        await behaviour.at(context.step_id, "after")
        return ConfirmedSampleNote(note_number=row["note_number"])

    return Tool(contract=CONTRACT, execute=execute, compensate=cancel, confirm=confirm)


def held(step_id: str, **arguments: object) -> JsonObject:
    """A step that reserves a note."""
    return {"step_id": step_id, "tool": "hold_sample_note", "arguments": {"text": step_id, **arguments}}
