"""Behaviour of the registry: finding tools, and dying at start-up over a wrong contract with what to change."""

from dataclasses import replace
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

import pytest
from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    create_model,
    field_validator,
    model_validator,
)

from contracts.base import Contract, JsonValue
from contracts.errors import Phase, SagaError
from contracts.lint import check_contract, level_of
from contracts.reasons import Reason
from contracts.registry import Registry
from contracts.tool import (
    Access,
    AmountUse,
    AnyContract,
    Dispatch,
    Duty,
    Example,
    Idempotency,
    ObjectMade,
    ResourceUse,
    SideEffect,
    ToolContract,
)
from tests.unit.sample_contracts import BALANCE, CONTRACTS, DEBIT, FREEZE, NOTE, REFUND, describe, sample_registry

HOLD = ObjectMade(output="hold_id", kind="hold", state="OPEN", amount="amount_cents")


def told(description: str = "A field.", **options: JsonValue) -> JsonValue:
    return Field(description=description, **options)


WORD = told(examples=["x"], max_length=9)


def with_field(annotation: JsonValue, default: JsonValue = ...) -> AnyContract:
    """Make a tool whose input has one more field, `extra_count`."""
    model = create_model("Odd", __base__=NOTE.input, extra_count=(annotation, default))
    return replace(NOTE, input=model, examples=())


def lines_about(contract: AnyContract, place: str) -> list[str]:
    return [line for line in check_contract(contract) if place in line]


def test_the_samples_are_right() -> None:
    assert [line for contract in CONTRACTS for line in check_contract(contract)] == []
    assert len(sample_registry()) == len(CONTRACTS)


def test_a_tool_is_found_by_wire_name_and_by_name_in_its_latest_major() -> None:
    newer = replace(FREEZE, major=2)
    registry = Registry.of([newer, FREEZE])

    assert registry["freeze_sample_funds@1"] is FREEZE
    assert registry.resolve("freeze_sample_funds@1") is FREEZE
    assert registry.resolve("freeze_sample_funds") is newer
    assert registry.latest("freeze_sample_funds") is newer
    assert registry.latest("gone_sample_funds") is None
    assert list(registry) == ["freeze_sample_funds@2", "freeze_sample_funds@1"]


def test_a_registry_cannot_be_changed() -> None:
    registry = sample_registry()

    with pytest.raises(TypeError):
        registry["x@1"] = FREEZE  # type: ignore[index]  # pyright: ignore[reportIndexIssue]


@pytest.mark.parametrize(
    ("tool", "close"),
    [
        ("freeze_sample_fund", ["freeze_sample_funds@1"]),
        ("freeze_sample_funds@2", ["freeze_sample_funds@1"]),
        ("FreezeSampleFunds", []),
        ("freeze_sample_funds@1.compensate", ["freeze_sample_funds@1"]),
        ("", []),
        ("x" * 1_000_000, []),
    ],
)
def test_an_unknown_tool_is_a_typed_refusal_that_names_close_ones(tool: str, close: list[str]) -> None:
    with pytest.raises(SagaError) as caught:
        sample_registry().resolve(tool, path="steps[0].tool")

    (problem,) = caught.value.info.fields
    assert (caught.value.reason, caught.value.info.phase) == (Reason.TOOL_UNKNOWN, Phase.VALIDATION)
    assert (problem.path, problem.code) == ("steps[0].tool", "tool_unknown")
    assert problem.allowed.startswith("one of: ")
    assert problem.example in sample_registry()
    assert close == caught.value.info.details["close_matches"][: len(close)]
    assert len(str(caught.value)) < 400


def test_an_empty_registry_says_so() -> None:
    with pytest.raises(SagaError, match="no tool") as caught:
        Registry().resolve("freeze_sample_funds")

    assert caught.value.info.fields[0].example is None


