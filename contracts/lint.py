"""Is a contract good enough for what its tool does? The demands rise with the risk (DESIGN.md section 7)."""

import json
from collections.abc import Iterator
from typing import Any, Final

from pydantic import ValidationError

from contracts.confirmation import check_confirmation
from contracts.problems import field_problems
from contracts.remoteness import check_remote
from contracts.shape import Place, shape_of
from contracts.strictness import check_model
from contracts.tool import (
    DAY_SECONDS,
    TOOL_NAME,
    TOOL_NAME_LENGTH_MAX,
    Access,
    AnyContract,
    Dispatch,
    Duty,
    Idempotency,
    LockMode,
    SideEffect,
)

MAJOR_MAX: Final = 999
TITLE_LENGTH_MAX: Final = 60
SENTENCE_LENGTH_MAX: Final = 300
ATTEMPTS_MAX: Final = 100
_PARTS: Final = ("does", "use_when", "not_when", "needs", "returns")
_WRITING: Final = (Access.TAKE, Access.HOLD, Access.LOCK, Access.PAY_INTO)


def check_contract(contract: AnyContract) -> list[str]:
    """List everything that is wrong with a contract, each line saying what to change; empty when it is right."""
    models = [
        *check_model(contract.input, "input", "validation"),
        *check_model(contract.output, "output", "serialization"),
    ]
    wrong = [*_check_name(contract), *_check_words(contract), *models]
    wrong += [*_check_level(contract), *_check_consistency(contract), *_check_numbers(contract)]
    wrong += [*check_remote(contract), *check_confirmation(contract)]
    if not models:  # what follows reads the schemas
        wrong += [*_check_places(contract), *_check_examples(contract)]
    return wrong


def level_of(contract: AnyContract) -> int:
    """Give the least level L1..L4 whose demands the contract has to meet, from what it says of itself."""
    if contract.duty is not Duty.NONE:
        return 4
    if contract.amount is not None or contract.side_effect is SideEffect.IRREVERSIBLE:
        return 3
    return 2 if contract.writes else 1


def _check_name(contract: AnyContract) -> Iterator[str]:
    if TOOL_NAME.fullmatch(contract.name) is None:
        yield f"rename {contract.name!r} to verb_object_qualifier: three to five lower-case words joined by _"
    if len(contract.name) > TOOL_NAME_LENGTH_MAX:
        yield f"shorten the name to at most {TOOL_NAME_LENGTH_MAX} characters"
    if not 1 <= contract.major <= MAJOR_MAX:
        yield f"major is {contract.major}; use 1 to {MAJOR_MAX}"


def _check_words(contract: AnyContract) -> Iterator[str]:
    if not 1 <= len(contract.title.strip()) <= TITLE_LENGTH_MAX:
        yield f"give it a title of 1 to {TITLE_LENGTH_MAX} characters"
    for part in _PARTS:
        if not 1 <= len(getattr(contract.description, part).strip()) <= SENTENCE_LENGTH_MAX:
            yield f"description.{part}: write one sentence of at most {SENTENCE_LENGTH_MAX} characters"


def _check_level(contract: AnyContract) -> Iterator[str]:
    demands = (_demand_nothing, _demand_answers, _demand_safety, _demand_owner)
    for demand in demands[: level_of(contract)]:
        yield from demand(contract)


def _demand_nothing(_: AnyContract) -> Iterator[str]:
    """L1 asks for a schema, which the models have by now."""
    yield from ()


def _demand_answers(contract: AnyContract) -> Iterator[str]:
    if not contract.output.model_fields:
        yield "L2: give the output model at least one field"
    if contract.may_refuse and not contract.reasons:
        yield "L2: list the reasons for which it may refuse, or set may_refuse=False"
    if not contract.examples:
        yield "L2: give at least one example call"


def _demand_safety(contract: AnyContract) -> Iterator[str]:
    if contract.idempotency is Idempotency.NONE:
        yield "L3: a repeat has to be recognised; set idempotency to native, header or lookup"
    if not contract.resources:
        yield "L3: name in resources the objects that it touches"
    for use in contract.resources:
        if not use.states:
            yield f"L3: resources.{use.argument}: list the states in which it is allowed"


def _demand_owner(contract: AnyContract) -> Iterator[str]:
    if not contract.owner:
        yield "L4: name the owner who answers for the tool"


def _check_consistency(contract: AnyContract) -> Iterator[str]:
    reversible = contract.side_effect is SideEffect.REVERSIBLE
    if reversible and not (contract.compensates_by or "").strip():
        yield "it is REVERSIBLE: say in compensates_by what compensation does, or declare it IRREVERSIBLE"
    if not reversible and contract.compensates_by is not None:
        yield f"it is {contract.side_effect}: take compensates_by away, or declare it REVERSIBLE"
    if not contract.may_refuse and contract.reasons:
        yield "it may not refuse but lists reasons; take them away or set may_refuse=True"
    if not contract.writes:
        if contract.amount is not None or contract.duty is not Duty.NONE:
            yield "it is READ_ONLY: take amount and duty away"
        if contract.makes:
            yield "it is READ_ONLY: it makes nothing, take makes away"
        for use in contract.resources:
            if use.access in _WRITING or use.state_after is not None:
                yield f"it is READ_ONLY: resources.{use.argument} may only be READ and changes no state"
    if contract.dispatch is Dispatch.DATABASE and contract.idempotency is not Idempotency.NATIVE:
        yield "it writes in our database, where the barrier knows repeats: set idempotency to native"


