"""What each compensation restores, and when it is refused whole instead of done by half."""

import pytest

from activities.database import Transaction
from activities.packs.ledger import expire_holds
from contracts.reasons import Reason
from tests.support.ledger import BEN, CASH, MERCHANT, Bank, refused


async def sweep(bank: Bank, limit: int = 100) -> int:
    async def work(transaction: Transaction) -> int:
        return await expire_holds(transaction, limit)

    return await bank.database.run(work)


class TestRelease:
    """Compensating a freeze."""

    async def test_a_released_hold_is_available_again(self, bank: Bank) -> None:
        account = bank.account(5000)
        hold = await bank.freeze(account, 3000)

        done = await bank.compensate(hold)

        assert done.residue is None
        assert bank.money(account) == (5000, 0)
        assert bank.one("select state, closed_at is not null as closed from ledger.holds") == {
            "state": "RELEASED",
            "closed": True,
        }

    async def test_an_overdue_hold_is_marked_expired_and_its_money_is_free(self, bank: Bank) -> None:
        account = bank.account(5000)
        hold = await bank.freeze(account, 3000)
        bank.overdue(hold.output.hold_id)

        done = await bank.compensate(hold)

        assert done.residue is None
        assert bank.money(account) == (5000, 0)
        assert bank.one("select state from ledger.holds") == {"state": "EXPIRED"}

    async def test_a_hold_that_the_sweep_expired_needs_nothing(self, bank: Bank) -> None:
        account = bank.account(5000)
        hold = await bank.freeze(account, 3000)
        bank.overdue(hold.output.hold_id)
        await sweep(bank)

        done = await bank.compensate(hold)

        assert done.residue is None
        assert bank.money(account) == (5000, 0)

    async def test_a_hold_whose_capture_was_given_back_needs_nothing(self, bank: Bank) -> None:
        account = bank.account(5000)
        hold = await bank.freeze(account, 3000)
        debit = await bank.debit(hold.output.hold_id, 1000)
        await bank.compensate(debit)

        done = await bank.compensate(hold)

        assert done.residue is None
        assert bank.money(account) == (5000, 0)

    async def test_money_that_somebody_captured_and_kept_is_reported(self, bank: Bank) -> None:
        account = bank.account(5000)
        hold = await bank.freeze(account, 3000)
        debit = await bank.debit(hold.output.hold_id, 1000)
        await bank.refund(debit.output.capture_id, 300)

        done = await bank.compensate(hold)

        assert done.residue is not None
        assert "700 cents EUR" in done.residue
        assert debit.output.capture_id in done.residue
        assert bank.money(account) == (4300, 0)

    async def test_a_locked_account_gets_its_money_free(self, bank: Bank) -> None:
        account = bank.account(5000)
        hold = await bank.freeze(account, 3000)
        await bank.lock(account)

        await bank.compensate(hold)

        assert bank.money(account) == (5000, 0)


