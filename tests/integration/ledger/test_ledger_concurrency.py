"""Many at once on the same money: sums never exceed, orders never deadlock, one of two racers wins."""

import asyncio
from collections import Counter
from typing import Any

import psycopg
import pytest

from activities.database import Transaction
from activities.packs.ledger import expire_holds
from contracts.errors import SagaError
from contracts.reasons import Reason
from tests.support.ledger import BEN, CASH, MERCHANT, Bank


def reasons(results: list[Any]) -> Counter[str]:
    """Count outcomes: LANDED, or the reason of the refusal; anything else is an error of the test."""
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, SagaError):
            raise result
    return Counter(result.reason.value if isinstance(result, SagaError) else "LANDED" for result in results)


def deadlocks(bank: Bank) -> int:
    bank.owner("select pg_stat_force_next_flush()")
    return int(bank.one("select deadlocks from pg_stat_database where datname = current_database()")["deadlocks"])


async def test_holds_on_one_account_never_exceed_it(bank: Bank) -> None:
    account = bank.account(1000)

    results = await asyncio.gather(*(bank.freeze(account, 70) for _ in range(40)), return_exceptions=True)

    assert reasons(results) == {"LANDED": 14, "FUNDS_INSUFFICIENT": 26}
    assert bank.money(account) == (1000, 980)


async def test_transfers_out_of_one_account_never_exceed_it(bank: Bank) -> None:
    account, friend = bank.account(1000), bank.account(principal=BEN)

    results = await asyncio.gather(*(bank.transfer(account, friend, 70) for _ in range(40)), return_exceptions=True)

    assert reasons(results) == {"LANDED": 14, "FUNDS_INSUFFICIENT": 26}
    assert (bank.money(account), bank.money(friend)) == ((20, 0), (980, 0))


async def test_crossing_transfers_wait_for_each_other_and_never_deadlock(bank: Bank) -> None:
    accounts = [bank.account(100_000) for _ in range(3)]
    pairs = [(source, target) for source in accounts for target in accounts if source != target]

    results = await asyncio.gather(
        *(bank.transfer(*pairs[number % 6], 10, pause=lambda: asyncio.sleep(0.002)) for number in range(120)),
        return_exceptions=True,
    )

    assert reasons(results) == {"LANDED": 120}
    assert [bank.money(account) for account in accounts] == [(100_000, 0)] * 3
    assert deadlocks(bank) == 0


async def test_captures_refunds_and_compensations_between_two_customers_never_deadlock(bank: Bank) -> None:
    anna, ben = bank.account(100_000), bank.account(100_000, principal=BEN)

    async def there_and_back(number: int) -> None:
        payer, payee, principal, other = (anna, ben, "anna", BEN) if number % 2 else (ben, anna, BEN, "anna")
        hold = await bank.freeze(payer, 100, principal=principal)
        debit = await bank.debit(hold.output.hold_id, 90, payee, principal=principal)
        if number % 3:
            await bank.refund(debit.output.capture_id, 40, principal=other)
        await bank.compensate(debit)
        await bank.compensate(hold)

    results = await asyncio.gather(*(there_and_back(number) for number in range(40)), return_exceptions=True)

    assert reasons(results) == {"LANDED": 40}
    assert (bank.money(anna), bank.money(ben)) == ((100_000, 0), (100_000, 0))
    assert deadlocks(bank) == 0


@pytest.mark.parametrize("to_customer", [False, True])
async def test_of_many_captures_of_one_hold_one_lands(bank: Bank, to_customer: bool) -> None:  # noqa: FBT001
    account, shop = bank.account(1000), bank.account(principal=BEN) if to_customer else MERCHANT
    hold = (await bank.freeze(account, 600)).output.hold_id

    results = await asyncio.gather(*(bank.debit(hold, 500, shop) for _ in range(12)), return_exceptions=True)

    assert reasons(results) == {"LANDED": 1, "WRONG_STATE": 11}
    assert (bank.money(account), bank.money(shop)) == ((500, 0), (500, 0))


