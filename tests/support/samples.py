"""A pack for tests: notes that are written, struck out, sealed, sent and read, and do what the test says they do.

`Behaviour` is the fake with state: it lets a handler refuse, fail, or wait for the test, before or after its write.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal, LiteralString

import psycopg
from pydantic import Field

from activities.database import Transaction
from activities.tool import Compensated, Pack, StepContext, Tool
from contracts.base import Contract, JsonObject
from contracts.errors import SagaError
from contracts.reasons import Reason
from contracts.tool import Access, Description, Duty, Example, ResourceUse, SideEffect, ToolContract
from tests.support.reserving import reserving_tool

Moment = Literal["outside", "before", "after"]
"""Of a handler: before the transaction begins, before its write, after it."""
BOOK: Final = "B00000001"

_SCHEMA: Final[LiteralString] = """
create schema samples;
create table samples.books (
    book_id text primary key, tenant text not null, principal text, state text not null default 'OPEN'
);
create table samples.notes (
    note_number bigint generated always as identity primary key, step_key text not null, transaction_id bigint unique,
    text text not null, memo text, memo_given boolean not null, tags text[] not null,
    struck boolean not null default false
);
insert into samples.books values ('B00000001', 'bank', null, 'OPEN'), ('B00000002', 'bank', 'customer', 'OPEN'),
    ('B00000003', 'bank', 'somebody-else', 'OPEN'), ('B00000004', 'other-bank', null, 'OPEN'),
    ('B00000005', 'bank', null, 'SHUT');
grant usage on schema samples to backstay_app;
grant select on all tables in schema samples to backstay_app;
grant insert, update on samples.notes to backstay_app;
"""


def create_tables(database_url: str) -> None:
    """Add the pack's tables, as the superuser."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(_SCHEMA)


@dataclass
class Gate:
    """A handler stands here: `reached` when it has come, goes on when the test calls `open`."""

    reached: asyncio.Event = field(default_factory=asyncio.Event)
    opened: asyncio.Event = field(default_factory=asyncio.Event)

    async def arrived(self) -> None:
        """Come back when the handler has come, and not never."""
        async with asyncio.timeout(20):
            await self.reached.wait()

    def open(self) -> None:
        """Let it, and all that come later, go on."""
        self.opened.set()


@dataclass
class Behaviour:
    """What handlers do, by step id; `undo:` before the id means its compensation. Counts every call."""

    calls: Counter[str] = field(default_factory=Counter[str])
    _gates: dict[tuple[str, Moment], Gate] = field(default_factory=dict[tuple[str, Moment], Gate])
    _errors: dict[tuple[str, Moment], list[Exception]] = field(
        default_factory=dict[tuple[str, Moment], list[Exception]]
    )
    _refusals: dict[str, Reason] = field(default_factory=dict[str, Reason])
    _residues: dict[str, str] = field(default_factory=dict[str, str])

    def refuse(self, name: str, reason: Reason = Reason.WRONG_STATE) -> None:
        """Say no, each time, until `allow`."""
        self._refusals[name] = reason

    def allow(self, name: str) -> None:
        """Take a refusal back."""
        del self._refusals[name]

    def fail(self, name: str, *errors: Exception, moment: Moment = "before") -> None:
        """Raise these, one per call."""
        self._errors.setdefault((name, moment), []).extend(errors)

    def hold(self, name: str, moment: Moment = "before") -> Gate:
        """Wait for the test."""
        return self._gates.setdefault((name, moment), Gate())

    def leave(self, name: str, residue: str) -> None:
        """Have a compensation leave something behind."""
        self._residues[name] = residue

    def residue(self, name: str) -> str | None:
        """What a compensation leaves."""
        return self._residues.get(name)

    async def at(self, name: str, moment: Moment) -> None:
        """Do what the test said; called by the handlers."""
        if moment == "before":
            self.calls[name] += 1
        if gate := self._gates.get((name, moment)):
            gate.reached.set()
            await gate.opened.wait()
        if errors := self._errors.get((name, moment)):
            raise errors.pop(0)
        if moment == "before" and name in self._refusals:
            raise SagaError(self._refusals[name], f"{name} says no.", details={"step": name})


class WriteSampleNote(Contract):
    """Arguments of a note."""

    book_id: Annotated[str, Field(pattern=r"^B[0-9]{8}$", description="The book.", examples=[BOOK])] = BOOK
    text: Annotated[str, Field(max_length=2_000, description="The note itself.", examples=["Called back."])]
    memo: Annotated[str, Field(max_length=200, description="More words.", examples=["vip"])] | None = None
    tags: Annotated[
        tuple[Annotated[str, Field(max_length=40, description="A tag.", examples=["vip"])], ...],
        Field(max_length=5, description="Tags, in order.", examples=[["vip"]]),
    ] = ()


class WrittenSampleNote(Contract):
    """What a note gives."""

    note_number: Annotated[int, Field(ge=1, le=2**53 - 1, description="Number of the note.", examples=[7])]
    text: Annotated[str, Field(max_length=2_000, description="As kept.", examples=["Called back."])]


