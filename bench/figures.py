"""Figures: percentiles of a batch, medians over rounds, ratios taken within a round."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.arena import Cpu


@dataclass(frozen=True, slots=True)
class Sample:
    """One batch of one contender in one round."""

    count: int
    seconds: float
    latencies: tuple[float, ...]
    cpu: Cpu
    events: int
    bytes: int

    @property
    def rate(self) -> float:
        """Intents a second."""
        return self.count / self.seconds

    def percentile_ms(self, share: float) -> float:
        """The latency that this share of the intents does not exceed, in milliseconds."""
        ranked = sorted(self.latencies)
        return ranked[min(len(ranked) - 1, int(share * len(ranked)))] * 1000

    @property
    def p50_ms(self) -> float:
        """The median latency."""
        return statistics.median(self.latencies) * 1000

    @property
    def cpu_ms(self) -> float:
        """CPU milliseconds for one intent, everywhere."""
        return self.cpu.total / self.count * 1000


@dataclass(slots=True)
class Figures:
    """All samples: by scenario, then by contender, one per round."""

    samples: dict[str, dict[str, list[Sample]]] = field(default_factory=dict[str, dict[str, "list[Sample]"]])

    def add(self, scenario: str, contender: str, sample: Sample) -> None:
        """Keep a sample."""
        self.samples.setdefault(scenario, {}).setdefault(contender, []).append(sample)

    def of(self, scenario: str, contender: str) -> list[Sample]:
        """List the samples; none when it was not measured."""
        return self.samples.get(scenario, {}).get(contender, [])

    def median(self, scenario: str, contender: str, of: Callable[[Sample], float]) -> float | None:
        """Take the median over the rounds."""
        found = self.of(scenario, contender)
        return statistics.median(of(sample) for sample in found) if found else None

    def ratios(self, scenario: str, one: str, other: str, of: Callable[[Sample], float]) -> list[float]:
        """Divide one contender's figure by another's, round by round."""
        pairs = zip(self.of(scenario, one), self.of(scenario, other), strict=False)
        return [of(mine) / of(theirs) for mine, theirs in pairs]

    def ratio(self, scenario: str, one: str, other: str, of: Callable[[Sample], float]) -> float | None:
        """Take the median of the rounds' ratios."""
        found = self.ratios(scenario, one, other, of)
        return statistics.median(found) if found else None


def rate(sample: Sample) -> float:
    """Intents a second."""
    return sample.rate


def p50(sample: Sample) -> float:
    """Median latency in milliseconds."""
    return sample.p50_ms


def cpu(sample: Sample) -> float:
    """CPU milliseconds an intent."""
    return sample.cpu_ms


def spread(values: Sequence[float]) -> str:
    """Write median and range."""
    if not values:
        return "-"
    return f"{statistics.median(values):.2f} [{min(values):.2f}-{max(values):.2f}]"
