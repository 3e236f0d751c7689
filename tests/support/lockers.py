"""A pack for tests: books that are claimed, shared and found. What a claim writes is a note with its step's name."""

from typing import Annotated, Final, LiteralString

import psycopg
from pydantic import Field

from activities.database import Transaction
from activities.tool import Compensated, Pack, StepContext, Tool
from contracts.base import Contract, JsonObject
from contracts.reasons import Reason
from contracts.tool import Access, Description, Example, LockMode, ResourceUse, SideEffect, ToolContract
from tests.support.samples import Behaviour

ANNA: Final = "B00000011"
BORIS: Final = "B00000012"
CHLOE: Final = "B00000013"
"""Three books of the customer's."""
_BOOKS: Final[LiteralString] = """
insert into samples.books values ('B00000011', 'bank', 'customer', 'OPEN'), ('B00000012', 'bank', 'customer', 'OPEN'),
    ('B00000013', 'bank', 'customer', 'OPEN')
"""
_WRITE: Final[LiteralString] = """
insert into samples.notes (step_key, transaction_id, text, memo_given, tags) values (%s, %s, %s, false, '{}')
"""

BookId = Annotated[str, Field(pattern=r"^B[0-9]{8}$", description="A book.", examples=[ANNA])]


class LockSampleBook(Contract):
    """A book, and another one."""

    book_id: BookId
    other_id: BookId | None = None


class SampleBook(Contract):
    """A book."""

    book_id: BookId


def create_books(database_url: str) -> None:
    """Add the books, as the superuser; the tables of the sample pack are there."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(_BOOKS)


def lockers_pack(behaviour: Behaviour) -> Pack:
    """Make the pack; its handlers do what `behaviour` says."""

    async def write(transaction: Transaction, step: LockSampleBook, context: StepContext) -> SampleBook:
        await behaviour.at(context.step_id, "before")
        await transaction.later(_WRITE, (context.step_key, context.transaction_id, context.step_id))
        return SampleBook(book_id=step.book_id)

    async def strike(
        transaction: Transaction, _: LockSampleBook, __: SampleBook | None, context: StepContext
    ) -> Compensated:
        await behaviour.at(f"undo:{context.step_id}", "before")
        await transaction.later("update samples.notes set struck = true where text = %s", (context.step_id,))
        return Compensated()

    async def find(transaction: Transaction, step: SampleBook, context: StepContext) -> SampleBook:
        await behaviour.at(context.step_id, "before")
        await transaction.one("select 1 as one")
        return step

    return Pack(
        name="lockers",
        tools=(
            Tool(contract=locking("claim_sample_book", LockMode.EXCLUSIVE), execute=write, compensate=strike),
            Tool(contract=locking("share_sample_book", LockMode.SHARED), execute=write, compensate=strike),
            Tool(contract=locking("trust_sample_book", LockMode.NONE), execute=write, compensate=strike),
            Tool(contract=FIND, execute=find),
        ),
    )


def _description(does: str) -> Description:
    return Description(
        does=does, use_when="a test needs it.", not_when="it does not.", needs="a book.", returns="the book."
    )


def book_use(argument: str, lock: LockMode) -> ResourceUse:
    """Declare that an argument names a book, which is locked so."""
    return ResourceUse(
        argument=argument, kind="book", access=Access.READ, states=frozenset({"OPEN", "SHUT"}), lock=lock
    )


def locking(name: str, mode: LockMode, *, may_refuse: bool = True) -> ToolContract[LockSampleBook, SampleBook]:
    """Declare a tool that locks the books that its arguments name."""
    return ToolContract(
        name=name,
        title="Lock a book",
        description=_description("Locks a book."),
        side_effect=SideEffect.REVERSIBLE,
        input=LockSampleBook,
        output=SampleBook,
        may_refuse=may_refuse,
        reasons=(Reason.WRONG_STATE,) if may_refuse else (),
        resources=(book_use("book_id", mode), book_use("other_id", mode)),
        compensates_by="The note is struck out.",
        examples=(Example(utterance="Take it.", arguments={"book_id": ANNA}),),
        owner="tests",
    )


FIND: Final = ToolContract(
    name="find_sample_book",
    title="Find a book",
    description=_description("Finds a book."),
    side_effect=SideEffect.READ_ONLY,
    input=SampleBook,
    output=SampleBook,
    reasons=(Reason.WRONG_STATE,),
    resources=(book_use("book_id", LockMode.NONE),),
    examples=(Example(utterance="Where is it?", arguments={"book_id": ANNA}),),
)


def claim(step_id: str, book_id: str, **arguments: object) -> JsonObject:
    """A step that needs a book for itself."""
    return {"step_id": step_id, "tool": "claim_sample_book", "arguments": {"book_id": book_id, **arguments}}


def share(step_id: str, book_id: str, **arguments: object) -> JsonObject:
    """A step that needs a book to stay as it is."""
    return {"step_id": step_id, "tool": "share_sample_book", "arguments": {"book_id": book_id, **arguments}}


def trust(step_id: str, book_id: str, **arguments: object) -> JsonObject:
    """A step that locks nothing."""
    return {"step_id": step_id, "tool": "trust_sample_book", "arguments": {"book_id": book_id, **arguments}}


def find(step_id: str, book_id: str) -> JsonObject:
    """A step that only reads."""
    return {"step_id": step_id, "tool": "find_sample_book", "arguments": {"book_id": book_id}}


def found_by(step_id: str) -> JsonObject:
    """The book that a step found."""
    return {"$from": f"{step_id}.book_id"}
