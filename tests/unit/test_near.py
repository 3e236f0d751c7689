"""Near-keys: what makes two calls the same wish in other words."""

from typing import Annotated, Any

import pytest
from pydantic import Field, create_model

from activities.packs.bank import Terms, make_pack
from activities.packs.ledger import PACK as LEDGER
from activities.packs.notices import PACK as NOTICES
from activities.packs.records import PACK as RECORDS
from contracts.base import Contract, JsonObject
from contracts.intent import Caller
from contracts.near import is_free_text, near_keys
from contracts.proposal import propose
from contracts.registry import Registry
from contracts.shape import shape_of

ANNA = Caller(tenant="bank", principal="anna", agent="robot")
BANK = make_pack("http://127.0.0.1:1", Terms())
TOOLS = Registry.of([tool.contract for pack in (LEDGER, RECORDS, NOTICES, BANK) for tool in pack.tools])


def key(tool: str, **arguments: Any) -> str:  # noqa: ANN401 - JSON
    step: JsonObject = {"step_id": "a", "tool": tool, "arguments": arguments}
    steps = propose({"protocol": 1, "session_id": "chat", "steps": [step]}, ANNA, TOOLS).steps
    return near_keys(ANNA, steps, None)["a"]


def payout(**changes: object) -> str:
    order = {"bank_account_id": "B00000001", "payee_id": "P00000001", "amount_cents": 500, "currency": "EUR"}
    return key("send_bank_payout", **{**order, "reason_code": "WITHDRAWAL", **changes})


def transfer(**changes: object) -> str:
    order = {"from_account_id": "A00000001", "to_account_id": "A00000002", "amount_cents": 500, "currency": "EUR"}
    return key("transfer_customer_funds", **{**order, "reason_code": "GIFT", **changes})


@pytest.mark.parametrize("memo", [None, "", "a", "Invoice 1", "Invoice 1."])
def test_other_words_on_the_statement_do_not_make_another_payment(memo: str | None) -> None:
    assert transfer(memo=memo) == transfer()
    assert payout(memo=memo) == payout()


@pytest.mark.parametrize(
    "changes",
    [{"amount_cents": 501}, {"currency": "USD"}, {"to_account_id": "A00000003"}, {"from_account_id": "A00000003"}],
)
def test_another_amount_currency_or_party_makes_another_payment(changes: JsonObject) -> None:
    assert transfer(**changes) != transfer()


def test_where_a_tool_moves_nothing_its_reference_still_counts() -> None:
    def notice(reference: str) -> str:
        return key("send_customer_notice", contact_id="N00000001", template="RECORDS_DELETED", reference=reference)

    assert notice("CASE-1") != notice("CASE-2")


@pytest.mark.parametrize(
    ("kind", "free"),
    [
        (str, True),
        (Annotated[str, Field(max_length=140)], True),
        (Annotated[str, Field(pattern=r"^[^\x00]*$")], True),
        (Annotated[str, Field(pattern=r"^[A-Za-z ]{1,35}$")], True),
        (Annotated[str, Field(pattern=r"^.{12,}$")], True),
        (Annotated[str, Field(pattern=r"^INV-[0-9]{4}$")], False),
        (Annotated[str, Field(pattern=r"^[A-Z0-9-]{1,32}$")], False),
        (int, False),
    ],
)
def test_text_is_free_where_it_takes_prose(kind: Any, free: bool) -> None:  # noqa: ANN401, FBT001 - a type, a case
    shape = shape_of(create_model("Sample", __base__=Contract, field=(kind, ...)))

    assert [is_free_text(place) for _, place in shape.fields(shape.root)] == [free]