def test_registration_lists_everything_that_is_wrong_in_all_contracts_at_once() -> None:
    with pytest.raises(ValueError, match="4 things are wrong") as caught:
        Registry.of([FREEZE, FREEZE, replace(DEBIT, title="", compensates_by=None), replace(NOTE, major=0)])

    lines = str(caught.value).splitlines()
    assert "  - freeze_sample_funds@1: registered twice; rename one or raise its major" in lines
    assert "  - debit_sample_funds@1: give it a title of 1 to 60 characters" in lines
    assert "  - write_sample_note@0: major is 0; use 1 to 999" in lines
    assert sum("compensates_by" in line for line in lines) == 1


@pytest.mark.parametrize(
    ("contract", "line"),
    [
        (replace(FREEZE, name="freeze"), "rename 'freeze' to verb_object_qualifier"),
        (replace(FREEZE, name="Freeze_Sample_Funds"), "verb_object_qualifier"),
        (replace(FREEZE, name="freeze_sample_funds\n"), "verb_object_qualifier"),
        (replace(FREEZE, name="freeze_../../etc_funds"), "verb_object_qualifier"),
        (replace(FREEZE, name="freeze_" + "x" * 48 + "_funds"), "shorten the name to at most 48"),
        (replace(FREEZE, major=1_000), "major is 1000"),
        (replace(FREEZE, description=describe(" ")), "description.does: write one sentence"),
        (replace(FREEZE, description=describe("x" * 301)), "description.does: write one sentence"),
        (replace(FREEZE, reasons=()), "L2: list the reasons"),
        (replace(FREEZE, examples=()), "L2: give at least one example"),
        (replace(FREEZE, output=create_model("Empty", __base__=Contract)), "L2: give the output model"),
        (replace(FREEZE, dispatch=Dispatch.REMOTE, idempotency=Idempotency.NONE), "L3: a repeat has to be recognised"),
        (
            replace(FREEZE, resources=(), amount=AmountUse(argument="amount_cents", currency="currency")),
            "L3: name in resources",
        ),
        (
            replace(FREEZE, resources=(replace(FREEZE.resources[0], states=frozenset()),)),
            "L3: resources.account_id: list",
        ),
        (replace(REFUND, owner=""), "L4: name the owner"),
        (replace(FREEZE, compensates_by=None), "it is REVERSIBLE: say in compensates_by"),
        (replace(FREEZE, compensates_by=" "), "it is REVERSIBLE: say in compensates_by"),
        (replace(REFUND, compensates_by="It is undone."), "it is IRREVERSIBLE: take compensates_by away"),
        (replace(BALANCE, compensates_by="It is undone."), "it is READ_ONLY: take compensates_by away"),
        (replace(BALANCE, duty=Duty.ONE, owner="x"), "it is READ_ONLY: take amount and duty away"),
        (
            replace(FREEZE, side_effect=SideEffect.READ_ONLY, compensates_by=None, amount=None),
            "resources.account_id may only be READ",
        ),
        (replace(FREEZE, may_refuse=False), "it may not refuse but lists reasons"),
        (replace(FREEZE, idempotency=Idempotency.LOOKUP), "set idempotency to native"),
        (replace(FREEZE, timeout_seconds=0), "timeout_seconds is 0"),
        (replace(FREEZE, timeout_seconds=float("nan")), "timeout_seconds is nan"),
        (replace(FREEZE, attempts_max=0), "attempts_max is 0"),
        (replace(FREEZE, duplicate_window_seconds=0), "duplicate_window_seconds"),
        (replace(FREEZE, identity_fields=()), "identity_fields is empty"),
        (replace(FREEZE, identity_fields=("account",)), "identity_fields: 'account' is no argument"),
        (replace(FREEZE, sensitive_fields=frozenset({"iban"})), "sensitive_fields: 'iban' is no field"),
        (replace(FREEZE, approval_state=("iban.state",)), "approval_state: 'iban.state'"),
        (replace(FREEZE, rows_argument="memo"), "rows_argument: 'memo'"),
        (
            replace(FREEZE, resources=(replace(FREEZE.resources[0], argument="iban"),)),
            "resources.iban: there is no argument",
        ),
        (
            replace(FREEZE, resources=(replace(FREEZE.resources[0], argument="amount_cents"),)),
            "has to be of type string",
        ),
        (replace(FREEZE, resources=(replace(FREEZE.resources[0], kind=""),)), "of which kind the object is"),
        (replace(FREEZE, resources=FREEZE.resources * 2), "resources.account_id: listed twice"),
        (replace(FREEZE, amount=AmountUse(argument="gone_cents", currency="currency")), "amount.argument: there is no"),
        (
            replace(FREEZE, amount=AmountUse(argument="hold_ttl_seconds", currency="currency")),
            "ends with its unit, _cents",
        ),
        (replace(FREEZE, amount=AmountUse(argument="account_id", currency="currency")), "has to be of type integer"),
        (replace(FREEZE, amount=AmountUse(argument="amount_cents", currency="memo")), "make 'memo' a closed enum"),
        (
            replace(FREEZE, amount=AmountUse(argument="amount_cents", currency="currency", taken_from="memo")),
            "list it there",
        ),
        (
            replace(FREEZE, amount=AmountUse(argument="amount_cents", currency="currency", exactly_of="memo")),
            "amount.exactly_of: 'memo' is not among the resources",
        ),
        (replace(FREEZE, makes=(HOLD, HOLD)), "makes.hold_id: listed twice"),
        (replace(FREEZE, makes=(replace(HOLD, output="held_cents"),)), "there is no such output that is a string"),
        (replace(FREEZE, makes=(replace(HOLD, state=""),)), "say of which kind the object is, and in which state"),
        (replace(FREEZE, makes=(replace(HOLD, amount="memo"),)), "makes.hold_id.amount: argument 'memo' has to be"),
        (
            replace(BALANCE, makes=(ObjectMade(output="account_id", kind="account", state="ACTIVE"),)),
            "it makes nothing, take makes away",
        ),
        (
            replace(FREEZE, examples=(Example(utterance="x", arguments={}),)),
            "examples[0]: account_id: The field is missing.",
        ),
        (
            replace(FREEZE, examples=(Example(utterance="", arguments=FREEZE.examples[0].arguments),)),
            "say in utterance",
        ),
        (replace(FREEZE, examples=(Example(utterance="x", arguments={"account_id": {1}}),)), "is no JSON"),
    ],
)
def test_a_wrong_contract_is_told_what_to_change(contract: AnyContract, line: str) -> None:
    assert [found for found in check_contract(contract) if line in found], check_contract(contract)