async def test_of_many_reversals_of_one_movement_one_lands(bank: Bank) -> None:
    account = bank.account(5000)
    credit = await bank.credit(account, 100)
    movement = credit.output.movement_id

    results = await asyncio.gather(
        *(bank.reverse(movement, 100) for _ in range(12)), bank.compensate(credit), return_exceptions=True
    )

    counted = reasons(results)
    assert counted["LANDED"] + counted["WRONG_STATE"] == 13
    assert 1 <= counted["LANDED"] <= 2, "one reversal, and a compensation that may find it done"
    assert bank.money(account) == (5000, 0)


@pytest.mark.parametrize("by_tool", [True, False])
async def test_a_reversal_that_waited_for_another_one_books_nothing(bank: Bank, by_tool: bool) -> None:  # noqa: FBT001
    account = bank.account(5000)
    credit = await bank.credit(account, 100)
    movement = credit.output.movement_id
    gate = Gate()
    first = asyncio.create_task(bank.reverse(movement, 100, pause=gate))
    await gate.reached.wait()

    second = asyncio.create_task(bank.reverse(movement, 100) if by_tool else bank.compensate(credit))
    await wait_for_a_wait(bank)
    gate.opened.set()
    results = await asyncio.gather(first, second, return_exceptions=True)

    assert reasons(list(results)) == ({"LANDED": 1, "WRONG_STATE": 1} if by_tool else {"LANDED": 2})
    assert bank.money(account) == (5000, 0)


async def test_refunds_of_one_capture_never_exceed_it(bank: Bank) -> None:
    account = bank.account(1000)
    capture = (await bank.captured(account, 700)).output.capture_id

    results = await asyncio.gather(*(bank.refund(capture, 100) for _ in range(20)), return_exceptions=True)

    counted = reasons(results)
    assert counted["LANDED"] == 7
    assert counted["FUNDS_INSUFFICIENT"] + counted["WRONG_STATE"] == 13
    assert bank.money(account) == (1000, 0)


async def test_the_sweep_waits_for_nobody(bank: Bank) -> None:
    busy, idle = bank.account(1000), bank.account(1000)
    holds = [await bank.freeze(account, 100) for account in (busy, busy, idle)]
    for hold in holds:
        bank.overdue(hold.output.hold_id)
    gate = Gate()
    releasing = asyncio.create_task(bank.compensate(holds[0], pause=gate))
    await gate.reached.wait()

    async def sweep(transaction: Transaction) -> int:
        await transaction.later("set local lock_timeout = '1ms'")
        return await expire_holds(transaction, 10)

    first = await bank.database.run(sweep)
    gate.opened.set()
    await releasing
    second = await bank.database.run(sweep)

    assert (first, second) == (1, 1)
    assert (bank.money(busy), bank.money(idle)) == ((1000, 0), (1000, 0))


@pytest.mark.parametrize("to_customer", [False, True])
async def test_a_hold_that_expires_meanwhile_is_captured_or_freed_never_both(
    bank: Bank,
    to_customer: bool,  # noqa: FBT001
) -> None:
    shop = bank.account(principal=BEN) if to_customer else MERCHANT
    accounts = [bank.account(1000) for _ in range(24)]
    holds = [await bank.freeze(account, 400) for account in accounts]
    bank.owner("update ledger.holds set expires_at = clock_timestamp() + interval '120 ms'")

    async def capture(number: int) -> None:
        await asyncio.sleep(0.01 * number)
        await bank.debit(holds[number].output.hold_id, 400, shop)

    async def sweep(transaction: Transaction) -> int:
        return await expire_holds(transaction, 5)

    async def keep_sweeping() -> int:
        swept = 0
        for _ in range(60):
            swept += await bank.database.run(sweep)
            await asyncio.sleep(0.01)
        return swept

    sweeping = asyncio.create_task(keep_sweeping())
    results = await asyncio.gather(*(capture(number) for number in range(24)), return_exceptions=True)
    swept = await sweeping

    counted = reasons(results)
    assert counted["LANDED"] + counted["WRONG_STATE"] == 24
    assert counted["LANDED"] > 0, "the race was lost before it began"
    assert swept == counted["WRONG_STATE"] > 0
    expected = [(600, 0) if not isinstance(result, SagaError) else (1000, 0) for result in results]
    assert [bank.money(account) for account in accounts] == expected
    assert deadlocks(bank) == 0


