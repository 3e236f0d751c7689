"""Freeze, debit and refund on a real PostgreSQL: what each does, and each reason for which it refuses."""

import pytest

from contracts.reasons import Reason
from tests.support.ledger import BEN, MERCHANT, Bank, refused

HUGE = 2**53 - 1


class TestFreeze:
    """Opening a hold."""

    async def test_a_hold_takes_from_what_is_available_and_leaves_the_balance(self, bank: Bank) -> None:
        account = bank.account(5000)

        hold = (await bank.freeze(account, 3000, hold_ttl_seconds=60, memo="Order 1")).output

        row = bank.one("select *, expires_at - opened_at = interval '60 s' as for_a_minute from ledger.holds")
        assert bank.money(account) == (5000, 3000)
        assert hold.available_cents == 2000
        assert (row["hold_id"], row["state"], row["amount_cents"]) == (hold.hold_id, "OPEN", 3000)
        assert (row["memo"], row["reason_code"], row["for_a_minute"]) == ("Order 1", "PURCHASE", True)
        assert row["expires_at"] == hold.expires_at

    async def test_a_hold_lasts_seven_days_unless_said_otherwise(self, bank: Bank) -> None:
        await bank.freeze(bank.account(5000))

        row = bank.one("select expires_at - opened_at = interval '7 days' as a_week from ledger.holds")
        assert row["a_week"]

    async def test_everything_that_is_available_can_be_held_but_not_a_cent_more(self, bank: Bank) -> None:
        account = bank.account(5000)
        await bank.freeze(account, 4999)

        error = await refused(bank.freeze(account, 2))
        await bank.freeze(account, 1)

        assert error.reason is Reason.FUNDS_INSUFFICIENT
        assert error.info.details == {"account_id": account, "amount_cents": 2, "available_cents": 1}
        assert bank.money(account) == (5000, 5000)

    @pytest.mark.parametrize(("amount_cents", "allowed"), [(700, True), (701, False)])
    async def test_the_limit_binds_a_single_hold(self, bank: Bank, amount_cents: int, allowed: bool) -> None:  # noqa: FBT001
        account = bank.account(5000, limit_cents=700)
        await bank.freeze(account, 700)

        if allowed:
            await bank.freeze(account, amount_cents)
        else:
            error = await refused(bank.freeze(account, amount_cents))
            assert error.reason is Reason.LIMIT_EXCEEDED
            assert error.info.details["limit_cents"] == 700

    @pytest.mark.parametrize("state", ["FROZEN", "CLOSED"])
    async def test_only_an_active_account_takes_new_holds(self, bank: Bank, state: str) -> None:
        error = await refused(bank.freeze(bank.account(5000, state=state)))

        assert error.reason is Reason.WRONG_STATE
        assert error.info.details["state"] == state

    async def test_invented_foreign_and_mismatched_accounts_are_told_apart(self, bank: Bank) -> None:
        own, other = bank.account(5000), bank.account(5000, principal=BEN)
        elsewhere = bank.account(5000, tenant="other-bank")

        reasons = [
            (await refused(step)).reason
            for step in (
                bank.freeze("A99999999"),
                bank.freeze(elsewhere),
                bank.freeze(other),
                bank.freeze(own, currency="USD"),
            )
        ]

        assert reasons == [
            Reason.OBJECT_NOT_FOUND,
            Reason.OBJECT_NOT_FOUND,
            Reason.NOT_OWNER,
            Reason.CURRENCY_MISMATCH,
        ]
        assert [bank.money(account)[1] for account in (own, other, elsewhere)] == [0, 0, 0]

    async def test_a_foreign_owner_learns_nothing_but_that(self, bank: Bank) -> None:
        error = await refused(bank.freeze(bank.account(5000, principal=BEN, state="FROZEN"), 9_000_000))

        assert error.reason is Reason.NOT_OWNER
        assert set(error.info.details) == {"account_id", "principal"}


