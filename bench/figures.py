"""Figures: percentiles of a batch, medians over rounds, ratios taken within a round."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.arena import Cpu

    Of = Callable[["Sample"], float]


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

    def median(self, scenario: str, contender: str, of: Of) -> float | None:
        """Take the median over the rounds."""
        found = self.of(scenario, contender)
        return statistics.median(of(sample) for sample in found) if found else None

    def ratios(self, scenario: str, one: str, other: str, of: Of) -> list[float]:
        """Divide one contender's figure by another's, round by round."""
        pairs = zip(self.of(scenario, one), self.of(scenario, other), strict=False)
        return [of(mine) / of(theirs) for mine, theirs in pairs]

    def ratio(self, scenario: str, one: str, other: str, of: Of) -> float | None:
        """Take the median of the rounds' ratios."""
        found = self.ratios(scenario, one, other, of)
        return statistics.median(found) if found else None


def rate(sample: Sample) -> float:
    """Intents a second."""
    return sample.rate


def p50(sample: Sample) -> float:
    """Median latency in milliseconds."""
    return statistics.median(sample.latencies) * 1000


def p95(sample: Sample) -> float:
    """95th percentile in milliseconds."""
    return sample.percentile_ms(0.95)


def p99(sample: Sample) -> float:
    """99th percentile in milliseconds."""
    return sample.percentile_ms(0.99)


def cpu(sample: Sample) -> float:
    """CPU milliseconds an intent, everywhere."""
    return sample.cpu.total / sample.count * 1000


def cpu_server(sample: Sample) -> float:
    """CPU milliseconds an intent in the Temporal server."""
    return sample.cpu.server / sample.count * 1000


def cpu_worker(sample: Sample) -> float:
    """CPU milliseconds an intent in the contender's process."""
    return sample.cpu.worker / sample.count * 1000


def cpu_database(sample: Sample) -> float:
    """CPU milliseconds an intent in PostgreSQL."""
    return sample.cpu.database / sample.count * 1000


def spread(values: Sequence[float]) -> str:
    """Write median and range."""
    if not values:
        return "-"
    return f"{statistics.median(values):.2f} [{min(values):.2f}-{max(values):.2f}]"
