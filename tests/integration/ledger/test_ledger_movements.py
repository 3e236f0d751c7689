"""Credit, transfer, reversal and adjustment on a real PostgreSQL: what each does and refuses."""

import pytest

from contracts.reasons import Reason
from tests.support.ledger import BEN, CASH, Bank, refused

HUGE = 2**53 - 1


class TestCredit:
    """Paying a customer out of a system account."""

    async def test_a_credit_comes_out_of_the_funding_account(self, bank: Bank) -> None:
        account = bank.account(5000)
        before = bank.money(CASH)[0]

        output = (await bank.credit(account, 700, memo="sorry")).output

        row = bank.one("select * from ledger.movements where movement_id = %s", output.movement_id)
        assert bank.money(account) == (5700, 0)
        assert bank.money(CASH)[0] == before - 700
        assert (row["operation_type"], row["reason_code"], row["memo"]) == ("CREDIT", "GOODWILL", "sorry")

    async def test_another_customer_and_a_locked_account_may_be_credited(self, bank: Bank) -> None:
        locked, other = bank.account(state="FROZEN"), bank.account(principal=BEN)

        await bank.credit(locked, 5)
        await bank.credit(other, 6)

        assert [bank.money(locked)[0], bank.money(other)[0]] == [5, 6]

    async def test_each_wrong_credit_has_its_reason(self, bank: Bank) -> None:
        account, dry = bank.account(), bank.system()
        bank.close(dry)
        locked = bank.system()
        bank.owner("update ledger.accounts set state = 'FROZEN' where account_id = %s", locked)

        reasons = [
            (await refused(step)).reason
            for step in (
                bank.credit("A99999999"),
                bank.credit(account, tenant="other-bank"),
                bank.credit(account, funding="S99999999"),
                bank.credit(account, funding=bank.system(tenant="other-bank")),
                bank.credit(bank.account(state="CLOSED")),
                bank.credit(account, funding=dry),
                bank.credit(account, funding=locked),
                bank.credit(account, currency="GBP"),
                bank.credit(account, funding=bank.system("GBP")),
                bank.credit(bank.account(HUGE - 999)),
            )
        ]

        assert reasons == [
            *[Reason.OBJECT_NOT_FOUND] * 4,
            *[Reason.WRONG_STATE] * 3,
            *[Reason.CURRENCY_MISMATCH] * 2,
            Reason.LIMIT_EXCEEDED,
        ]


class TestTransfer:
    """Moving money between customers."""

    @pytest.mark.parametrize("upwards", [True, False])
    async def test_a_transfer_moves_money_in_either_order_of_ids(self, bank: Bank, upwards: bool) -> None:  # noqa: FBT001
        low, high = bank.account(5000), bank.account(5000)
        source, target = (low, high) if upwards else (high, low)

        output = (await bank.transfer(source, target, 1200)).output

        row = bank.one("select * from ledger.movements where movement_id = %s", output.movement_id)
        assert (bank.money(source), bank.money(target)) == ((3800, 0), (6200, 0))
        assert (row["debit_account"], row["credit_account"]) == (source, target)
        assert (row["operation_type"], row["reason_code"]) == ("TRANSFER", "PAYMENT")

    async def test_held_money_cannot_be_transferred(self, bank: Bank) -> None:
        account = bank.account(5000)
        await bank.freeze(account, 4500)

        error = await refused(bank.transfer(account, bank.account(principal=BEN), 501))

        assert error.reason is Reason.FUNDS_INSUFFICIENT
        assert error.info.details["available_cents"] == 500

    async def test_each_wrong_transfer_has_its_reason(self, bank: Bank) -> None:
        account, limited = bank.account(5000), bank.account(5000, limit_cents=999)
        locked, friend = bank.account(5000, state="FROZEN"), bank.account(5000, principal=BEN)

        reasons = [
            (await refused(step)).reason
            for step in (
                bank.transfer("A99999999", friend),
                bank.transfer(account, "A99999999"),
                bank.transfer(account, bank.account(tenant="other-bank")),
                bank.transfer(friend, account),
                bank.transfer(locked, friend),
                bank.transfer(account, bank.account(state="CLOSED")),
                bank.transfer(account, friend, currency="CNY"),
                bank.transfer(account, bank.account(currency="CNY")),
                bank.transfer(limited, friend),
                bank.transfer(account, friend, 5001),
                bank.transfer(account, bank.account(HUGE - 999, principal=BEN)),
            )
        ]

        assert reasons == [
            *[Reason.OBJECT_NOT_FOUND] * 3,
            Reason.NOT_OWNER,
            *[Reason.WRONG_STATE] * 2,
            *[Reason.CURRENCY_MISMATCH] * 2,
            Reason.LIMIT_EXCEEDED,
            Reason.FUNDS_INSUFFICIENT,
            Reason.LIMIT_EXCEEDED,
        ]

    async def test_a_locked_account_may_receive(self, bank: Bank) -> None:
        account, locked = bank.account(5000), bank.account(state="FROZEN")

        await bank.transfer(account, locked)

        assert bank.money(locked) == (1000, 0)