class TestGiveBack:
    """Compensating a debit."""

    @pytest.mark.parametrize("to_customer", [False, True])
    async def test_a_capture_is_given_back_whole(self, bank: Bank, to_customer: bool) -> None:  # noqa: FBT001
        account, shop = bank.account(5000), bank.account(principal=BEN) if to_customer else MERCHANT
        debit = await bank.captured(account, 1000, shop)

        done = await bank.compensate(debit)

        refund = bank.one("select * from ledger.movements where operation_type = 'REFUND'")
        assert done.residue is None
        assert (bank.money(account), bank.money(shop)) == ((5000, 0), (0, 0))
        assert (refund["amount_cents"], refund["reason_code"]) == (1000, "SAGA_COMPENSATION")
        assert bank.one("select state from ledger.captures") == {"state": "REFUNDED"}

    async def test_only_what_was_not_refunded_before_is_given_back(self, bank: Bank) -> None:
        account = bank.account(5000)
        debit = await bank.captured(account, 1000)
        await bank.refund(debit.output.capture_id, 250)
        await bank.refund(debit.output.capture_id, 150)

        await bank.compensate(debit)

        amounts = bank.owner("select amount_cents from ledger.movements where operation_type = 'REFUND' order by 1")
        assert [row["amount_cents"] for row in amounts] == [150, 250, 600]
        assert bank.money(account) == (5000, 0)

    async def test_a_refunded_capture_needs_nothing(self, bank: Bank) -> None:
        account = bank.account(5000)
        debit = await bank.captured(account, 1000)
        await bank.refund(debit.output.capture_id, 1000)

        done = await bank.compensate(debit)

        assert done.residue is None
        assert bank.money(account) == (5000, 0)

    async def test_the_refund_window_does_not_bind_a_compensation(self, bank: Bank) -> None:
        account = bank.account(5000)
        debit = await bank.captured(account, 1000)
        bank.age_captures("200 days")

        tool = await refused(bank.refund(debit.output.capture_id, 1000))
        await bank.compensate(debit)

        assert tool.reason is Reason.WINDOW_CLOSED
        assert bank.money(account) == (5000, 0)

    @pytest.mark.parametrize("lock_shop", [False, True])
    async def test_locks_do_not_stop_it(self, bank: Bank, lock_shop: bool) -> None:  # noqa: FBT001
        account, shop = bank.account(5000), bank.account(principal=BEN)
        debit = await bank.captured(account, 1000, shop)
        await (bank.lock(shop, principal=BEN) if lock_shop else bank.lock(account))

        await bank.compensate(debit)

        assert bank.money(account) == (5000, 0)

    @pytest.mark.parametrize("closed", ["payer", "customer_shop", "system_shop"])
    async def test_a_closed_account_refuses_it_and_nothing_changes(self, bank: Bank, closed: str) -> None:
        shops = {"payer": MERCHANT, "customer_shop": bank.account(principal=BEN), "system_shop": bank.system()}
        account, shop = bank.account(5000), shops[closed]
        debit = await bank.captured(account, 1000, shop)
        bank.close(account if closed == "payer" else shop)

        error = await refused(bank.compensate(debit))

        assert error.reason is Reason.WRONG_STATE
        assert error.info.details["state"] == "CLOSED"
        assert (bank.money(account), bank.money(shop)) == ((4000, 0), (1000, 0))
        assert bank.one("select refunded_cents from ledger.captures") == {"refunded_cents": 0}

    async def test_spent_money_refuses_it_whole(self, bank: Bank) -> None:
        account, shop = bank.account(5000), bank.account(principal=BEN)
        debit = await bank.captured(account, 1000, shop)
        await bank.transfer(shop, bank.account(), 1, principal=BEN)

        error = await refused(bank.compensate(debit))

        assert error.reason is Reason.FUNDS_INSUFFICIENT
        assert "available_cents" not in error.info.details, "another principal's balance is not told"
        assert (bank.money(account), bank.money(shop)) == ((4000, 0), (999, 0))


class TestTakeBack:
    """Compensating a credit or transfer."""

    async def test_a_credit_is_reversed(self, bank: Bank) -> None:
        account = bank.account(5000)
        before = bank.money(CASH)
        credit = await bank.credit(account, 1000)

        done = await bank.compensate(credit)

        row = bank.one("select * from ledger.movements where operation_type = 'REVERSAL'")
        assert done.residue is None
        assert (bank.money(account), bank.money(CASH)) == ((5000, 0), before)
        assert (row["reverses"], row["reason_code"]) == (credit.output.movement_id, "SAGA_COMPENSATION")

    async def test_a_transfer_to_somebody_else_is_reversed(self, bank: Bank) -> None:
        account, friend = bank.account(5000), bank.account(7, principal=BEN)
        transfer = await bank.transfer(account, friend, 1000)

        await bank.compensate(transfer)

        assert (bank.money(account), bank.money(friend)) == ((5000, 0), (7, 0))

    async def test_one_that_was_reversed_before_needs_nothing(self, bank: Bank) -> None:
        account = bank.account(5000)
        credit = await bank.credit(account, 1000)
        await bank.reverse(credit.output.movement_id, 1000)

        done = await bank.compensate(credit)

        assert done.residue is None
        assert bank.money(account) == (5000, 0)

    async def test_a_locked_account_gives_back(self, bank: Bank) -> None:
        account = bank.account(5000)
        credit = await bank.credit(account, 1000)
        await bank.lock(account)

        await bank.compensate(credit)

        assert bank.money(account) == (5000, 0)

    async def test_held_money_refuses_it_whole(self, bank: Bank) -> None:
        account = bank.account()
        credit = await bank.credit(account, 1000)
        await bank.freeze(account, 1)

        error = await refused(bank.compensate(credit))

        assert error.reason is Reason.FUNDS_INSUFFICIENT
        assert error.info.details["available_cents"] == 999
        assert bank.money(account) == (1000, 1)

    @pytest.mark.parametrize("closed", ["payer", "payee"])
    async def test_a_closed_account_refuses_it_and_nothing_changes(self, bank: Bank, closed: str) -> None:
        account, friend = bank.account(5000), bank.account(principal=BEN)
        transfer = await bank.transfer(account, friend, 1000)
        bank.close(account if closed == "payer" else friend)

        error = await refused(bank.compensate(transfer))

        assert (error.reason, error.info.details["state"]) == (Reason.WRONG_STATE, "CLOSED")
        assert (bank.money(account), bank.money(friend)) == ((4000, 0), (1000, 0))