@pytest.mark.parametrize(
    ("annotation", "default", "line"),
    [
        (Annotated[int, told(examples=[1])], ..., "bound it on both sides"),
        (Annotated[int, told(examples=[1], ge=0)], ..., "bound it on both sides"),
        (Annotated[int, told(examples=[1], ge=0, le=2**53)], ..., "are beyond"),
        (Annotated[int, told(examples=[1], ge=0, le=9, strict=False)], ..., "coerces values; take strict=False away"),
        (Annotated[int, Field(examples=[1], ge=0, le=9)], ..., "give it a description"),
        (Annotated[int, told(ge=0, le=9)], ..., "give it an example"),
        (Annotated[float, told(examples=[1.5])], ..., "takes floats"),
        (Annotated[str, told(examples=["x"])], ..., "bound it: an enum of words"),
        (Annotated[str, told(examples=["x"], pattern="[a-z]")], ..., "matches inside longer texts"),
        (Annotated[str, told(examples=["x"], pattern="^[a-z]+$")], ..., "has no longest text"),
        (Annotated[str, told(examples=["x"], pattern="^[a-z]{1,}$")], ..., "has no longest text"),
        (Annotated[Any, told(examples=["x"])], ..., "takes anything"),
        (Annotated[dict[str, int], told(examples=[{}])], ..., "is a free map"),
        (Annotated[list[int], told(examples=[[1]])], ..., "bound it: Field(max_length=...)"),
        (Annotated[tuple[int, str], told(examples=[[1, "a"]])], ..., "declare one type for all its items"),
        (Annotated[frozenset[bool], told(examples=[[True]], max_length=2)], ..., "a set loses the order"),
        (Annotated[int | str, told(examples=[1])], ..., "takes anything"),
        (Annotated[bool | None, told(examples=[True])], ..., "takes null but has no default"),
        (Annotated[bool, told(default_factory=bool)], ..., "agents cannot read a default_factory"),
        (Annotated[bool, told(alias="x")], ..., "has a second name"),
        (Annotated[AwareDatetime, told(examples=["2026-01-01T00:00:00Z"])], ..., "bound it: an enum of words"),
        (Annotated[str, WORD, StringConstraints(strip_whitespace=True)], ..., "changes the text"),
        (Annotated[str, WORD, StringConstraints(to_lower=True)], ..., "changes the text"),
        (Annotated[str, WORD, AfterValidator(str.strip)], ..., "may change what was sent"),
        (Annotated[str, WORD, BeforeValidator(str)], ..., "may change what was sent"),
        (Annotated[tuple[Annotated[str, WORD, AfterValidator(str.strip)], ...], WORD], ..., "may change what was sent"),
    ],
)  # fmt: skip
def test_an_open_or_lenient_field_is_told_how_to_close_it(annotation: JsonValue, default: JsonValue, line: str) -> None:
    contract = with_field(annotation, default)

    found = lines_about(contract, "extra_count")

    assert [wrong for wrong in found if line in wrong], check_contract(contract)


