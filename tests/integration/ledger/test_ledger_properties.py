# ruff: noqa: FBT001 - hypothesis passes what it draws by name
"""The ledger against a model of dictionaries: any order of steps, compensations, closings and sweeps.

The model is written from the rules, not from the statements: it says before each step whether it lands or why not,
and afterwards what every account has. In the end the invariants are asked of the tables.
"""

import asyncio
import inspect
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, event, settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine

from activities.database import Transaction
from activities.packs.ledger import expire_holds
from contracts.errors import SagaError
from contracts.reasons import Reason
from tests.support.ledger import ANNA, BEN, MERCHANT, Bank, Landed, open_bank, wipe

T = TypeVar("T")

PRINCIPALS = (ANNA, BEN)
NOTHING: object = multiple()  # pyright: ignore[reportUnknownVariableType] - a refused step makes nothing to go on with
LIMIT_CENTS = 700
amounts = st.sampled_from([1, 1, 60, 60, 250, 250, 699, 700, 701, 1200])
honest = st.sampled_from([True, True, True, True, True, False])
"""Mostly the owner acts; now and then somebody else."""


@dataclass
class Account:
    """A customer's account as the model sees it."""

    account_id: str
    principal: str
    balance: int
    limit: int | None
    state: str = "ACTIVE"
    locked_by: int | None = None
    held: int = 0

    @property
    def available(self) -> int:
        """What may be spent."""
        return self.balance - self.held


@dataclass
class Hold:
    """A hold, and what became of it."""

    landed: Landed
    account: Account
    amount: int
    state: str = "OPEN"
    overdue: bool = False
    compensated: bool = False


@dataclass
class Capture:
    """A capture; `payee` is None for the merchant's system account."""

    landed: Landed
    account: Account
    payee: Account | None
    amount: int
    refunded: int = 0
    compensated: bool = False


@dataclass
class Movement:
    """A credit, transfer or adjustment; None is a system account."""

    landed: Landed
    payer: Account | None
    payee: Account | None
    amount: int
    reversed: bool = False
    compensated: bool = False


@dataclass
class Lock:
    """A lock or unlock of an account; `number` is the lock it set or lifted."""

    landed: Landed
    account: Account
    sets: bool
    number: int | None
    compensated: bool = field(default=False)


