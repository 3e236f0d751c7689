"""What is measured: how many intents of which kind, how many at a time, and who takes part."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

BARE: Final = "bare"
PLAIN: Final = "plain"
TUNED: Final = "tuned"
BACKSTAY: Final = "backstay"
CONTENDERS: Final = (BARE, PLAIN, TUNED, BACKSTAY)
SAGAS: Final = (PLAIN, TUNED, BACKSTAY)
LABELS: Final = {
    BARE: "(a) bare transactions",
    PLAIN: "(b) hand-written, defaults",
    TUNED: "(b2) hand-written, tuned",
    BACKSTAY: "(c) Backstay",
}

ACCOUNTS: Final = 1_000
AMOUNT_CENTS: Final = 100
BARE_FACTOR: Final = 4
"""Bare transactions are so fast that they need more of them for a figure."""


@dataclass(frozen=True, slots=True)
class Order:
    """One intent: a chain of `steps` freezes and debits on an account, perhaps with a last step that is refused."""

    order_id: str
    account_number: int
    steps: int = 2
    refused: bool = False

    @property
    def account_id(self) -> str:
        """The account that pays."""
        return f"A{self.account_number:08d}"

    @property
    def principal(self) -> str:
        """Its customer."""
        return f"customer-{self.account_number}"

    @property
    def effects(self) -> int:
        """How many effects it leaves: each step's, and those of the compensations."""
        return 2 * self.steps if self.refused else self.steps


@dataclass(frozen=True, slots=True)
class Scenario:
    """A batch that each of its contenders works off in each round."""

    name: str
    concurrency: int
    count: int
    steps: int = 2
    refused: bool = False
    one_account: bool = False
    contenders: tuple[str, ...] = CONTENDERS

    def orders(self, contender: str, round_number: int) -> list[Order]:
        """Make the orders of a round; every contender gets the same accounts in the same order."""
        draw = random.Random(f"{self.name}/{round_number}")  # noqa: S311 - a benchmark's load, no secret
        count = self.count * BARE_FACTOR if contender == BARE else self.count
        return [
            Order(
                order_id=f"{self.name}.{round_number}.{number}",
                account_number=1 if self.one_account else draw.randint(1, ACCOUNTS),
                steps=self.steps,
                refused=self.refused,
            )
            for number in range(count)
        ]


HAPPY_1: Final = "happy-1"
HAPPY_16: Final = "happy-16"
HAPPY_64: Final = "happy-64"
COMPENSATED_16: Final = "compensated-16"
CHAIN_20: Final = "chain-20"

FULL: Final = (
    Scenario(HAPPY_1, concurrency=1, count=20),
    Scenario(HAPPY_16, concurrency=16, count=80),
    Scenario(HAPPY_64, concurrency=64, count=128),
    Scenario("compensated-1", concurrency=1, count=10, refused=True),
    Scenario(COMPENSATED_16, concurrency=16, count=48, refused=True),
    Scenario("compensated-64", concurrency=64, count=64, refused=True),
    Scenario("merchant-16", concurrency=16, count=48, one_account=True),
    Scenario("chain-2", concurrency=1, count=6, steps=2, contenders=SAGAS),
    Scenario("chain-5", concurrency=1, count=4, steps=5, contenders=SAGAS),
    Scenario("chain-10", concurrency=1, count=3, steps=10, contenders=SAGAS),
    Scenario(CHAIN_20, concurrency=1, count=3, steps=20, contenders=SAGAS),
    Scenario("chain-50", concurrency=1, count=1, steps=50, contenders=SAGAS),
)
QUICK: Final = (
    Scenario(HAPPY_1, concurrency=1, count=8),
    Scenario(HAPPY_16, concurrency=16, count=48),
    Scenario(HAPPY_64, concurrency=64, count=96),
    Scenario(COMPENSATED_16, concurrency=16, count=32, refused=True),
    Scenario("merchant-16", concurrency=16, count=32, one_account=True),
    Scenario(CHAIN_20, concurrency=1, count=2, steps=20, contenders=SAGAS),
)
WARM_UP: Final = (
    Scenario("warmup", concurrency=8, count=16),
    Scenario("warmup-refused", concurrency=8, count=8, refused=True),
)


def chosen(scenarios: Sequence[Scenario], only: Sequence[str]) -> tuple[Scenario, ...]:
    """Keep the scenarios whose name begins with one of the given words; all when none is given."""
    return tuple(scenario for scenario in scenarios if not only or scenario.name.startswith(tuple(only)))
