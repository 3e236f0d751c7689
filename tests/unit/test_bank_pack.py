"""The bank's tools against a real bank: what they say of an outcome is what its book says."""

import asyncio
from collections.abc import Generator
from itertools import count

import pytest

from activities.catalog import check_packs, load_packs
from activities.packs.bank import Terms, make_pack
from activities.packs.bank.charges import ChargeBankCard, ChargedBankCard
from activities.packs.bank.fields import ChargeReason, Currency, PayoutReason, RefundReason
from activities.packs.bank.payouts import SendBankPayout, SentBankPayout
from activities.packs.bank.refunds import RefundBankCharge
from activities.tool import (
    AnyRemoteTool,
    Compensated,
    Landed,
    NotLanded,
    NotSentError,
    OutcomeUnknownError,
    RemoteContext,
    RemoteTool,
)
from contracts.errors import SagaError
from contracts.reasons import Reason
from tests.support.bankhouse import BankHouse, open_bank
from worker.settings import Settings, SettingsError

TERMS = Terms(timeout_seconds=1.0)
PAYOUT = SendBankPayout(
    bank_account_id="B00000001",
    payee_id="P00000001",
    amount_cents=500,
    currency=Currency.EUR,
    reason_code=PayoutReason.WITHDRAWAL,
)
CHARGE = ChargeBankCard(
    card_id="K00000001", amount_cents=500, currency=Currency.EUR, reason_code=ChargeReason.PURCHASE, memo="Order 1"
)
_numbers = count()


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Generator[BankHouse]:
    with open_bank(tmp_path_factory.mktemp("bank")) as house:
        yield house


@pytest.fixture
def context() -> RemoteContext:
    number = next(_numbers)
    return context_of(f"key-{number}", f"key-{number}")


def context_of(remote_key: str, execute_remote_key: str | None = None) -> RemoteContext:
    return RemoteContext(
        tenant="bank",
        principal="customer",
        agent="agent",
        intent_id="int_x",
        step_id="pay",
        step_key="k",
        transaction_id=1,
        remote_key=remote_key,
        execute_remote_key=execute_remote_key,
    )


def undoing(context: RemoteContext) -> RemoteContext:
    return context_of(f"{context.remote_key}-undo", context.remote_key)


def tool(house: BankHouse, name: str) -> AnyRemoteTool:
    found = next(tool for tool in make_pack(house.url, TERMS).tools if tool.contract.name == name)
    assert isinstance(found, RemoteTool)
    return found


@pytest.fixture
def payout(house: BankHouse) -> RemoteTool[SendBankPayout, SentBankPayout]:
    return tool(house, "send_bank_payout")


@pytest.fixture
def charge(house: BankHouse) -> RemoteTool[ChargeBankCard, ChargedBankCard]:
    return tool(house, "charge_bank_card")


Payout = RemoteTool[SendBankPayout, SentBankPayout]
Charge = RemoteTool[ChargeBankCard, ChargedBankCard]


def landed(house: BankHouse, context: RemoteContext) -> list[tuple[str, int]]:
    """What the book says of a key and of its compensation's."""
    keys = (context.remote_key, f"{context.remote_key}-undo")
    return [
        (entry["order"]["kind"], entry["moved_cents"])
        for entry in house.entries()
        if entry["event"] == "LANDED" and entry["key"] in keys
    ]


async def look(tool: AnyRemoteTool, context: RemoteContext, step: object) -> object:
    assert tool.lookup is not None
    return await tool.lookup(context, step)


async def undo(charge: Charge, context: RemoteContext) -> Compensated:
    assert charge.compensate is not None
    return await charge.compensate(undoing(context), CHARGE, None)


def test_the_pack_meets_every_demand_on_packs() -> None:
    check_packs([make_pack("http://127.0.0.1:1")])


async def test_a_payout_answers_what_its_lookup_answers(
    payout: Payout, house: BankHouse, context: RemoteContext
) -> None:
    sent = await payout.execute(context, PAYOUT)

    assert await look(payout, context, PAYOUT) == Landed(output=sent)
    assert landed(house, context) == [("PAYOUT", 500)]