class LedgerMachine(RuleBasedStateMachine):
    """Rules draw steps; each is compared with the model at once."""

    url = ""
    accounts = Bundle("accounts")
    holds = Bundle("holds")
    captures = Bundle("captures")
    movements = Bundle("movements")
    locks = Bundle("locks")

    def __init__(self) -> None:
        """Open an empty bank on a loop of its own."""
        super().__init__()
        wipe(self.url)
        self.runner = asyncio.Runner()
        self.opening = open_bank(self.url, connections_max=2)
        self.bank: Bank = self.run(self.opening.__aenter__())
        self.world: list[Account] = []
        self.opened: list[Hold] = []
        self.taken: list[Capture] = []
        self.revoked: set[int | None] = set()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for something asynchronous."""
        return self.runner.run(work)

    def teardown(self) -> None:
        """Ask the invariants, then leave."""
        try:
            self.bank.settle()
            assert self.bank.violations() == {}
        finally:
            self.run(self.opening.__aexit__(None, None, None))
            self.runner.close()

    def step(self, work: Coroutine[Any, Any, T], expected: Reason | None) -> T | None:
        """Run a step; it lands if nothing is expected against it, else it is refused for just that reason."""
        result: T | None
        outcome: Reason | None
        try:
            result = self.run(work)
        except SagaError as error:
            outcome, result, told = error.reason, None, str(error)
        else:
            outcome, told = None, "landed"
        event(f"{inspect.stack()[1].function}: {outcome or 'LANDED'}")
        assert outcome is expected, told
        return result

    @initialize(target=accounts)
    def open_accounts(self) -> object:
        """Two customers with two accounts each, one of them limited."""
        for principal in PRINCIPALS:
            for limit in (None, LIMIT_CENTS):
                account_id = self.bank.account(2000, principal=principal, limit_cents=limit)
                self.world.append(Account(account_id, principal, 2000, limit))
        return multiple(*self.world)

    @rule(target=holds, account=accounts, amount=amounts, owner_acts=honest)
    def freeze(self, account: Account, amount: int, owner_acts: bool) -> object:
        """Hold money."""
        principal = actor(account.principal, owner_acts=owner_acts)
        expected = why_not_pay(account, amount, principal)
        landed = self.step(self.bank.freeze(account.account_id, amount, principal=principal), expected)
        if landed is None:
            return NOTHING
        account.held += amount
        self.opened.append(Hold(landed, account, amount))
        return self.opened[-1]

    @rule(target=captures, hold=holds, amount=amounts, payee=st.none() | accounts, owner_acts=honest)
    def debit(self, hold: Hold, amount: int, payee: Account | None, owner_acts: bool) -> object:
        """Capture a hold, all or a part."""
        principal = actor(hold.account.principal, owner_acts=owner_acts)
        expected = None
        if principal != hold.account.principal:
            expected = Reason.NOT_OWNER
        elif hold.state != "OPEN" or hold.overdue:
            expected = Reason.WRONG_STATE
        elif amount > hold.amount:
            expected = Reason.FUNDS_INSUFFICIENT
        elif payee is hold.account:
            expected = Reason.ARGUMENTS_INVALID
        elif payee is not None and payee.state == "CLOSED":
            expected = Reason.WRONG_STATE
        target = payee.account_id if payee else MERCHANT
        landed = self.step(self.bank.debit(hold.landed.output.hold_id, amount, target, principal=principal), expected)
        if landed is None:
            return NOTHING
        hold.state = "CAPTURED"
        hold.account.held -= hold.amount
        pay(hold.account, payee, amount)
        self.taken.append(Capture(landed, hold.account, payee, amount))
        return self.taken[-1]

    @rule(capture=captures, amount=amounts, owner_acts=honest)
    def refund(self, capture: Capture, amount: int, owner_acts: bool) -> None:
        """Give captured money back by the tool."""
        principal = actor((capture.payee or capture.account).principal, owner_acts=owner_acts)
        owner = (capture.payee or capture.account).principal
        expected = None
        if principal != owner:
            expected = Reason.NOT_OWNER
        elif capture.refunded == capture.amount:
            expected = Reason.WRONG_STATE
        elif amount > capture.amount - capture.refunded:
            expected = Reason.FUNDS_INSUFFICIENT
        else:
            expected = why_not_give_back(capture.payee, capture.account, amount)
        landed = self.step(self.bank.refund(capture.landed.output.capture_id, amount, principal=principal), expected)
        if landed is not None:
            capture.refunded += amount
            pay(capture.payee, capture.account, amount)

    @rule(target=movements, account=accounts, amount=amounts, owner_acts=honest)
    def credit(self, account: Account, amount: int, owner_acts: bool) -> object:
        """Pay a customer out of cash."""
        principal = actor(account.principal, owner_acts=owner_acts)
        expected = Reason.WRONG_STATE if account.state == "CLOSED" else None
        landed = self.step(self.bank.credit(account.account_id, amount, principal=principal), expected)
        if landed is None:
            return NOTHING
        pay(None, account, amount)
        return Movement(landed, None, account, amount)

    @rule(target=movements, payer=accounts, payee=accounts, amount=amounts, owner_acts=honest)
    def transfer(self, payer: Account, payee: Account, amount: int, owner_acts: bool) -> object:
        """Move money between customers."""
        principal = actor(payer.principal, owner_acts=owner_acts)
        if payer is payee:
            return NOTHING
        expected = why_not_pay(payer, amount, principal)
        if payee.state == "CLOSED" and expected not in (Reason.NOT_OWNER, Reason.WRONG_STATE):
            expected = Reason.WRONG_STATE
        landed = self.step(
            self.bank.transfer(payer.account_id, payee.account_id, amount, principal=principal), expected
        )
        if landed is None:
            return NOTHING
        pay(payer, payee, amount)
        return Movement(landed, payer, payee, amount)

    @rule(target=movements, account=accounts, amount=amounts, owner_acts=honest, takes=st.booleans())
    def adjust(self, account: Account, amount: int, owner_acts: bool, takes: bool) -> object:
        """Correct a balance."""
        principal = actor(account.principal, owner_acts=owner_acts)
        expected = None
        if principal != account.principal:
            expected = Reason.NOT_OWNER
        elif account.state == "CLOSED" or (takes and account.state == "FROZEN"):
            expected = Reason.WRONG_STATE
        elif takes and amount > account.available:
            expected = Reason.FUNDS_INSUFFICIENT
        work = self.bank.adjust(account.account_id, "DEBIT" if takes else "CREDIT", amount, principal=principal)
        landed = self.step(work, expected)
        if landed is None:
            return NOTHING
        payer, payee = (account, None) if takes else (None, account)
        pay(payer, payee, amount)
        return Movement(landed, payer, payee, amount)

    @rule(movement=movements, owner_acts=honest, by=st.sampled_from([0, 0, 0, 1]))
    def reverse(self, movement: Movement, owner_acts: bool, by: int) -> None:
        """Reverse a movement by the tool."""
        principal = actor(movement.payee.principal if movement.payee else ANNA, owner_acts=owner_acts)
        payer = movement.payee
        expected = None
        if payer is not None and principal != payer.principal:
            expected = Reason.NOT_OWNER
        elif movement.reversed or movement.landed.tool.contract.name == "adjust_account_balance":
            expected = Reason.WRONG_STATE
        elif by:
            expected = Reason.ARGUMENTS_INVALID
        elif payer is not None and payer.state == "FROZEN":
            expected = Reason.WRONG_STATE
        else:
            expected = why_not_give_back(payer, movement.payer, movement.amount)
        movement_id = movement.landed.output.movement_id
        landed = self.step(self.bank.reverse(movement_id, movement.amount + by, principal=principal), expected)
        if landed is not None:
            movement.reversed = True
            pay(payer, movement.payer, movement.amount)

    @rule(target=locks, account=accounts, owner_acts=honest, sets=st.booleans())
    def lock_or_unlock(self, account: Account, owner_acts: bool, sets: bool) -> object:
        """Lock or unlock an account."""
        principal = actor(account.principal, owner_acts=owner_acts)
        expected = None
        if principal != account.principal:
            expected = Reason.NOT_OWNER
        elif account.state != ("ACTIVE" if sets else "FROZEN"):
            expected = Reason.WRONG_STATE
        act = self.bank.lock if sets else self.bank.unlock
        landed = self.step(act(account.account_id, principal=principal), expected)
        if landed is None:
            return NOTHING
        number = landed.transaction_id if sets else account.locked_by
        account.state = "FROZEN" if sets else "ACTIVE"
        account.locked_by = number if sets else None
        return Lock(landed, account, sets, number)

    @rule(hold=holds)
    def time_passes(self, hold: Hold) -> None:
        """Let a hold become overdue."""
        if hold.state == "OPEN":
            self.bank.overdue(hold.landed.output.hold_id)
            hold.overdue = True

    @rule()
    def sweep(self) -> None:
        """Expire what is overdue."""
        overdue = [hold for hold in self.opened if hold.state == "OPEN" and hold.overdue]

        async def work(transaction: Transaction) -> int:
            return await expire_holds(transaction, 1000)

        assert self.run(self.bank.database.run(work)) == len(overdue)
        for hold in overdue:
            hold.state = "EXPIRED"
            hold.account.held -= hold.amount

    @rule(account=accounts, closes=st.sampled_from([False, False, False, True]))
    def close(self, account: Account, closes: bool) -> None:
        """Close an account that holds nothing; now and then, else the end comes too soon."""
        if closes and account.held == 0:
            self.bank.close(account.account_id)
            account.state = "CLOSED"
            account.locked_by = None

    @rule(hold=holds)
    def compensate_freeze(self, hold: Hold) -> None:
        """Release a hold."""
        if hold.compensated:
            return
        done = self.step(self.bank.compensate(hold.landed), None)
        assert done is not None
        hold_id = hold.landed.output.hold_id
        kept = sum(taken.amount - taken.refunded for taken in self.taken if taken.landed.output.hold_id == hold_id)
        assert (done.residue is not None) == (kept > 0)
        hold.compensated = True
        if hold.state == "OPEN":
            hold.state = "EXPIRED" if hold.overdue else "RELEASED"
            hold.account.held -= hold.amount

    @rule(capture=captures)
    def compensate_debit(self, capture: Capture) -> None:
        """Give back what is left of a capture."""
        if capture.compensated:
            return
        rest = capture.amount - capture.refunded
        expected = why_not_give_back(capture.payee, capture.account, rest) if rest else None
        if self.step(self.bank.compensate(capture.landed), expected) is None:
            return
        capture.compensated = True
        capture.refunded = capture.amount
        pay(capture.payee, capture.account, rest)

    @rule(movement=movements)
    def compensate_movement(self, movement: Movement) -> None:
        """Reverse a credit or transfer."""
        if movement.compensated or movement.landed.tool.compensate is None:
            return
        expected = None
        if not movement.reversed:
            expected = why_not_give_back(movement.payee, movement.payer, movement.amount)
        if self.step(self.bank.compensate(movement.landed), expected) is None:
            return
        movement.compensated = True
        if not movement.reversed:
            movement.reversed = True
            pay(movement.payee, movement.payer, movement.amount)

    @rule(lock=consumes(locks))
    def compensate_lock(self, lock: Lock) -> None:
        """Lift a lock, or set a lifted one again."""
        account = lock.account
        expected = Reason.WRONG_STATE if account.state == "CLOSED" else None
        if self.step(self.bank.compensate(lock.landed), expected) is None:
            return
        if lock.sets:
            self.revoked.add(lock.number)
        if lock.sets and account.state == "FROZEN" and account.locked_by == lock.number:
            account.state, account.locked_by = "ACTIVE", None
        elif not lock.sets and account.state == "ACTIVE" and lock.number not in self.revoked:
            account.state, account.locked_by = "FROZEN", lock.number

    @invariant()
    def books_agree(self) -> None:
        """Every account has what the model says."""
        rows = self.bank.owner(
            "select account_id, balance_cents, held_cents, state, locked_by from ledger.accounts"
            " where principal is not null order by account_id"
        )
        assert [tuple(row.values()) for row in rows] == [
            (a.account_id, a.balance, a.held, a.state, a.locked_by) for a in self.world
        ]


def actor(owner: str, *, owner_acts: bool) -> str:
    """On whose behalf a step is."""
    return owner if owner_acts else next(name for name in PRINCIPALS if name != owner)


def why_not_pay(account: Account, amount: int, principal: str) -> Reason | None:
    """Say why a new hold or transfer out of an account is refused."""
    if principal != account.principal:
        return Reason.NOT_OWNER
    if account.state != "ACTIVE":
        return Reason.WRONG_STATE
    if account.limit is not None and amount > account.limit:
        return Reason.LIMIT_EXCEEDED
    return Reason.FUNDS_INSUFFICIENT if amount > account.available else None


def why_not_give_back(payer: Account | None, payee: Account | None, amount: int) -> Reason | None:
    """Say why an older movement cannot be undone: closed accounts, spent money."""
    if any(account is not None and account.state == "CLOSED" for account in (payer, payee)):
        return Reason.WRONG_STATE
    return Reason.FUNDS_INSUFFICIENT if payer is not None and amount > payer.available else None


def pay(payer: Account | None, payee: Account | None, amount: int) -> None:
    """Move money in the model."""
    if payer is not None:
        payer.balance -= amount
    if payee is not None:
        payee.balance += amount


def run(url: str, max_examples: int) -> None:
    """Let hypothesis look for an order of steps in which model and ledger part."""
    run_machine(
        type("Machine", (LedgerMachine,), {"url": url}),
        settings=settings(
            max_examples=max_examples,
            stateful_step_count=40,
            deadline=None,
            phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )


def test_any_order_of_steps_agrees_with_the_model(books_url: str) -> None:
    run(books_url, 15)


@pytest.mark.slow
def test_many_orders_of_steps_agree_with_the_model(books_url: str) -> None:
    run(books_url, 500)