@pytest.mark.parametrize(
    ("annotation", "default"),
    [
        (Annotated[int, told(examples=[1], gt=-1, lt=9)], ...),
        (Annotated[Literal["a", "b"], told()], ...),
        (Annotated[Literal[1, 2], told()], ...),
        (Annotated[bool, told()], ...),
        (Annotated[bool | None, told()], None),
        (Annotated[str, told(examples=["x"], pattern=r"^[+*{2,}]\*\+$")], ...),
        (Annotated[str | None, told(examples=["x"], max_length=9)], None),
        (Annotated[list[Annotated[int, Field(ge=0, le=9)]], told(examples=[[1]], max_length=5)], ...),
    ],
)
def test_a_closed_field_is_accepted(annotation: JsonValue, default: JsonValue) -> None:
    found = lines_about(with_field(annotation, default), "extra_count")

    assert [line for line in found if "the examples of the fields" not in line] == []


def test_the_examples_of_the_fields_have_to_be_right() -> None:
    contract = with_field(Annotated[int, told(examples=[10], ge=0, le=9)])

    assert "the examples of the fields: extra_count: 10 is too large. Allowed: integer from 0 to 9" in check_contract(
        contract
    )


@pytest.mark.parametrize(
    ("config", "line"),
    [
        (ConfigDict(extra="ignore", strict=True), "takes unknown fields"),
        (ConfigDict(extra="allow", strict=True), "takes unknown fields"),
        (ConfigDict(extra="forbid"), "coerces values"),
        (ConfigDict(extra="forbid", strict=True, str_strip_whitespace=True), "take str_strip_whitespace out"),
        (ConfigDict(extra="forbid", strict=True, str_to_lower=True), "take str_to_lower out"),
        (ConfigDict(extra="forbid", strict=True, coerce_numbers_to_str=True), "take coerce_numbers_to_str out"),
    ],
)
@pytest.mark.parametrize("nested", [False, True])
def test_a_lenient_model_is_refused_wherever_it_stands(config: ConfigDict, line: str, *, nested: bool) -> None:
    class Lenient(BaseModel):
        model_config = config
        on: Annotated[bool, told()]

    contract = with_field(Annotated[Lenient, told()]) if nested else replace(NOTE, input=Lenient, examples=())

    assert [found for found in check_contract(contract) if "Lenient" in found and line in found]