async def test_the_memo_and_our_serial_number_stand_in_the_book_as_they_were_sent(
    charge: Charge, house: BankHouse, context: RemoteContext
) -> None:
    await charge.execute(context, CHARGE)

    booked = next(entry["order"] for entry in house.entries() if entry["key"] == context.remote_key)
    assert (booked["reference"], booked["client_reference"]) == ("Order 1", "1")


@pytest.mark.parametrize("switch", ["drop_reply", "garbage", "wrong_amount", "slow", "lands_late"])
async def test_what_landed_without_a_whole_answer_is_unknown_and_found_by_lookup(
    payout: Payout, house: BankHouse, context: RemoteContext, switch: str
) -> None:
    house.switch(switch, milliseconds=0 if switch == "lands_late" else 1_200)

    with pytest.raises(OutcomeUnknownError):
        await payout.execute(context, PAYOUT)
    sight = await look(payout, context, PAYOUT)
    if isinstance(sight, NotLanded):
        assert sight.changes_until is not None
        await payout_until_landed(payout, context)
        sight = await look(payout, context, PAYOUT)

    assert isinstance(sight, Landed)
    assert landed(house, context) == [("PAYOUT", 500)]


async def payout_until_landed(payout: Payout, context: RemoteContext) -> None:
    for _ in range(1_000):
        if isinstance(await look(payout, context, PAYOUT), Landed):
            return
    pytest.fail("the payout never landed")


@pytest.mark.parametrize("switch", ["drop_request", "conflict"])
async def test_what_may_have_landed_and_did_not_is_unknown_and_not_found(
    payout: Payout, house: BankHouse, context: RemoteContext, switch: str
) -> None:
    house.switch(switch)

    with pytest.raises(OutcomeUnknownError):
        await payout.execute(context, PAYOUT)

    assert await look(payout, context, PAYOUT) == NotLanded(changes_until=None)
    assert landed(house, context) == []


@pytest.mark.parametrize(
    ("switch", "said", "waits"),
    [
        ("too_many", "3", 3.0),
        ("unavailable", "3", 3.0),
        ("unavailable", "1000000000", 300.0),
        ("unavailable", "-7", 0.0),
        ("too_many", "soon", None),
        ("unavailable", "", None),
    ],
)
async def test_what_was_certainly_not_done_says_when_to_come_again_within_bounds(
    payout: Payout, house: BankHouse, switch: str, said: str, waits: float | None
) -> None:
    context = context_of(f"not-done-{next(_numbers)}")
    house.switch(switch, retry_after=said)

    with pytest.raises(NotSentError) as caught:
        await payout.execute(context, PAYOUT)

    assert caught.value.info.details["retry_after_seconds"] == waits
    assert landed(house, context) == []


async def test_a_lookup_that_hangs_up_says_nothing_about_the_outcome(
    payout: Payout, house: BankHouse, context: RemoteContext
) -> None:
    await payout.execute(context, PAYOUT)
    house.switch("lookup_down")

    with pytest.raises(OutcomeUnknownError):
        await look(payout, context, PAYOUT)


@pytest.mark.parametrize(
    "change",
    [
        {"amount_cents": 1},
        {"payee_id": "P00000002"},
        {"bank_account_id": "B00000002"},
        {"currency": Currency.USD},
    ],
)
async def test_another_order_under_the_key_is_a_mismatch_never_landed(
    payout: Payout, context: RemoteContext, change: dict[str, object]
) -> None:
    await payout.execute(context, PAYOUT.model_copy(update=change))

    with pytest.raises(SagaError) as looked:
        await look(payout, context, PAYOUT)
    with pytest.raises(SagaError) as sent:
        await payout.execute(context, PAYOUT)

    assert (looked.value.reason, sent.value.reason) == (Reason.MISMATCH, Reason.KEY_REUSED)