class TestUnlockAndRelock:
    """Compensating a lock or unlock."""

    async def test_a_lock_is_lifted(self, bank: Bank) -> None:
        account = bank.account(5000)
        lock = await bank.lock(account)

        await bank.compensate(lock)
        await bank.freeze(account)

        assert bank.money(account) == (5000, 1000)

    async def test_somebody_elses_later_lock_stays(self, bank: Bank) -> None:
        account = bank.account(5000)
        first = await bank.lock(account)
        await bank.unlock(account)
        second = await bank.lock(account)

        await bank.compensate(first)

        row = bank.one("select state, locked_by from ledger.accounts where account_id = %s", account)
        assert row == {"state": "FROZEN", "locked_by": second.transaction_id}

    async def test_a_lock_that_was_lifted_needs_nothing(self, bank: Bank) -> None:
        account = bank.account(5000)
        lock = await bank.lock(account)
        await bank.unlock(account)

        await bank.compensate(lock)

        assert bank.one("select state from ledger.accounts where account_id = %s", account) == {"state": "ACTIVE"}

    async def test_an_unlock_is_undone_under_the_old_lock(self, bank: Bank) -> None:
        account = bank.account(5000)
        lock = await bank.lock(account)
        unlock = await bank.unlock(account)

        await bank.compensate(unlock)

        row = bank.one("select state, locked_by from ledger.accounts where account_id = %s", account)
        assert row == {"state": "FROZEN", "locked_by": lock.transaction_id}

    async def test_an_unlock_of_an_account_locked_again_leaves_the_new_lock(self, bank: Bank) -> None:
        account = bank.account(5000)
        await bank.lock(account)
        unlock = await bank.unlock(account)
        newer = await bank.lock(account)

        await bank.compensate(unlock)

        row = bank.one("select state, locked_by from ledger.accounts where account_id = %s", account)
        assert row == {"state": "FROZEN", "locked_by": newer.transaction_id}

    async def test_a_lock_that_is_compensated_is_not_set_again_by_another_saga(self, bank: Bank) -> None:
        account = bank.account(5000)
        lock = await bank.lock(account)
        unlock = await bank.unlock(account)

        await bank.compensate(lock)
        await bank.compensate(unlock)

        assert bank.one("select state from ledger.accounts where account_id = %s", account) == {"state": "ACTIVE"}

    async def test_an_unlock_of_what_the_owner_froze_by_hand_is_undone_too(self, bank: Bank) -> None:
        account = bank.account(5000, state="FROZEN")
        unlock = await bank.unlock(account)

        await bank.compensate(unlock)

        assert bank.one("select state from ledger.accounts where account_id = %s", account) == {"state": "FROZEN"}

    @pytest.mark.parametrize("verb", ["lock", "unlock"])
    async def test_a_closed_account_refuses_both(self, bank: Bank, verb: str) -> None:
        account = bank.account(5000)
        landed = await bank.lock(account)
        if verb == "unlock":
            landed = await bank.unlock(account)
        bank.close(account)

        error = await refused(bank.compensate(landed))

        assert error.reason is Reason.WRONG_STATE
        assert bank.one("select state from ledger.accounts where account_id = %s", account) == {"state": "CLOSED"}


class TestSweep:
    """Expiring holds."""

    async def test_overdue_holds_expire_oldest_first_within_the_limit(self, bank: Bank) -> None:
        account, other = bank.account(5000), bank.account(5000)
        holds = [(await bank.freeze(account, 100)).output.hold_id for _ in range(3)]
        holds.append((await bank.freeze(other, 100)).output.hold_id)
        current = (await bank.freeze(account, 7)).output.hold_id
        for age, hold_id in enumerate(holds, start=1):
            bank.overdue(hold_id, age)

        first, rest, none = await sweep(bank, 2), await sweep(bank, 9), await sweep(bank, 9)

        assert (first, rest, none) == (2, 2, 0)
        rows = bank.owner("select hold_id, state from ledger.holds order by hold_id")
        assert {row["hold_id"]: row["state"] for row in rows} == dict.fromkeys(holds, "EXPIRED") | {current: "OPEN"}
        assert (bank.money(account), bank.money(other)) == ((5000, 7), (5000, 0))

    async def test_the_oldest_go_first(self, bank: Bank) -> None:
        account = bank.account(5000)
        younger = (await bank.freeze(account)).output.hold_id
        older = (await bank.freeze(account)).output.hold_id
        bank.overdue(younger, 5)
        bank.overdue(older, 50)

        await sweep(bank, 1)

        assert bank.owner("select hold_id from ledger.holds where state = 'EXPIRED'") == [{"hold_id": older}]