class TestDebit:
    """Capturing a hold."""

    async def test_a_whole_hold_becomes_one_movement(self, bank: Bank) -> None:
        account = bank.account(5000)
        hold = (await bank.freeze(account, 3000)).output

        landed = await bank.debit(hold.hold_id, 3000, memo="Order 1")

        movement = bank.one("select * from ledger.movements where operation_type = 'CAPTURE'")
        capture = bank.one("select * from ledger.captures")
        assert bank.money(account) == (2000, 0)
        assert bank.money(MERCHANT) == (3000, 0)
        assert landed.output.available_cents == 2000
        assert landed.output.released_cents == 0
        assert (movement["debit_account"], movement["credit_account"]) == (account, MERCHANT)
        assert (movement["amount_cents"], movement["memo"], movement["reason_code"]) == (3000, "Order 1", "PURCHASE")
        assert movement["transaction_id"] == capture["transaction_id"] == landed.transaction_id
        assert (capture["state"], capture["refunded_cents"]) == ("CAPTURED", 0)
        assert (landed.output.capture_id, landed.output.movement_id) == (capture["capture_id"], movement["movement_id"])

    @pytest.mark.parametrize("to_customer", [False, True])
    async def test_capturing_a_part_releases_the_rest(self, bank: Bank, to_customer: bool) -> None:  # noqa: FBT001
        account, shop = bank.account(5000), bank.account(principal=BEN) if to_customer else MERCHANT
        hold = (await bank.freeze(account, 3000)).output

        output = (await bank.debit(hold.hold_id, 1200, shop)).output

        assert bank.money(account) == (3800, 0)
        assert bank.money(shop) == (1200, 0)
        assert (output.released_cents, output.available_cents) == (1800, 3800)
        assert bank.one("select state, captured_cents from ledger.holds") == {
            "state": "CAPTURED",
            "captured_cents": 1200,
        }

    async def test_a_customer_who_is_paid_can_spend_it(self, bank: Bank) -> None:
        account, friend = bank.account(5000), bank.account(principal=BEN)
        await bank.captured(account, 1500, friend)

        await bank.freeze(friend, 1500, principal=BEN)

        assert bank.money(friend) == (1500, 1500)

    async def test_a_hold_is_captured_once(self, bank: Bank) -> None:
        hold = (await bank.freeze(bank.account(5000))).output
        await bank.debit(hold.hold_id, 100)

        error = await refused(bank.debit(hold.hold_id, 100))

        assert error.reason is Reason.WRONG_STATE
        assert error.info.details["state"] == "CAPTURED"

    @pytest.mark.parametrize("to_customer", [False, True])
    async def test_an_expired_hold_cannot_be_captured_even_before_the_sweep(
        self,
        bank: Bank,
        to_customer: bool,  # noqa: FBT001
    ) -> None:
        hold = (await bank.freeze(bank.account(5000))).output
        bank.overdue(hold.hold_id)

        error = await refused(bank.debit(hold.hold_id, 1000, bank.account(principal=BEN) if to_customer else MERCHANT))

        assert error.reason is Reason.WRONG_STATE
        assert error.info.details["state"] == "EXPIRED"

    async def test_a_lock_does_not_stop_the_capture_of_an_older_hold(self, bank: Bank) -> None:
        account = bank.account(5000)
        hold = (await bank.freeze(account)).output
        await bank.lock(account)

        await bank.debit(hold.hold_id)

        assert bank.money(account) == (4000, 0)

    @pytest.mark.parametrize("to_customer", [False, True])
    async def test_each_wrong_debit_has_its_reason(self, bank: Bank, to_customer: bool) -> None:  # noqa: FBT001
        account = bank.account(5000)
        hold = (await bank.freeze(account)).output.hold_id
        good = bank.account(principal=BEN) if to_customer else MERCHANT
        dollars = bank.account(principal=BEN, currency="USD") if to_customer else bank.system("USD")
        closed = bank.account(principal=BEN) if to_customer else bank.system()
        foreign = bank.account(tenant="other-bank") if to_customer else bank.system(tenant="other-bank")
        bank.close(closed)

        reasons = [
            (await refused(step)).reason
            for step in (
                bank.debit("H9999999999", 1, good),
                bank.debit(hold, 1, good, tenant="other-bank"),
                bank.debit(hold, 1, good, principal=BEN),
                bank.debit(hold, 1, good, currency="USD"),
                bank.debit(hold, 1001, good),
                bank.debit(hold, 1, account),
                bank.debit(hold, 1, good[0] + "99999999"),
                bank.debit(hold, 1, foreign),
                bank.debit(hold, 1, closed),
                bank.debit(hold, 1, dollars),
                bank.debit(hold, 1, foreign, tenant="other-bank"),
                bank.debit(hold, 1, dollars, currency="USD"),
            )
        ]

        assert reasons == [
            Reason.OBJECT_NOT_FOUND,
            Reason.OBJECT_NOT_FOUND,
            Reason.NOT_OWNER,
            Reason.CURRENCY_MISMATCH,
            Reason.FUNDS_INSUFFICIENT,
            Reason.ARGUMENTS_INVALID,
            Reason.OBJECT_NOT_FOUND,
            Reason.OBJECT_NOT_FOUND,
            Reason.WRONG_STATE,
            Reason.CURRENCY_MISMATCH,
            Reason.OBJECT_NOT_FOUND,
            Reason.CURRENCY_MISMATCH,
        ]
        assert bank.money(account) == (5000, 1000)
        assert bank.one("select state from ledger.holds") == {"state": "OPEN"}

    async def test_a_balance_beyond_what_json_keeps_is_refused(self, bank: Bank) -> None:
        account, rich = bank.account(5000), bank.account(HUGE - 999, principal=BEN)
        hold = (await bank.freeze(account)).output

        error = await refused(bank.debit(hold.hold_id, 1000, rich))
        await bank.debit(hold.hold_id, 999, rich)

        assert error.reason is Reason.LIMIT_EXCEEDED
        assert bank.money(rich) == (HUGE, 0)


