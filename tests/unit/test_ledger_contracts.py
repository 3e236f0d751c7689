# ruff: noqa: RUF001, ANN401 - look-alike characters and wrong types are the point
"""The ledger's contracts: complete for agents, closed against what models send wrong."""

import json
import re
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from activities.packs.ledger import PACK
from activities.packs.ledger.fields import AMOUNT_CENTS_MAX
from activities.tool import AnyTool, Tool
from contracts.reasons import Reason
from contracts.registry import Registry
from contracts.tool import Access, Duty, SideEffect

TOOLS: dict[str, AnyTool] = {tool.contract.name: tool for tool in PACK.tools if isinstance(tool, Tool)}
EACH_TOOL = pytest.mark.parametrize("tool", PACK.tools, ids=list(TOOLS))
FREEZE = {
    "account_id": "A00000001",
    "amount_cents": 100,
    "currency": "EUR",
    "hold_ttl_seconds": 60,
    "reason_code": "PURCHASE",
    "memo": "x",
}


def read(model: type[BaseModel], arguments: Any) -> BaseModel:
    """Read arguments as the engine does: JSON, strictly."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return model.model_validate_json(text, strict=True)


def test_the_pack_has_the_tools_of_the_issue() -> None:
    effects = {name: tool.contract.side_effect for name, tool in TOOLS.items()}

    assert effects == {
        "check_account_balance": SideEffect.READ_ONLY,
        "freeze_account_funds": SideEffect.REVERSIBLE,
        "debit_frozen_funds": SideEffect.REVERSIBLE,
        "credit_customer_account": SideEffect.REVERSIBLE,
        "transfer_customer_funds": SideEffect.REVERSIBLE,
        "reserve_customer_payment": SideEffect.REVERSIBLE,
        "lock_customer_account": SideEffect.REVERSIBLE,
        "unlock_customer_account": SideEffect.REVERSIBLE,
        "refund_captured_debit": SideEffect.IRREVERSIBLE,
        "reverse_ledger_movement": SideEffect.IRREVERSIBLE,
        "adjust_account_balance": SideEffect.IRREVERSIBLE,
    }
    assert all(tool.contract.may_refuse for tool in PACK.tools)
    duties = {name: tool.contract.duty for name, tool in TOOLS.items() if tool.contract.duty is not Duty.NONE}
    assert duties == {"adjust_account_balance": Duty.TWO, "unlock_customer_account": Duty.ONE}


def test_the_registry_takes_them() -> None:
    Registry.of(tool.contract for tool in PACK.tools)


@EACH_TOOL
def test_what_can_be_compensated_is_and_says_how(tool: AnyTool) -> None:
    reversible = tool.contract.side_effect is SideEffect.REVERSIBLE

    assert (tool.compensate is not None) == reversible
    assert (tool.contract.compensates_by is not None) == reversible


@EACH_TOOL
def test_an_agent_reads_all_it_needs(tool: AnyTool) -> None:
    contract = tool.contract

    assert re.fullmatch(r"[a-z]+(_[a-z]+){2,4}", contract.name)
    for part in (
        contract.description.does,
        contract.description.use_when,
        contract.description.not_when,
        contract.description.needs,
        contract.description.returns,
        *contract.preconditions,
        *contract.postconditions,
    ):
        assert part.endswith("."), part
        assert len(part) <= 160, part
    assert len(contract.examples) >= 2
    assert len({example.utterance for example in contract.examples}) == len(contract.examples)
    for other in re.findall(r"\b[a-z]+(?:_[a-z]+){2,4}\b", contract.description.text()):
        assert other in TOOLS, f"{other} is no tool"


@EACH_TOOL
def test_each_example_is_a_valid_call(tool: AnyTool) -> None:
    for example in tool.contract.examples:
        read(tool.contract.input, example.arguments)


@EACH_TOOL
def test_each_field_has_a_description_and_an_example_that_is_valid(tool: AnyTool) -> None:
    for model in (tool.contract.input, tool.contract.output):
        for name, field in model.model_json_schema()["properties"].items():
            inner = next((option for option in field.get("anyOf", [field]) if option.get("type") != "null"), field)
            description = field.get("description") or inner.get("description")
            assert description, f"{model.__name__}.{name}"
            if model is tool.contract.input:
                assert field.get("examples") or inner.get("examples"), f"{model.__name__}.{name}"


@EACH_TOOL
def test_what_the_contract_names_is_an_argument(tool: AnyTool) -> None:
    contract, fields = tool.contract, set(tool.contract.input.model_fields)

    assert {use.argument for use in contract.resources} <= fields
    assert {use.kind for use in contract.resources} <= set(PACK.resources)
    assert contract.sensitive_fields <= fields | {"memo"}
    if "amount_cents" in fields:
        assert contract.amount is not None
        named = {contract.amount.argument, contract.amount.currency}
        named |= {name for name in (contract.amount.taken_from, contract.amount.paid_into) if name}
        assert named <= fields
        assert contract.sensitive_fields == {"memo"}
    assert {Reason.OBJECT_NOT_FOUND, Reason.NOT_OWNER} <= set(contract.reasons)
    money_in_only = all(use.access is Access.PAY_INTO for use in contract.resources)
    assert not money_in_only, "somebody pays, and admission must see whose it is"


@EACH_TOOL
def test_an_unknown_field_is_refused(tool: AnyTool) -> None:
    arguments = dict(tool.contract.examples[0].arguments)

    for extra in ("tenant", "principal", "transaction_id", "sql", "amount"):
        with pytest.raises(ValidationError, match="extra_forbidden"):
            read(tool.contract.input, arguments | {extra: "x"})


@EACH_TOOL
def test_each_required_field_is_required(tool: AnyTool) -> None:
    arguments = dict(tool.contract.examples[0].arguments)

    for name, field in tool.contract.input.model_fields.items():
        if field.is_required():
            with pytest.raises(ValidationError, match="missing"):
                read(tool.contract.input, {key: value for key, value in arguments.items() if key != name})


@EACH_TOOL
@pytest.mark.parametrize(
    "raw",
    [
        "1.0", '"100"', '"1,000,000"', '"￥100"', "true", "NaN", "1e3", "-5", "0", "9007199254740992", "null", "[1]",
        "９", '"１００"', str(AMOUNT_CENTS_MAX + 1), "1" * 5000,
    ],
)  # fmt: skip
def test_amounts_are_whole_numbers_within_bounds(tool: AnyTool, raw: str) -> None:
    if "amount_cents" not in tool.contract.input.model_fields:
        return
    arguments = dict(tool.contract.examples[0].arguments) | {"amount_cents": "AMOUNT"}
    text = json.dumps(arguments)
    read(tool.contract.input, text.replace('"AMOUNT"', str(AMOUNT_CENTS_MAX)))

    with pytest.raises(ValidationError):
        read(tool.contract.input, text.replace('"AMOUNT"', raw))


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("account_id", "A0000001"),
        ("account_id", "A000000011"),
        ("account_id", "a00000001"),
        ("account_id", "S00000001"),
        ("account_id", "A0000000１"),
        ("account_id", "A00000001\n"),
        ("account_id", " A00000001"),
        ("account_id", "../A0000001"),
        ("account_id", 1),
        ("account_id", None),
        ("currency", "eur"),
        ("currency", "JPY"),
        ("currency", None),
        ("hold_ttl_seconds", 0),
        ("hold_ttl_seconds", 2_592_001),
        ("hold_ttl_seconds", 60.0),
        ("hold_ttl_seconds", None),
        ("reason_code", "BECAUSE"),
        ("reason_code", "SAGA_COMPENSATION"),
        ("reason_code", "purchase"),
        ("memo", "x" * 141),
        ("memo", "a\x00b"),
        ("memo", "\ud800"),
        ("memo", 5),
    ],
)
def test_wrong_words_and_ids_are_refused(field: str, wrong: Any) -> None:
    model = TOOLS["freeze_account_funds"].contract.input
    read(model, FREEZE)

    with pytest.raises(ValidationError):
        read(model, FREEZE | {field: wrong})


def test_a_memo_of_140_characters_counts_characters_not_bytes() -> None:
    model = TOOLS["freeze_account_funds"].contract.input

    assert read(model, FREEZE | {"memo": "語" * 140}).model_dump()["memo"] == "語" * 140


@pytest.mark.parametrize("memo", ["", " ", "a\r\nb", "e\u0301", "\u00e9", "“”", "👩‍👩‍👧"])
def test_a_memo_is_not_touched(memo: str) -> None:
    model = TOOLS["freeze_account_funds"].contract.input

    assert read(model, FREEZE | {"memo": memo}).model_dump()["memo"] == memo


def test_what_is_missing_has_its_stated_default() -> None:
    model = TOOLS["freeze_account_funds"].contract.input
    given = {key: value for key, value in FREEZE.items() if key not in ("hold_ttl_seconds", "memo")}

    assert read(model, given).model_dump()["hold_ttl_seconds"] == 604_800
    assert read(model, given).model_dump()["memo"] is None


def test_a_transfer_names_two_accounts() -> None:
    model = TOOLS["transfer_customer_funds"].contract.input
    example = TOOLS["transfer_customer_funds"].contract.examples[0].arguments

    with pytest.raises(ValidationError, match="two different accounts"):
        read(model, example | {"to_account_id": example["from_account_id"]})


@EACH_TOOL
def test_an_output_survives_being_stored(tool: AnyTool) -> None:
    """The engine stores the output as JSON and reads it back for compensation, strictly."""
    samples: dict[str, Any] = {
        "hold_id": "H0000000001",
        "account_id": "A00000001",
        "currency": "EUR",
        "expires_at": "2026-01-02T03:04:05.678901Z",
        "capture_id": "C0000000001",
        "movement_id": "M0000000001",
        "reversed_movement_id": "M0000000002",
        "credit_account_id": "S00000001",
        "reservation_id": "H0000000001",
        "payee_account_id": "S00000001",
        "debit_account_id": "A00000001",
        "funding_account_id": "S00000001",
        "system_account_id": "S00000001",
        "from_account_id": "A00000001",
        "to_account_id": "A00000002",
        "capture_state": "REFUNDING",
        "state": "ACTIVE",
        "direction": "DEBIT",
        "limit_cents": None,
    }
    model = tool.contract.output
    stored = {name: samples.get(name, 7) for name in model.model_fields}

    output = read(model, stored)

    assert output.model_dump(mode="json") == stored
    assert read(model, output.model_dump_json()) == output
