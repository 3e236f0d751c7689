"""Reservations that are confirmed: try, confirm, cancel (TCC), as steps of one plan.

A tool that declares `confirms` reserves when it executes. The plan then ends with one more step for each such step,
which makes the reservation final. It is a step like any other one that cannot be undone: with a key, a proof and an
effect of its own. The first confirmation waits for all other steps and is the point of no return; the others wait for
it, so that until one has landed none has begun. A plan with a pivot of its own has that point behind it by then.
Source of the pattern: Pardon & Pautasso, Atomic Distributed Transactions: a RESTful Design (2014).
"""

from collections.abc import Hashable, Iterator, Sequence
from datetime import datetime
from functools import cache
from typing import Any, Final, Generic

from pydantic import BaseModel, create_model

from contracts.base import Contract, JsonObject
from contracts.binding import bindings_of
from contracts.errors import Phase, SagaError
from contracts.graph import Node
from contracts.intent import FROM
from contracts.reasons import Reason
from contracts.shape import shape_of
from contracts.strictness import check_model
from contracts.tool import AnyContract, Description, Dispatch, In, Out, SideEffect, ToolContract

SUFFIX: Final = ".confirm"
"""No id that is posted has a dot, and no tool's name: what ends so was appended by the engine."""
STEP: Final = "step"
RESERVATION: Final = "reservation"
GIVEN: Final = frozenset({STEP, RESERVATION})


class Confirming(Contract, Generic[In, Out]):
    """What a confirmation is given: the arguments of the step that reserved, and what that answered."""

    step: In
    reservation: Out


class ConfirmationContract(ToolContract[Any, Any]):
    """The contract of a tool's confirmation, made from the tool's own; no agent can name it."""

    @property
    def wire_name(self) -> str:
        """Name of the activity: `reserve_customer_payment@1.confirm`."""
        return f"{self.name}@{self.major}{SUFFIX}"


def confirms(step_id: str) -> str | None:
    """Name the step that a step confirms; None for one that was posted."""
    return step_id.removesuffix(SUFFIX) if step_id.endswith(SUFFIX) else None


def confirmation_of(contract: AnyContract) -> AnyContract | None:
    """Make the contract of a tool's confirmation; None when it needs none.

    Whatever hides a field of the tool hides the whole of what its confirmation is given.
    """
    if contract.confirms is None:
        return None
    described = contract.description
    return ConfirmationContract(
        name=contract.name,
        major=contract.major,
        title=contract.title,
        description=Description(
            does=contract.confirms.does,
            use_when=f"a step of {contract.wire_name} and all other steps have landed; the engine sees to it.",
            not_when="anybody asks for it.",
            needs=described.returns,
            returns="what became of the reservation.",
        ),
        side_effect=SideEffect.IRREVERSIBLE,
        may_refuse=False,
        input=_model(contract.input, contract.output),
        output=contract.confirms.output,
        dispatch=contract.dispatch,
        timeout_seconds=contract.timeout_seconds,
        attempts_max=contract.attempts_max,
        duplicate_window_seconds=contract.duplicate_window_seconds,
        sensitive_fields=contract.sensitive_fields | GIVEN if contract.sensitive_fields else contract.sensitive_fields,
        owner=contract.owner,
    )


def _model(takes: type[BaseModel], gives: type[BaseModel]) -> type[Confirming[Any, Any]]:
    return _model_of(takes, gives)


@cache
def _model_of(takes: Hashable, gives: Hashable) -> type[Confirming[Any, Any]]:
    """Make the model once: schemas are kept by model."""
    fields: dict[str, Any] = {STEP: (takes, ...), RESERVATION: (gives, ...)}
    return create_model("Confirming", __base__=Confirming, **fields)


def confirmations(nodes: Sequence[Node]) -> list[Node]:
    """List the steps that confirm these, which are in topological order.

    Where one of these cannot be undone itself, it is decided before anything is confirmed, and none waits for another.
    """
    found: list[Node] = []
    every = tuple(other.step_id for other in nodes)
    decided = any(other.contract.side_effect is SideEffect.IRREVERSIBLE for other in nodes)
    for node in nodes:
        contract = confirmation_of(node.contract)
        if contract is None:
            continue
        arguments: JsonObject = {
            STEP: node.arguments,
            RESERVATION: {name: {FROM: f"{node.step_id}.{name}"} for name in node.contract.output.model_fields},
        }
        needs = every if decided or not found else (found[0].step_id, node.step_id)
        bindings, _ = bindings_of(arguments)
        needs = tuple(dict.fromkeys((*needs, *(binding.step_id for binding in bindings))))
        found.append(Node(f"{node.step_id}{SUFFIX}", contract, arguments, needs, bindings))
    return found


def check_confirmation(contract: AnyContract) -> Iterator[str]:
    """List what is wrong with what a contract says of its confirmation, each line saying what to change."""
    declared = contract.confirms
    if declared is None:
        return
    if contract.side_effect is not SideEffect.REVERSIBLE:
        yield f"confirms: it is {contract.side_effect}, a reservation can be given up; declare it REVERSIBLE"
    if contract.dispatch is not Dispatch.DATABASE:
        yield "confirms: it is REMOTE, and only what our own database keeps is confirmed yet; take confirms away"
    if not declared.does.strip():
        yield "confirms.does: say in one sentence what becomes final"
    if contract.amount is not None and contract.amount.paid_into is not None:
        yield "amount.paid_into: what is reserved has not been paid in yet; take paid_into away"
    yield from check_model(declared.output, "confirms.output", "serialization")
    place = shape_of(contract.output, "serialization").at((declared.expires_at,))
    if place is None or place.schema.get("format") != "date-time":
        yield f"confirms.expires_at: {declared.expires_at!r} is no output field that is a moment"
    place = shape_of(contract.input).at((declared.lasts,)) if declared.lasts is not None else None
    if declared.lasts is not None and (place is None or place.kind != "integer"):
        yield f"confirms.lasts: {declared.lasts!r} is no argument that is a number of seconds"


def check_lasts(step_id: str, contract: AnyContract, arguments: JsonObject, deadline_seconds: int) -> None:
    """Refuse a reservation that lasts less than its intent may take, as far as its arguments say how long.

    Raises SagaError(ARGUMENTS_INVALID).
    """
    declared = contract.confirms
    if declared is None or declared.lasts is None:
        return
    seconds = arguments.get(declared.lasts, contract.input.model_fields[declared.lasts].get_default())
    if isinstance(seconds, int) and seconds < deadline_seconds:
        raise SagaError(
            Reason.ARGUMENTS_INVALID,
            f"Step {step_id!r} reserves for {seconds} seconds, and the intent may take {deadline_seconds}: it could"
            f" expire before it is confirmed. Let {declared.lasts} be at least {deadline_seconds}.",
            details={"step_id": step_id, "seconds": seconds, "deadline_seconds": deadline_seconds},
            phase=Phase.VALIDATION,
        )


def expires_too_early(step_id: str, expires_at: datetime, deadline_at: datetime) -> SagaError:
    """Make the refusal of a reservation that was made and would not outlast its intent."""
    return SagaError(
        Reason.WINDOW_CLOSED,
        f"What step {step_id!r} reserved expires at {expires_at.isoformat()}, before the intent's deadline at"
        f" {deadline_at.isoformat()}: it could expire before it is confirmed. Reserve for longer.",
        details={
            "step_id": step_id,
            "expires_at": expires_at.isoformat(),
            "deadline_at": deadline_at.isoformat(),
        },
        phase=Phase.EXECUTION,
    )