def _check_numbers(contract: AnyContract) -> Iterator[str]:
    if not 0 < contract.timeout_seconds <= DAY_SECONDS:
        yield f"timeout_seconds is {contract.timeout_seconds}; use more than 0 and at most {DAY_SECONDS}"
    if not 1 <= contract.attempts_max <= ATTEMPTS_MAX:
        yield f"attempts_max is {contract.attempts_max}; use 1 to {ATTEMPTS_MAX}"
    if contract.duplicate_window_seconds < 1:
        yield "duplicate_window_seconds has to be at least 1"


def _check_places(contract: AnyContract) -> Iterator[str]:
    yield from _check_resources(contract)
    yield from _check_makes(contract)
    yield from _check_amount(contract)
    yield from _check_identity(contract)
    fields = contract.input.model_fields
    if contract.rows_argument is not None:
        place = _place(contract, contract.rows_argument)
        if place is None or place.kind not in ("integer", "array"):
            yield f"rows_argument: {contract.rows_argument!r} is no argument that is a number or an array"
    for name in sorted(contract.sensitive_fields):
        if name not in fields and name not in contract.output.model_fields:
            yield f"sensitive_fields: {name!r} is no field of input or output"
    for name in contract.approval_state:
        if name.partition(".")[0] not in fields and not _is_output(contract, name):
            yield f"approval_state: {name!r} begins with no argument and is no output field"


def _check_resources(contract: AnyContract) -> Iterator[str]:
    names = [use.argument for use in contract.resources]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"resources.{name}: listed twice; say what is done to it in one entry"
    for use in contract.resources:
        yield from _check_argument(contract, f"resources.{use.argument}", use.argument, "string")
        if not use.kind:
            yield f"resources.{use.argument}: say of which kind the object is"
        if not contract.writes and use.lock is not LockMode.NONE:
            yield f"resources.{use.argument}: reading locks nothing, and leaves no lock behind; take {use.lock} out"


def _check_makes(contract: AnyContract) -> Iterator[str]:
    output = shape_of(contract.output, "serialization")
    names = [made.output for made in contract.makes]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"makes.{name}: listed twice; one output gives the id of one object"
    for made in contract.makes:
        place = output.at(tuple(made.output.split(".")))
        if place is None or place.kind != "string":
            yield f"makes.{made.output}: there is no such output that is a string"
        if not made.kind or not made.state:
            yield f"makes.{made.output}: say of which kind the object is, and in which state"
        if made.amount is not None:
            yield from _check_argument(contract, f"makes.{made.output}.amount", made.amount, "integer")


def _check_identity(contract: AnyContract) -> Iterator[str]:
    fields = contract.input.model_fields
    if contract.identity_fields == ():
        yield "identity_fields is empty, so all calls would be one; leave it out to take all arguments"
    for name in contract.identity_fields or ():
        if name not in fields:
            yield f"identity_fields: {name!r} is no argument; choose of: {', '.join(fields)}"


def _check_amount(contract: AnyContract) -> Iterator[str]:
    amount = contract.amount
    if amount is None:
        return
    yield from _check_argument(contract, "amount.argument", amount.argument, "integer")
    if not amount.argument.endswith("_cents"):
        yield f"amount.argument: rename {amount.argument!r} so that it ends with its unit, _cents"
    yield from _check_argument(contract, "amount.currency", amount.currency, "string")
    place = _place(contract, amount.currency)
    if place is not None and place.words is None:
        yield f"amount.currency: make {amount.currency!r} a closed enum of ISO 4217 codes"
    named = (
        ("taken_from", amount.taken_from),
        ("paid_into", amount.paid_into),
        ("exactly_of", amount.exactly_of),
    )
    for what, name in named:
        if name is not None and name not in [use.argument for use in contract.resources]:
            yield f"amount.{what}: {name!r} is not among the resources; list it there"
        if name is not None:
            yield from _check_argument(contract, f"amount.{what}", name, "string")


def _check_argument(contract: AnyContract, what: str, name: str, kind: str) -> Iterator[str]:
    place = _place(contract, name)
    if place is None:
        yield f"{what}: there is no argument {name!r}; choose of: {', '.join(contract.input.model_fields)}"
    elif place.kind != kind:
        yield f"{what}: argument {name!r} has to be of type {kind}, it is {place.kind}"


def _check_examples(contract: AnyContract) -> Iterator[str]:
    for number, example in enumerate(contract.examples):
        if not example.utterance.strip():
            yield f"examples[{number}]: say in utterance what the user says"
        yield from _check_call(contract, f"examples[{number}]", example.arguments)
    shape = shape_of(contract.input)
    told = {name: shape.example(field) for name, field in shape.fields(shape.root)}
    yield from _check_call(contract, "the examples of the fields", told)


def _check_call(contract: AnyContract, what: str, arguments: dict[str, Any]) -> Iterator[str]:
    """Call with the arguments, as JSON: they have to be taken, and to come out as they went in."""
    shape = shape_of(contract.input)
    try:
        read = contract.input.model_validate_json(json.dumps(arguments))
    except ValidationError as error:
        for wrong in field_problems(error, shape, arguments):
            if wrong.code != "rule_broken" or what.startswith("examples["):
                yield f"{what}: {wrong.path}: {wrong.message} Allowed: {wrong.allowed}"
    except TypeError as error:
        yield f"{what}: is no JSON: {error}"
    else:
        if read.model_dump(mode="json") != shape.with_defaults(arguments):
            yield f"{what}: comes out of the model changed; the tool has to get what was sent"


def _place(contract: AnyContract, name: str) -> Place | None:
    """Find an argument by its name, dotted for one inside another."""
    return shape_of(contract.input).at(tuple(name.split(".")))


def _is_output(contract: AnyContract, name: str) -> bool:
    return shape_of(contract.output, "serialization").at(tuple(name.split("."))) is not None