async def test_two_landings_of_one_key_are_a_mismatch(tmp_path_factory: pytest.TempPathFactory) -> None:
    with open_bank(tmp_path_factory.mktemp("bank"), key_lifetime_seconds=60) as house:
        payout, context = tool(house, "send_bank_payout"), context_of("twice")
        await payout.execute(context, PAYOUT)
        house.advance(60)
        await payout.execute(context, PAYOUT)

        with pytest.raises(SagaError) as caught:
            await look(payout, context, PAYOUT)

    assert caught.value.reason is Reason.MISMATCH


def refused(sight: object) -> Reason | None:
    """For what reason a lookup says that the key was refused for good."""
    assert isinstance(sight, NotLanded)
    return sight.refused.reason if sight.refused else None


async def test_a_decline_is_a_refusal_and_stays_one(payout: Payout, house: BankHouse, context: RemoteContext) -> None:
    declined = PAYOUT.model_copy(update={"payee_id": "P90000001"})

    for _ in range(2):
        with pytest.raises(SagaError) as caught:
            await payout.execute(context, declined)
        assert caught.value.reason is Reason.WRONG_STATE

    assert refused(await look(payout, context, declined)) is Reason.WRONG_STATE
    assert landed(house, context) == []


async def test_a_decline_whose_answer_is_lost_is_found_by_its_key_and_said_again(
    payout: Payout, house: BankHouse, context: RemoteContext
) -> None:
    declined = PAYOUT.model_copy(update={"payee_id": "P90000001"})
    house.switch("drop_reply")

    with pytest.raises(OutcomeUnknownError):
        await payout.execute(context, declined)
    assert refused(await look(payout, context, declined)) is Reason.WRONG_STATE
    with pytest.raises(SagaError) as caught:
        await payout.execute(context, declined)

    assert caught.value.reason is Reason.WRONG_STATE


async def test_a_cancelled_key_never_lands_and_a_late_original_is_superseded(
    payout: Payout, house: BankHouse, context: RemoteContext
) -> None:
    assert payout.cancel_by_key is not None

    assert await payout.cancel_by_key(context, PAYOUT) == NotLanded()
    with pytest.raises(SagaError) as caught:
        await payout.execute(context, PAYOUT)

    assert caught.value.reason is Reason.SUPERSEDED
    assert landed(house, context) == []


async def test_cancelling_a_key_that_landed_says_so(payout: Payout, context: RemoteContext) -> None:
    assert payout.cancel_by_key is not None
    sent = await payout.execute(context, PAYOUT)

    assert await payout.cancel_by_key(context, PAYOUT) == Landed(output=sent)


async def test_compensation_gives_back_a_landed_charge_once(
    charge: Charge, house: BankHouse, context: RemoteContext
) -> None:
    await charge.execute(context, CHARGE)

    assert [await undo(charge, context) for _ in range(3)] == [Compensated()] * 3
    assert landed(house, context) == [("CHARGE", 500), ("REFUND", 500)]


async def test_compensation_of_a_charge_that_never_landed_moves_nothing_and_forbids_it(
    charge: Charge, house: BankHouse, context: RemoteContext
) -> None:
    assert await undo(charge, context) == Compensated()
    with pytest.raises(SagaError) as caught:
        await charge.execute(context, CHARGE)

    assert caught.value.reason is Reason.SUPERSEDED
    assert landed(house, context) == []


async def test_compensation_of_a_charge_that_landed_unseen_gives_it_back(
    charge: Charge, house: BankHouse, context: RemoteContext
) -> None:
    house.switch("drop_reply")
    with pytest.raises(OutcomeUnknownError):
        await charge.execute(context, CHARGE)

    assert await undo(charge, context) == Compensated()
    assert landed(house, context) == [("CHARGE", 500), ("REFUND", 500)]