@pytest.mark.parametrize("to_customer", [False, True])
async def test_a_capture_that_waited_for_another_one_takes_nothing(bank: Bank, to_customer: bool) -> None:  # noqa: FBT001
    account, shop = bank.account(1000), bank.account(principal=BEN) if to_customer else MERCHANT
    hold = (await bank.freeze(account, 600)).output.hold_id
    gate = Gate()
    first = asyncio.create_task(bank.debit(hold, 500, shop, pause=gate))
    await gate.reached.wait()

    second = asyncio.create_task(bank.debit(hold, 500, shop))
    await wait_for_a_wait(bank)
    gate.opened.set()
    results = await asyncio.gather(first, second, return_exceptions=True)

    assert reasons(list(results)) == {"LANDED": 1, "WRONG_STATE": 1}
    assert (bank.money(account), bank.money(shop)) == ((500, 0), (500, 0))


async def test_a_transfer_that_waited_sees_what_is_left(bank: Bank) -> None:
    account, friend = bank.account(1000), bank.account(principal=BEN)
    gate = Gate()
    first = asyncio.create_task(bank.transfer(account, friend, 600, pause=gate))
    await gate.reached.wait()

    second = asyncio.create_task(bank.transfer(account, friend, 600))
    await wait_for_a_wait(bank)
    gate.opened.set()
    results = await asyncio.gather(first, second, return_exceptions=True)

    assert reasons(list(results)) == {"LANDED": 1, "FUNDS_INSUFFICIENT": 1}
    assert (bank.money(account), bank.money(friend)) == ((400, 0), (600, 0))


@pytest.mark.parametrize("account_kind", ["customer", "system"])
async def test_a_movement_that_waited_for_a_closing_is_refused(bank: Bank, account_kind: str) -> None:
    account = bank.account(5000)
    before = bank.money(CASH)
    with psycopg.connect(bank.url, options="-c role=backstay_owner") as connection:
        closed = account if account_kind == "customer" else CASH
        connection.execute("select ledger.close_account(%s)", (closed,))
        waiting = asyncio.create_task(bank.credit(account, 1))
        await wait_for_a_wait(bank)
        connection.commit()

    with pytest.raises(SagaError) as caught:
        await waiting

    assert caught.value.reason is Reason.WRONG_STATE
    assert caught.value.info.details["account_id"] == closed
    assert (bank.money(account), bank.money(CASH)) == ((5000, 0), before)


async def test_closing_a_system_account_waits_for_movements_under_way(bank: Bank) -> None:
    account, friend = bank.account(5000), bank.account(principal=BEN)
    gate = Gate()
    under_way = asyncio.create_task(bank.transfer(account, friend, 1, pause=gate))
    await gate.reached.wait()

    with psycopg.connect(bank.url, options="-c role=backstay_owner -c lock_timeout=200") as connection:
        with pytest.raises(psycopg.errors.LockNotAvailable):
            connection.execute("select ledger.close_account(%s)", (MERCHANT,))
        connection.rollback()
        gate.opened.set()
        await under_way
        connection.execute("select ledger.close_account(%s)", (MERCHANT,))


async def test_system_accounts_are_not_locked_by_movements(bank: Bank) -> None:
    accounts = [bank.account(5000) for _ in range(2)]
    gate = Gate()
    under_way = asyncio.create_task(bank.credit(accounts[0], 10, pause=gate))
    await gate.reached.wait()

    with psycopg.connect(bank.url, autocommit=True) as connection:
        connection.execute("select from ledger.accounts where account_id = %s for update nowait", (CASH,))
    await bank.credit(accounts[1], 10)

    assert not under_way.done()
    gate.opened.set()
    await under_way
    assert [bank.money(account) for account in accounts] == [(5010, 0)] * 2


class Gate:
    """Holds a step before its commit: `reached` when it is there, going on when `opened`."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()

    async def __call__(self) -> None:
        """Wait at the gate."""
        self.reached.set()
        await self.opened.wait()


async def wait_for_a_wait(bank: Bank) -> None:
    """Wait until a transaction waits for another; about three seconds, less than the database lets ours be idle."""
    for _ in range(300):
        if bank.owner("select 1 from pg_locks where not granted"):
            return
        await asyncio.sleep(0.01)
    raise AssertionError("nobody waits")