class TestRefund:
    """Giving captured money back by the tool."""

    async def test_refunds_add_up_to_the_capture_and_no_further(self, bank: Bank) -> None:
        account = bank.account(5000)
        capture = (await bank.captured(account, 1000)).output.capture_id

        first = (await bank.refund(capture, 400, memo="one")).output
        error = await refused(bank.refund(capture, 601))
        second = (await bank.refund(capture, 600)).output
        late = await refused(bank.refund(capture, 1))

        assert (first.capture_state, first.refundable_cents) == ("REFUNDING", 600)
        assert error.reason is Reason.FUNDS_INSUFFICIENT
        assert error.info.details == {"capture_id": capture, "refundable_cents": 600, "amount_cents": 601}
        assert (second.capture_state, second.refundable_cents) == ("REFUNDED", 0)
        assert late.reason is Reason.WRONG_STATE
        assert bank.money(account) == (5000, 0)
        assert bank.money(MERCHANT) == (0, 0)
        rows = bank.owner("select * from ledger.movements where operation_type = 'REFUND' order by movement_id")
        assert [(row["amount_cents"], row["memo"], row["reason_code"]) for row in rows] == [
            (400, "one", "FRAUD"),
            (600, None, "FRAUD"),
        ]

    @pytest.mark.parametrize(("age", "allowed"), [("179 days 23 hours", True), ("180 days 1 hour", False)])
    async def test_the_window_is_180_days(self, bank: Bank, age: str, allowed: bool) -> None:  # noqa: FBT001
        account = bank.account(5000)
        capture = (await bank.captured(account)).output.capture_id
        bank.age_captures(age)

        if allowed:
            await bank.refund(capture, 100)
            assert bank.money(account) == (4100, 0)
        else:
            error = await refused(bank.refund(capture, 100))
            assert error.reason is Reason.WINDOW_CLOSED
            assert error.info.details["window_days"] == 180
            assert bank.money(account) == (4000, 0)

    async def test_a_locked_account_still_gets_refunds(self, bank: Bank) -> None:
        account = bank.account(5000)
        capture = (await bank.captured(account)).output.capture_id
        await bank.lock(account)

        await bank.refund(capture)

        assert bank.money(account) == (5000, 0)

    async def test_money_that_a_customer_got_is_theirs_to_give_back(self, bank: Bank) -> None:
        account, friend = bank.account(5000), bank.account(principal=BEN)
        capture = (await bank.captured(account, 1000, friend)).output.capture_id

        error = await refused(bank.refund(capture, 300))
        await bank.refund(capture, 300, principal=BEN)

        assert error.reason is Reason.NOT_OWNER
        assert bank.money(account) == (4300, 0)
        assert bank.money(friend) == (700, 0)

    async def test_a_customer_who_spent_the_money_cannot_give_it_back(self, bank: Bank) -> None:
        account, friend = bank.account(5000), bank.account(principal=BEN)
        capture = (await bank.captured(account, 1000, friend)).output.capture_id
        await bank.freeze(friend, 701, principal=BEN)

        error = await refused(bank.refund(capture, 300, principal=BEN))

        assert error.reason is Reason.FUNDS_INSUFFICIENT
        assert error.info.details == {"account_id": friend, "amount_cents": 300, "available_cents": 299}

    async def test_each_wrong_refund_has_its_reason(self, bank: Bank) -> None:
        account = bank.account(5000)
        capture = (await bank.captured(account)).output.capture_id

        reasons = [
            (await refused(step)).reason
            for step in (
                bank.refund("C9999999999"),
                bank.refund(capture, tenant="other-bank"),
                bank.refund(capture, principal=BEN),
                bank.refund(capture, currency="USD"),
            )
        ]
        bank.close(account)
        reasons.append((await refused(bank.refund(capture))).reason)

        assert reasons == [
            Reason.OBJECT_NOT_FOUND,
            Reason.OBJECT_NOT_FOUND,
            Reason.NOT_OWNER,
            Reason.CURRENCY_MISMATCH,
            Reason.WRONG_STATE,
        ]
        assert bank.money(account) == (4000, 0)