async def test_compensation_of_a_charge_that_lands_late_forbids_it(
    charge: Charge, house: BankHouse, context: RemoteContext
) -> None:
    house.switch("lands_late", milliseconds=500)
    with pytest.raises(OutcomeUnknownError):
        await charge.execute(context, CHARGE)

    assert await undo(charge, context) == Compensated()
    house.advance(60)
    assert await look(charge, context, CHARGE) == NotLanded()
    assert landed(house, context) == []


@pytest.mark.parametrize("switch", ["drop_reply", "garbage", "wrong_amount", "drop_request", "conflict"])
async def test_a_refund_with_an_unknown_outcome_is_sent_again_and_lands_once(
    charge: Charge, house: BankHouse, context: RemoteContext, switch: str
) -> None:
    await charge.execute(context, CHARGE)
    house.switch(switch, on=["refunds"])

    if switch != "wrong_amount":  # how much the rest is, only the bank knows; its own count is asked in the end
        with pytest.raises(OutcomeUnknownError):
            await undo(charge, context)

    assert await undo(charge, context) == Compensated()
    assert landed(house, context) == [("CHARGE", 500), ("REFUND", 500)]


async def test_compensation_gives_back_only_what_a_refund_left(
    charge: Charge, house: BankHouse, context: RemoteContext
) -> None:
    charged = await charge.execute(context, CHARGE)
    step = RefundBankCharge(
        charge_id=charged.charge_id,
        amount_cents=200,
        currency=Currency.EUR,
        reason_code=RefundReason.CUSTOMER_REQUEST,
    )
    await tool(house, "refund_bank_charge").execute(context_of(f"{context.remote_key}-refund"), step)

    await undo(charge, context)

    assert landed(house, context) == [("CHARGE", 500), ("REFUND", 300)]


async def test_compensation_of_a_charge_that_is_wholly_given_back_is_done(
    charge: Charge, house: BankHouse, context: RemoteContext
) -> None:
    charged = await charge.execute(context, CHARGE)
    step = RefundBankCharge(
        charge_id=charged.charge_id,
        amount_cents=500,
        currency=Currency.EUR,
        reason_code=RefundReason.CUSTOMER_REQUEST,
    )
    await tool(house, "refund_bank_charge").execute(context_of(f"{context.remote_key}-refund"), step)

    assert await undo(charge, context) == Compensated()
    assert landed(house, context) == [("CHARGE", 500)]


async def test_a_refund_of_more_than_is_left_is_refused(
    house: BankHouse, charge: Charge, context: RemoteContext
) -> None:
    charged = await charge.execute(context, CHARGE)
    step = RefundBankCharge(
        charge_id=charged.charge_id,
        amount_cents=501,
        currency=Currency.EUR,
        reason_code=RefundReason.CUSTOMER_REQUEST,
    )

    with pytest.raises(SagaError) as caught:
        await tool(house, "refund_bank_charge").execute(context_of(f"{context.remote_key}-refund"), step)

    assert caught.value.reason is Reason.FUNDS_INSUFFICIENT


async def test_the_client_gives_up_before_the_engine_does_and_says_what_it_saw(
    payout: Payout, house: BankHouse, context: RemoteContext
) -> None:
    house.switch("slow", milliseconds=1_200)

    async with asyncio.timeout(TERMS.timeout_seconds):
        with pytest.raises(OutcomeUnknownError, match="did not answer in"):
            await payout.execute(context, PAYOUT)


def test_without_an_address_the_banks_tools_are_not_offered() -> None:
    without = {pack.name for pack in load_packs()}
    beside = {pack.name for pack in load_packs(addresses={"bank": "http://127.0.0.1:1"})}

    assert beside - without == {"bank"}


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:8460",
        "file:///etc/passwd",
        "http://user:secret@bank",
        "http://bank/path",
        "http://bank?key=1",
        "http://bank#x",
        "http://bank\n",
        "http://",
    ],
)
def test_an_address_of_the_bank_is_scheme_host_and_port_alone(url: str) -> None:
    with pytest.raises(SettingsError, match="is no address") as caught:
        Settings.load(bank_url=url)

    assert "secret" not in str(caught.value)