@pytest.mark.parametrize("name", ["tenant", "principal", "role", "sql", "url", "path", "key", "idempotency_key"])
def test_a_model_never_fills_in_what_the_engine_knows(name: str) -> None:
    model = create_model("Odd", __base__=NOTE.input, **{name: (Annotated[bool, told()], ...)})  # type: ignore[call-overload]  # pyright: ignore[reportUnknownVariableType, reportCallIssue, reportArgumentType]

    assert lines_about(replace(NOTE, input=model), "the engine knows this")


def test_a_field_has_a_name_that_a_binding_can_say() -> None:
    model = create_model("Odd", __base__=NOTE.input, amountCents=(Annotated[bool, told()], ...))

    assert lines_about(replace(NOTE, input=model), "'amountCents': rename it")


def test_a_model_that_contains_itself_is_refused() -> None:
    assert lines_about(replace(NOTE, input=Tree), "contains itself") == [
        "input: the model contains itself; nest at most 16 different models"
    ]


class Tree(Contract):
    """A model without an end."""

    inner: "Annotated[Tree | None, told()]" = None


def test_an_output_is_closed_and_bounded_too_but_may_hold_moments_and_needs_no_examples() -> None:
    class Output(Contract):
        when: Annotated[AwareDatetime, told()]
        count: Annotated[int, told(ge=0, le=9)]
        words: Annotated[str, told()]
        share: Annotated[float, told()]

    class Open(BaseModel):
        on: Annotated[bool, told()]

    assert check_contract(replace(NOTE, output=Output)) == [
        "output.words: bound it: an enum of words, Field(pattern=...) or Field(max_length=...)",
        "output.share: takes floats; use an integer with the unit in its name (amount_cents, share_basis_points)",
    ]
    assert lines_about(replace(NOTE, output=Open), "output Open: takes unknown fields")


def test_a_field_validator_is_refused_and_a_rule_over_the_model_is_not() -> None:
    class Changing(NOTE.input):  # type: ignore[name-defined, misc]
        @field_validator("text")
        @classmethod
        def tidy(cls, value: str) -> str:
            return value.replace("“", '"')

    class Ruled(NOTE.input):  # type: ignore[name-defined, misc]
        @model_validator(mode="after")
        def rule(self) -> Self:
            return self

    assert lines_about(replace(NOTE, input=Changing), "input.text: a validator function may change what was sent")
    assert check_contract(replace(NOTE, input=Ruled)) == []


def test_a_model_rule_that_changes_what_was_sent_is_found_by_the_example_call() -> None:
    class Sly(NOTE.input):  # type: ignore[name-defined, misc]
        @model_validator(mode="after")
        def tidy(self) -> Self:
            changed: Self = self.model_copy(update={"text": self.text.strip(".")})
            return changed

    assert lines_about(replace(NOTE, input=Sly), "examples[0]: comes out of the model changed")


def test_levels_follow_from_what_the_contract_says_of_itself() -> None:
    assert [level_of(contract) for contract in (BALANCE, NOTE, FREEZE, DEBIT, REFUND)] == [1, 2, 3, 3, 4]


def test_a_currency_may_be_any_closed_set_of_words() -> None:
    class Words(StrEnum):
        EUR = "EUR"

    class Input(Contract):
        account_id: Annotated[str, told(pattern="^A[0-9]$", examples=["A1"])]
        amount_cents: Annotated[int, told(ge=1, le=9, examples=[1])]
        currency: Annotated[Words, told()]

    contract: ToolContract[Any, Any] = replace(
        FREEZE,
        input=Input,
        identity_fields=None,
        resources=(ResourceUse(argument="account_id", kind="account", access=Access.HOLD, states=frozenset({"A"})),),
        examples=(Example(utterance="x", arguments={"account_id": "A1", "amount_cents": 1, "currency": "EUR"}),),
    )

    assert check_contract(contract) == []
