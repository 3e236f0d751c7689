"""A tool: its contract and the handlers that do the work. A pack: the tools that one file brings."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, LiteralString

from activities.database import Transaction
from contracts.tool import In, Out, ToolContract


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
    """

    contract: ToolContract[In, Out]
    execute: Callable[[Transaction, In, StepContext], Awaitable[Out]]
    compensate: Callable[[Transaction, In, Out | None, StepContext], Awaitable[Compensated]] | None = None
    verify: Callable[[Transaction, In, Out, StepContext], Awaitable[None]] | None = None


AnyTool = Tool[Any, Any]


@dataclass(frozen=True, kw_only=True)
class Pack:
    """What a module of `activities/packs` exports as `PACK`.

    `resources` maps a kind of object to the query by which admission reads it: one parameter, a list of ids;
    columns object_id, tenant, principal (null: belongs to the tenant), state, currency, available_cents,
    limit_cents (null: none), and nothing else but, if it may be so, draws_on_tenant (true: what is taken through it
    is the tenant's, whoever may ask). A worker checks the columns when it starts.
    """

    name: str
    tools: tuple[AnyTool, ...]
    resources: Mapping[str, LiteralString] = field(default_factory=dict[str, LiteralString])