class TestReverse:
    """Booking the exact opposite of a movement."""

    async def test_a_reversal_is_the_exact_opposite_and_names_what_it_reverses(self, bank: Bank) -> None:
        account = bank.account(5000)
        credit = (await bank.credit(account, 1000)).output

        output = (await bank.reverse(credit.movement_id, memo="wrong")).output

        row = bank.one("select * from ledger.movements where movement_id = %s", output.movement_id)
        assert bank.money(account) == (5000, 0)
        assert (row["debit_account"], row["credit_account"], row["amount_cents"]) == (account, CASH, 1000)
        assert (row["operation_type"], row["reverses"], row["memo"]) == ("REVERSAL", credit.movement_id, "wrong")

    async def test_a_movement_is_reversed_once_and_a_reversal_never(self, bank: Bank) -> None:
        account = bank.account(5000)
        credit = (await bank.credit(account)).output.movement_id
        reversal = (await bank.reverse(credit)).output.movement_id

        again = await refused(bank.reverse(credit))
        back = await refused(bank.reverse(reversal))

        assert (again.reason, again.info.details["state"]) == (Reason.WRONG_STATE, "REVERSED")
        assert (back.reason, back.info.details["state"]) == (Reason.WRONG_STATE, "FINAL")
        assert bank.money(account) == (5000, 0)

    async def test_openings_captures_and_refunds_are_not_reversed(self, bank: Bank) -> None:
        capture = (await bank.captured(bank.account(5000))).output
        await bank.refund(capture.capture_id)
        found: dict[str, str] = {}

        for row in bank.owner("select movement_id, operation_type, amount_cents from ledger.movements"):
            error = await refused(bank.reverse(row["movement_id"], row["amount_cents"]))
            assert error.reason is Reason.WRONG_STATE
            found[row["operation_type"]] = error.info.details["state"]

        assert found == {"OPENING": "FINAL", "CAPTURE": "FINAL", "REFUND": "FINAL"}

    async def test_only_who_got_the_money_gives_it_back(self, bank: Bank) -> None:
        account, friend = bank.account(5000), bank.account(principal=BEN)
        transfer = (await bank.transfer(account, friend)).output.movement_id

        error = await refused(bank.reverse(transfer))
        await bank.reverse(transfer, principal=BEN)

        assert error.reason is Reason.NOT_OWNER
        assert (bank.money(account), bank.money(friend)) == ((5000, 0), (0, 0))

    @pytest.mark.parametrize(("direction", "left"), [("DEBIT", 4000), ("CREDIT", 6000)])
    async def test_what_two_approvers_adjusted_nobody_reverses(self, bank: Bank, direction: str, left: int) -> None:
        account = bank.account(5000)
        adjusted = (await bank.adjust(account, direction, 1000)).output.movement_id

        error = await refused(bank.reverse(adjusted))

        assert (error.reason, error.info.details["state"]) == (Reason.WRONG_STATE, "FINAL")
        assert bank.money(account) == (left, 0)

    async def test_a_locked_account_is_not_reversed_out_of(self, bank: Bank) -> None:
        account = bank.account(5000)
        credit = (await bank.credit(account)).output.movement_id
        await bank.lock(account)

        error = await refused(bank.reverse(credit))

        assert (error.reason, error.info.details["state"]) == (Reason.WRONG_STATE, "FROZEN")
        assert bank.money(account) == (6000, 0)

    async def test_each_wrong_reversal_has_its_reason(self, bank: Bank) -> None:
        account = bank.account()
        credit = (await bank.credit(account)).output.movement_id

        found = await refused(bank.reverse(credit, 999))
        reasons = [
            found.reason,
            (await refused(bank.reverse("M9999999999"))).reason,
            (await refused(bank.reverse(credit, tenant="other-bank"))).reason,
            (await refused(bank.reverse(credit, principal=BEN))).reason,
            (await refused(bank.reverse(credit, currency="USD"))).reason,
        ]
        await bank.freeze(account, 1)
        reasons.append((await refused(bank.reverse(credit))).reason)
        await bank.lock(account)
        reasons.append((await refused(bank.reverse(credit))).reason)

        assert found.info.fields[0].path == "arguments.amount_cents"
        assert reasons == [
            Reason.ARGUMENTS_INVALID,
            Reason.OBJECT_NOT_FOUND,
            Reason.OBJECT_NOT_FOUND,
            Reason.NOT_OWNER,
            Reason.CURRENCY_MISMATCH,
            Reason.FUNDS_INSUFFICIENT,
            Reason.WRONG_STATE,
        ]
        assert bank.money(account) == (1000, 1)


class TestAdjust:
    """Correcting a balance."""

    @pytest.mark.parametrize(("direction", "expected"), [("CREDIT", 5300), ("DEBIT", 4700)])
    async def test_an_adjustment_goes_the_way_that_is_said(self, bank: Bank, direction: str, expected: int) -> None:
        account = bank.account(5000)

        output = (await bank.adjust(account, direction, 300)).output

        row = bank.one("select * from ledger.movements where movement_id = %s", output.movement_id)
        assert bank.money(account) == (expected, 0)
        assert (row["operation_type"], row["reason_code"]) == ("ADJUSTMENT", "MISPOSTING")

    async def test_each_wrong_adjustment_has_its_reason(self, bank: Bank) -> None:
        account, locked = bank.account(5000), bank.account(5000, state="FROZEN")

        reasons = [
            (await refused(step)).reason
            for step in (
                bank.adjust("A99999999", "CREDIT"),
                bank.adjust(account, "CREDIT", system_account_id="S99999999"),
                bank.adjust(bank.account(principal=BEN), "CREDIT"),
                bank.adjust(locked, "DEBIT"),
                bank.adjust(bank.account(state="CLOSED"), "CREDIT"),
                bank.adjust(account, "CREDIT", currency="USD"),
                bank.adjust(account, "DEBIT", 5001),
                bank.adjust(bank.account(HUGE), "CREDIT", 1),
            )
        ]
        await bank.adjust(locked, "CREDIT")

        assert reasons == [
            *[Reason.OBJECT_NOT_FOUND] * 2,
            Reason.NOT_OWNER,
            *[Reason.WRONG_STATE] * 2,
            Reason.CURRENCY_MISMATCH,
            Reason.FUNDS_INSUFFICIENT,
            Reason.LIMIT_EXCEEDED,
        ]