class CheckSampleBook(Contract):
    """Arguments of a look into a book."""

    book_id: Annotated[str, Field(pattern=r"^B[0-9]{8}$", description="The book.", examples=[BOOK])] = BOOK


class CheckedSampleBook(Contract):
    """What a look gives."""

    text: Annotated[str, Field(max_length=2_000, description="Words for a note.", examples=["3 notes"])]


_WRITE: Final[LiteralString] = """
insert into samples.notes (step_key, transaction_id, text, memo, memo_given, tags)
values (%(step_key)s, %(transaction_id)s, %(text)s, %(memo)s, %(memo_given)s, %(tags)s) returning note_number, text
"""


def sample_pack(behaviour: Behaviour) -> Pack:
    """Make the pack; its handlers do what `behaviour` says."""

    async def write(transaction: Transaction, note: WriteSampleNote, context: StepContext) -> WrittenSampleNote:
        await behaviour.at(context.step_id, "before")
        row = await transaction.one(
            _WRITE,
            {
                "step_key": context.step_key,
                "transaction_id": context.transaction_id,
                "text": note.text,
                "memo": note.memo,
                "memo_given": "memo" in note.model_fields_set,
                "tags": list(note.tags),
            },
        )
        assert row is not None, "an insert returns its row"
        await behaviour.at(context.step_id, "after")
        return WrittenSampleNote(note_number=row["note_number"], text=row["text"])

    async def strike(
        transaction: Transaction, _: WriteSampleNote, output: WrittenSampleNote | None, context: StepContext
    ) -> Compensated:
        assert output is not None, "a database tool's outcome is known"
        name = f"undo:{context.step_id}"
        await behaviour.at(name, "before")
        await transaction.later("update samples.notes set struck = true where note_number = %s", (output.note_number,))
        await behaviour.at(name, "after")
        return Compensated(residue=behaviour.residue(name))

    async def check(transaction: Transaction, _: CheckSampleBook, context: StepContext) -> CheckedSampleBook:
        await behaviour.at(context.step_id, "before")
        row = await transaction.one("select count(*) as notes from samples.notes", ())
        assert row is not None, "a count is one row"
        return CheckedSampleBook(text=f"{row['notes']} notes")

    return Pack(
        name="samples",
        tools=(
            Tool(contract=_contract("write_sample_note"), execute=write, compensate=strike),
            Tool(contract=_contract("keep_sample_note", may_refuse=False), execute=write, compensate=strike),
            Tool(contract=_contract("guard_sample_note", duty=Duty.ONE), execute=write, compensate=strike),
            Tool(contract=_contract("seal_sample_note", effect=SideEffect.IRREVERSIBLE), execute=write),
            Tool(contract=CHECK, execute=check),
            reserving_tool(behaviour),
        ),
        resources={
            "book": "select book_id as object_id, tenant, principal, state, null as currency,"
            " null::bigint as available_cents, null::bigint as limit_cents from samples.books where book_id = any(%s)"
        },
    )


def _description(does: str) -> Description:
    return Description(
        does=does, use_when="a test needs it.", not_when="it does not.", needs="nothing else.", returns="what it did."
    )


def _contract(
    name: str, *, effect: SideEffect = SideEffect.REVERSIBLE, may_refuse: bool = True, duty: Duty = Duty.NONE
) -> ToolContract[WriteSampleNote, WrittenSampleNote]:
    return ToolContract(
        name=name,
        title="Write a note",
        description=_description("Writes a note."),
        side_effect=effect,
        input=WriteSampleNote,
        output=WrittenSampleNote,
        may_refuse=may_refuse,
        duty=duty,
        reasons=(Reason.WRONG_STATE,) if may_refuse else (),
        resources=(ResourceUse(argument="book_id", kind="book", access=Access.HOLD, states=frozenset({"OPEN"})),),
        compensates_by="The note is struck out." if effect is SideEffect.REVERSIBLE else None,
        examples=(Example(utterance="Note it.", arguments={"text": "Called back."}),),
        attempts_max=2,
        owner="tests",
    )


CHECK: Final = ToolContract(
    name="check_sample_book",
    title="Look into a book",
    description=_description("Counts the notes."),
    side_effect=SideEffect.READ_ONLY,
    input=CheckSampleBook,
    output=CheckedSampleBook,
    reasons=(Reason.WRONG_STATE,),
    resources=(ResourceUse(argument="book_id", kind="book", access=Access.READ, states=frozenset({"OPEN"})),),
    examples=(Example(utterance="What is in it?", arguments={}),),
)


def note(step_id: str, tool: str = "write", **arguments: object) -> JsonObject:
    """A step that writes a note: `tool` is write, keep, guard (asks), or seal (cannot be undone)."""
    return {"step_id": step_id, "tool": f"{tool}_sample_note", "arguments": {"text": step_id, **arguments}}


def look(step_id: str) -> JsonObject:
    """A step that only reads."""
    return {"step_id": step_id, "tool": "check_sample_book", "arguments": {}}
