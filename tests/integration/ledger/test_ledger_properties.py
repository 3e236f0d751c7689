"""The ledger against a model of dictionaries: any order of steps, compensations, closings and sweeps.

The model is written from the rules, not from the statements: it says before each step whether it lands or why not,
and afterwards what every account has. In the end the invariants are asked of the tables.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, event, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine

from activities.database import Transaction
from activities.packs.ledger import expire_holds
from contracts.errors import SagaError
from contracts.reasons import Reason
from tests.support.ledger import ANNA, BEN, MERCHANT, Bank, open_bank, wipe
from tests.support.ledger_model import (
    Account,
    Capture,
    Hold,
    Lock,
    Movement,
    pay,
    why_not_give_back,
    why_not_pay,
    why_not_turn,
)

T = TypeVar("T")
X = TypeVar("X")

PRINCIPALS = (ANNA, BEN)
LIMIT_CENTS = 700
amounts = st.sampled_from([1, 1, 1, 60, 60, 60, 250, 250, 699, 700, 701, 1200])
numbers = st.integers(0, 99)
honest = st.sampled_from([True] * 7 + [False])
"""Mostly the owner acts; now and then somebody else."""


@dataclass(frozen=True)
class Draw:
    """What one step is about: objects by number, how much, and whether their owner asks."""

    first: int
    second: int
    amount: int
    owner_acts: bool


STEPS = {
    "freeze": 4,
    "debit": 4,
    "refund": 3,
    "credit": 1,
    "transfer": 2,
    "adjust": 2,
    "reverse": 2,
    "lock": 1,
    "unlock": 2,
    "time_passes": 1,
    "sweep": 1,
    "close": 1,
    "compensate_freeze": 2,
    "compensate_debit": 2,
    "compensate_movement": 2,
    "compensate_lock": 2,
}
"""How often each is drawn. One rule for all: hypothesis leaves out some rules in most runs, and few would be left
that hold, capture, refund and compensate the same money.
"""


class LedgerMachine(RuleBasedStateMachine):
    """Draws steps; each is compared with the model at once."""

    url = ""

    def __init__(self) -> None:
        """Open an empty bank on a loop of its own: two customers with two accounts each, one of them limited."""
        super().__init__()
        wipe(self.url)
        self.runner = asyncio.Runner()
        self.opening = open_bank(self.url, connections_max=2)
        self.bank: Bank = self.run(self.opening.__aenter__())
        self.accounts: list[Account] = []
        self.holds: list[Hold] = []
        self.captures: list[Capture] = []
        self.movements: list[Movement] = []
        self.locks: list[Lock] = []
        self.revoked: set[int | None] = set()
        for principal in PRINCIPALS:
            for limit in (None, LIMIT_CENTS):
                account_id = self.bank.account(2000, principal=principal, limit_cents=limit)
                self.accounts.append(Account(account_id, principal, 2000, limit))

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

    @rule(
        step=st.sampled_from([name for name, often in STEPS.items() for _ in range(often)]),
        draw=st.builds(Draw, numbers, numbers, amounts, honest),
    )
    def go(self, step: str, draw: Draw) -> None:
        """Do one step."""
        getattr(self, step)(draw)

    @invariant()
    def books_agree(self) -> None:
        """Every account has what the model says."""
        rows = self.bank.owner(
            "select account_id, balance_cents, held_cents, state, locked_by from ledger.accounts"
            " where principal is not null order by account_id"
        )
        assert [tuple(row.values()) for row in rows] == [
            (a.account_id, a.balance, a.held, a.state, a.locked_by) for a in self.accounts
        ]

    def step(self, name: str, work: Coroutine[Any, Any, T], expected: Reason | None) -> T | None:
        """Run a step; it lands if nothing is expected against it, else it is refused for just that reason."""
        result: T | None
        outcome: Reason | None
        try:
            result = self.run(work)
        except SagaError as error:
            outcome, result, told = error.reason, None, str(error)
        else:
            outcome, told = None, "landed"
        event(f"{name}: {outcome or 'LANDED'}")
        assert outcome is expected, f"{name}: {told}; expected {expected}"
        return result

    def freeze(self, draw: Draw) -> None:
        """Hold money."""
        account = pick(self.accounts, draw.first)
        principal = actor(account.principal, draw)
        expected = why_not_pay(account, draw.amount, principal)
        work = self.bank.freeze(account.account_id, draw.amount, principal=principal)
        if (landed := self.step("freeze", work, expected)) is not None:
            account.held += draw.amount
            self.holds.append(Hold(landed, account, draw.amount))

    def debit(self, draw: Draw) -> None:
        """Capture a hold, all or a part, into another account or the merchant's."""
        if not self.holds:
            return
        hold, payee = pick(self.holds, draw.first), pick([None, None, *self.accounts], draw.second)
        principal = actor(hold.account.principal, draw)
        expected = None
        if principal != hold.account.principal:
            expected = Reason.NOT_OWNER
        elif hold.state != "OPEN" or hold.overdue:
            expected = Reason.WRONG_STATE
        elif draw.amount > hold.amount:
            expected = Reason.FUNDS_INSUFFICIENT
        elif payee is hold.account:
            expected = Reason.ARGUMENTS_INVALID
        elif payee is not None and payee.state == "CLOSED":
            expected = Reason.WRONG_STATE
        target = payee.account_id if payee else MERCHANT
        work = self.bank.debit(hold.landed.output.hold_id, draw.amount, target, principal=principal)
        if (landed := self.step("debit", work, expected)) is not None:
            hold.state = "CAPTURED"
            hold.account.held -= hold.amount
            pay(hold.account, payee, draw.amount)
            self.captures.append(Capture(landed, hold.account, payee, draw.amount))

    def refund(self, draw: Draw) -> None:
        """Give captured money back by the tool."""
        if not self.captures:
            return
        capture = pick(self.captures, draw.first)
        owner = (capture.payee or capture.account).principal
        principal = actor(owner, draw)
        if principal != owner:
            expected: Reason | None = Reason.NOT_OWNER
        elif capture.refunded == capture.amount:
            expected = Reason.WRONG_STATE
        elif draw.amount > capture.amount - capture.refunded:
            expected = Reason.FUNDS_INSUFFICIENT
        else:
            expected = why_not_give_back(capture.payee, capture.account, draw.amount)
        work = self.bank.refund(capture.landed.output.capture_id, draw.amount, principal=principal)
        if self.step("refund", work, expected) is not None:
            capture.refunded += draw.amount
            pay(capture.payee, capture.account, draw.amount)

    def credit(self, draw: Draw) -> None:
        """Pay a customer out of cash."""
        account = pick(self.accounts, draw.first)
        expected = Reason.WRONG_STATE if account.state == "CLOSED" else None
        work = self.bank.credit(account.account_id, draw.amount, principal=actor(account.principal, draw))
        if (landed := self.step("credit", work, expected)) is not None:
            pay(None, account, draw.amount)
            self.movements.append(Movement(landed, None, account, draw.amount))

    def transfer(self, draw: Draw) -> None:
        """Move money between customers."""
        payer, payee = pick(self.accounts, draw.first), pick(self.accounts, draw.second)
        if payer is payee:
            return
        principal = actor(payer.principal, draw)
        expected = why_not_pay(payer, draw.amount, principal)
        if payee.state == "CLOSED" and expected is not Reason.NOT_OWNER:
            expected = Reason.WRONG_STATE
        work = self.bank.transfer(payer.account_id, payee.account_id, draw.amount, principal=principal)
        if (landed := self.step("transfer", work, expected)) is not None:
            pay(payer, payee, draw.amount)
            self.movements.append(Movement(landed, payer, payee, draw.amount))

    def adjust(self, draw: Draw) -> None:
        """Correct a balance; what two approvers decided is never reversed."""
        account, takes = pick(self.accounts, draw.first), bool(draw.second % 2)
        principal = actor(account.principal, draw)
        expected = None
        if principal != account.principal:
            expected = Reason.NOT_OWNER
        elif account.state == "CLOSED" or (takes and account.state == "FROZEN"):
            expected = Reason.WRONG_STATE
        elif takes and draw.amount > account.available:
            expected = Reason.FUNDS_INSUFFICIENT
        work = self.bank.adjust(account.account_id, "DEBIT" if takes else "CREDIT", draw.amount, principal=principal)
        if (landed := self.step("adjust", work, expected)) is not None:
            payer, payee = (account, None) if takes else (None, account)
            pay(payer, payee, draw.amount)
            self.movements.append(Movement(landed, payer, payee, draw.amount, adjusts=True))

    def reverse(self, draw: Draw) -> None:
        """Reverse a movement by the tool; now and then with a wrong amount."""
        if not self.movements:
            return
        movement, wrong = pick(self.movements, draw.first), draw.second % 8 == 0
        payer = movement.payee
        principal = actor(payer.principal if payer else ANNA, draw)
        if payer is not None and principal != payer.principal:
            expected: Reason | None = Reason.NOT_OWNER
        elif movement.reversed or movement.adjusts:
            expected = Reason.WRONG_STATE
        elif wrong:
            expected = Reason.ARGUMENTS_INVALID
        elif payer is not None and payer.state == "FROZEN":
            expected = Reason.WRONG_STATE
        else:
            expected = why_not_give_back(payer, movement.payer, movement.amount)
        movement_id = movement.landed.output.movement_id
        work = self.bank.reverse(movement_id, movement.amount + wrong, principal=principal)
        if self.step("reverse", work, expected) is not None:
            movement.reversed = True
            pay(payer, movement.payer, movement.amount)

    def lock(self, draw: Draw) -> None:
        """Lock an account."""
        account = pick(self.accounts, draw.first)
        principal = actor(account.principal, draw)
        expected = why_not_turn(account, "ACTIVE", principal)
        work = self.bank.lock(account.account_id, principal=principal)
        if (landed := self.step("lock", work, expected)) is not None:
            account.state, account.locked_by = "FROZEN", landed.transaction_id
            self.locks.append(Lock(landed, account, sets=True, number=landed.transaction_id))

    def unlock(self, draw: Draw) -> None:
        """Unlock an account."""
        account = pick(self.accounts, draw.first)
        principal = actor(account.principal, draw)
        expected = why_not_turn(account, "FROZEN", principal)
        work = self.bank.unlock(account.account_id, principal=principal)
        if (landed := self.step("unlock", work, expected)) is not None:
            self.locks.append(Lock(landed, account, sets=False, number=account.locked_by))
            account.state, account.locked_by = "ACTIVE", None

    def time_passes(self, draw: Draw) -> None:
        """Let a hold become overdue."""
        if self.holds and (hold := pick(self.holds, draw.first)).state == "OPEN":
            self.bank.overdue(hold.landed.output.hold_id)
            hold.overdue = True

    def sweep(self, _: Draw) -> None:
        """Expire what is overdue."""
        overdue = [hold for hold in self.holds if hold.state == "OPEN" and hold.overdue]

        async def work(transaction: Transaction) -> int:
            return await expire_holds(transaction, 1000)

        assert self.run(self.bank.database.run(work)) == len(overdue)
        for hold in overdue:
            hold.state = "EXPIRED"
            hold.account.held -= hold.amount

    def close(self, draw: Draw) -> None:
        """Close an account that holds nothing; now and then, else the end comes too soon."""
        account = pick(self.accounts, draw.first)
        if draw.second % 8 == 0 and account.held == 0:
            self.bank.close(account.account_id)
            account.state, account.locked_by = "CLOSED", None

    def compensate_freeze(self, draw: Draw) -> None:
        """Release a hold."""
        if not self.holds or (hold := pick(self.holds, draw.first)).compensated:
            return
        done = self.step("compensate_freeze", self.bank.compensate(hold.landed), None)
        assert done is not None
        hold_id = hold.landed.output.hold_id
        kept = sum(taken.amount - taken.refunded for taken in self.captures if taken.landed.output.hold_id == hold_id)
        assert (done.residue is not None) == (kept > 0)
        hold.compensated = True
        if hold.state == "OPEN":
            hold.state = "EXPIRED" if hold.overdue else "RELEASED"
            hold.account.held -= hold.amount

    def compensate_debit(self, draw: Draw) -> None:
        """Give back what is left of a capture."""
        if not self.captures or (capture := pick(self.captures, draw.first)).compensated:
            return
        rest = capture.amount - capture.refunded
        expected = why_not_give_back(capture.payee, capture.account, rest) if rest else None
        if self.step("compensate_debit", self.bank.compensate(capture.landed), expected) is not None:
            capture.compensated = True
            capture.refunded = capture.amount
            pay(capture.payee, capture.account, rest)

    def compensate_movement(self, draw: Draw) -> None:
        """Reverse a credit or transfer."""
        if not self.movements or (movement := pick(self.movements, draw.first)).compensated or movement.adjusts:
            return
        expected = None
        if not movement.reversed:
            expected = why_not_give_back(movement.payee, movement.payer, movement.amount)
        if self.step("compensate_movement", self.bank.compensate(movement.landed), expected) is not None:
            movement.compensated = True
            if not movement.reversed:
                movement.reversed = True
                pay(movement.payee, movement.payer, movement.amount)

    def compensate_lock(self, draw: Draw) -> None:
        """Take a lock away, or set a lifted one again unless it was taken away."""
        if not self.locks:
            return
        lock = self.locks.pop(draw.first % len(self.locks))
        account = lock.account
        expected = Reason.WRONG_STATE if account.state == "CLOSED" else None
        if self.step("compensate_lock", self.bank.compensate(lock.landed), expected) is None:
            return
        if lock.sets:
            self.revoked.add(lock.number)
            if account.state == "FROZEN" and account.locked_by == lock.number:
                account.state, account.locked_by = "ACTIVE", None
        elif account.state == "ACTIVE" and lock.number not in self.revoked:
            account.state, account.locked_by = "FROZEN", lock.number


def pick(things: Sequence[X], number: int) -> X:
    """Choose by a drawn number."""
    return things[number % len(things)]


def actor(owner: str, draw: Draw) -> str:
    """On whose behalf a step is."""
    return owner if draw.owner_acts else next(name for name in PRINCIPALS if name != owner)


def run(url: str, max_examples: int) -> None:
    """Let hypothesis look for an order of steps in which model and ledger part."""
    run_machine(
        type("Machine", (LedgerMachine,), {"url": url}),
        settings=settings(
            max_examples=max_examples,
            stateful_step_count=50,
            deadline=None,
            phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )


def test_any_order_of_steps_agrees_with_the_model(books_url: str) -> None:
    run(books_url, 10)


@pytest.mark.slow
def test_many_orders_of_steps_agree_with_the_model(books_url: str) -> None:
    run(books_url, 500)
