"""A tool: its contract and the handlers that do the work. A pack: the tools that one file brings.

A `Tool` writes in our database, inside the effect's transaction. A `RemoteTool` calls somebody else, outside any
transaction, and says truthfully what it knows: an answer, a refusal, `OutcomeUnknownError` or `NotSentError`.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Generic, LiteralString

from pydantic import BaseModel

from activities.database import Transaction
from contracts.errors import SagaError
from contracts.reasons import EffectOutcome, Reason
from contracts.tool import In, Out, ToolContract

RETRY_AFTER_SECONDS_MAX: Final = 300.0


@dataclass(frozen=True, kw_only=True)
class StepContext:
    """What a handler may know besides its arguments; all of it injected by the engine, none by a model."""

    tenant: str
    principal: str
    agent: str
    intent_id: str
    step_id: str
    step_key: str
    transaction_id: int
    """Serial number of the effect that is being written; store it with the business row."""


@dataclass(frozen=True, kw_only=True)
class Compensated:
    """A compensation that was done; `residue` says in words what it could not restore."""

    residue: str | None = None


@dataclass(frozen=True, kw_only=True)
class Tool(Generic[In, Out]):
    """One tool. Handlers run inside the effect's transaction: what they raise rolls it back.

    execute(transaction, input, context) -> output. Raises SagaError to refuse.
    compensate(transaction, input, output, context) -> Compensated; `output` is None when the outcome of the
    execute is not known (never for a database tool). Raises SagaError when it cannot be undone: the step parks.
    verify(transaction, input, output, context): raises SagaError(POSTCONDITION_FAILED); the effect rolls back.
    confirm(transaction, input, output, context) -> the contract's `confirms.output`: make final what execute reserved,
    given what that took and answered; `context` is the confirmation's own. Refuses what has expired, by the database's
    clock, and else nothing; `compensate` of a reservation that has expired has nothing to do and succeeds.
    """

    contract: ToolContract[In, Out]
    execute: Callable[[Transaction, In, StepContext], Awaitable[Out]]
    compensate: Callable[[Transaction, In, Out | None, StepContext], Awaitable[Compensated]] | None = None
    verify: Callable[[Transaction, In, Out, StepContext], Awaitable[None]] | None = None
    confirm: Callable[[Transaction, In, Out, StepContext], Awaitable[BaseModel]] | None = None


AnyTool = Tool[Any, Any]


@dataclass(frozen=True, kw_only=True)
class RemoteContext(StepContext):
    """What a remote handler may know besides its arguments.

    `remote_key` is what the downstream is to know this very write by. In a compensation it is the compensation's own,
    and `execute_remote_key` that of what is undone.
    """

    remote_key: str
    execute_remote_key: str | None = None


@dataclass(frozen=True, kw_only=True)
class Landed(Generic[Out]):
    """The downstream has carried the key out; `output` as `execute` would have answered."""

    output: Out


@dataclass(frozen=True, kw_only=True)
class NotLanded:
    """The downstream has not carried the key out; it says that it may still do so until `changes_until` (aware).

    `refused`: it said no for good, and will to whatever else comes under this key; a definite reason.
    """

    changes_until: datetime | None = None
    refused: SagaError | None = None


@dataclass(frozen=True, kw_only=True)
class Unknown:
    """The downstream did not say; `detail` is for the person who is called in the end."""

    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class WorldMoved:
    """What landed is not as it was left, and others may have done that; `detail` says what, for people."""

    detail: str


class OutcomeUnknownError(SagaError):
    """The request may have landed: a timeout after sending, a lost or broken answer, a key that is in use."""

    def __init__(self, message: str, *, details: Mapping[str, Any] | None = None) -> None:
        """Say in `message` what was seen."""
        super().__init__(Reason.OUTCOME_UNKNOWN, message, details=details, outcome=EffectOutcome.UNKNOWN)


class NotSentError(SagaError):
    """Certainly nothing was carried out: no connection was made, or the downstream promised so (429, 503).

    `retry_after_seconds`: when it asked to come again; whatever it says is kept between 0 and five minutes.
    """

    def __init__(self, message: str, *, retry_after_seconds: float | None = None) -> None:
        """Say in `message` what was seen."""
        wait = None if retry_after_seconds is None else min(max(0.0, retry_after_seconds), RETRY_AFTER_SECONDS_MAX)
        super().__init__(Reason.DEPENDENCY_DOWN, message, details={"retry_after_seconds": wait})


@dataclass(frozen=True, kw_only=True)
class RemoteTool(Generic[In, Out]):
    """One tool whose write happens elsewhere. No handler is inside a transaction; each is given `timeout_seconds`.

    execute(context, input) -> output. Raises SagaError for a definite refusal, OutcomeUnknownError, NotSentError;
    whatever else it raises, and an answer that breaks the output model, is an unknown outcome. A field of the output
    that has the name of an input field echoes it: where they differ, the outcome is unknown too.
    lookup(context, input): what became of `context.remote_key`. Sends nothing that writes. It compares amounts and
    parties and not only the key: raises SagaError(MISMATCH) where something else was carried out under it.
    compensate(context, input, output) -> Compensated; `output` is None when only an operator knows that it landed.
    Raises as execute; the same `remote_key` may be sent again within the key's lifetime.
    cancel_by_key(context, input): tell the downstream never to carry `context.remote_key` out. NotLanded: it now never
    will; Landed: it had before.
    verify(context, input, output): read back what landed, and only what this very step made. Raises SagaError(MISMATCH)
    where something else was carried out under its key; WorldMoved: others may have made the difference. Whatever else
    it raises, it has landed and is told as not verified.
    """

    contract: ToolContract[In, Out]
    execute: Callable[[RemoteContext, In], Awaitable[Out]]
    lookup: Callable[[RemoteContext, In], Awaitable[Landed[Out] | NotLanded | Unknown]] | None = None
    compensate: Callable[[RemoteContext, In, Out | None], Awaitable[Compensated]] | None = None
    cancel_by_key: Callable[[RemoteContext, In], Awaitable[Landed[Out] | NotLanded | Unknown]] | None = None
    verify: Callable[[RemoteContext, In, Out], Awaitable[WorldMoved | None]] | None = None


AnyRemoteTool = RemoteTool[Any, Any]
AnySighting = Landed[Any] | NotLanded | Unknown


@dataclass(frozen=True, kw_only=True)
class Pack:
    """What a module of `activities/packs` exports as `PACK`.

    `resources` maps a kind of object to the query by which admission reads it: one parameter, a list of ids;
    columns object_id, tenant, principal (null: belongs to the tenant), state, currency, available_cents,
    limit_cents (null: none), and nothing else but, if it may be so, draws_on_tenant (true: what is taken through it
    is the tenant's, whoever may ask) and within (`kind:id` of the object that it is part of). A worker checks the
    columns when it starts.
    """

    name: str
    tools: tuple[AnyTool | AnyRemoteTool, ...]
    resources: Mapping[str, LiteralString] = field(default_factory=dict[str, LiteralString])


@dataclass(frozen=True, kw_only=True)
class DownstreamPack:
    """What such a module exports as `PACK` when its tools need a downstream: they are offered where it has an address.

    `make` is given that address, as the settings have it.
    """

    downstream: str
    make: Callable[[str], Pack]
