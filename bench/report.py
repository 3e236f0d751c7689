"""The report: one table per scenario, the bars, and the last line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bench.figures import (
    Figures,
    cpu,
    cpu_database,
    cpu_server,
    cpu_worker,
    p50,
    p95,
    p99,
    rate,
    spread,
)
from bench.scenarios import (
    BACKSTAY,
    CHAIN_20,
    COMPENSATED_16,
    CONTENDERS,
    HAPPY_1,
    HAPPY_16,
    HAPPY_64,
    LABELS,
    PLAIN,
    TUNED,
    Scenario,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.figures import Of

_HEAD: Final = (
    f"{'':27}{'rate/s':>8}{'p50 ms':>9}{'p95':>8}{'p99':>8}{'events':>8}{'bytes':>8}"
    f"{'CPU ms':>8}{'server':>8}{'worker':>8}{'db':>6}   rate x (b)          p50 x (b)           CPU x (b)"
)


@dataclass(frozen=True, slots=True)
class Flood:
    """What came of the flood."""

    seconds: float
    offered: int
    started: int
    deferred: int
    completed: int
    drained_seconds: float
    server_mb: float
    worker_mb: float

    @property
    def completed_ratio(self) -> float:
        """Completed in time of what was started in time."""
        return self.completed / max(1, self.started)

    @property
    def rate(self) -> float:
        """Completed a second."""
        return self.completed / self.seconds


def table(figures: Figures, scenario: Scenario) -> str:
    """Show one scenario: medians over the rounds, ratios of the same round with their range."""
    lines = [
        f"{scenario.name}: {scenario.steps} steps, {scenario.count} intents a round, {scenario.concurrency} at a time",
        _HEAD,
    ]
    lines += [_line(figures, scenario, name) for name in CONTENDERS if figures.of(scenario.name, name)]
    return "\n".join(lines)


def _line(figures: Figures, scenario: Scenario, name: str) -> str:
    def middle(of: Of) -> float:
        return figures.median(scenario.name, name, of) or 0.0

    last = figures.of(scenario.name, name)[-1]
    ratios = [spread(figures.ratios(scenario.name, name, PLAIN, of)) for of in (rate, p50, cpu)]
    return (
        f"  {LABELS[name]:25}{middle(rate):8.1f}{middle(p50):9.1f}{middle(p95):8.1f}{middle(p99):8.1f}"
        f"{last.events:8}{last.bytes:8}{middle(cpu):8.1f}{middle(cpu_server):8.1f}{middle(cpu_worker):8.1f}"
        f"{middle(cpu_database):6.1f}   " + "".join(f"{ratio:20}" for ratio in ratios).rstrip()
    )


def chains(figures: Figures, scenarios: Sequence[Scenario]) -> str:
    """Show how the cost of a step falls with the length of the chain: medians at one intent at a time."""
    lengths = [scenario for scenario in scenarios if scenario.name.startswith("chain-")]
    lines = [f"{'one step of a chain of':27}" + "".join(f"{scenario.steps:>26}" for scenario in lengths)]
    for name in CONTENDERS:
        cells: list[str] = []
        for scenario in lengths:
            found = figures.of(scenario.name, name)
            if found:
                latency = (figures.median(scenario.name, name, p50) or 0.0) / scenario.steps
                used = (figures.median(scenario.name, name, cpu) or 0.0) / scenario.steps
                cells.append(f"{latency:7.1f} ms {used:5.1f} CPU {found[-1].events:4} ev")
        if cells:
            lines.append(f"  {LABELS[name]:25}" + "".join(f"{cell:>26}" for cell in cells))
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Bar:
    """One figure of the last line and what it must reach."""

    name: str
    value: float | None
    bar: float
    at_most: bool
    goal: float | None = None

    @property
    def is_met(self) -> bool:
        """True when the figure reaches its bar."""
        return self.value is not None and (self.value <= self.bar if self.at_most else self.value >= self.bar)

    def line(self) -> str:
        """Say how it stands."""
        sign = "<=" if self.at_most else ">="
        value = "not measured" if self.value is None else f"{self.value:.2f}"
        goal = f" (goal {self.goal})" if self.goal is not None else ""
        return f"  {'met   ' if self.is_met else 'MISSED'} {self.name}={value}, bar {sign} {self.bar}{goal}"


def bars(figures: Figures, flood: Flood | None) -> list[Bar]:
    """Work out all figures of the last line but the events."""

    def against(other: str, scenario: str, *, latency: bool = False) -> float | None:
        return figures.ratio(scenario, BACKSTAY, other, p50 if latency else rate)

    steady = figures.median(HAPPY_64, BACKSTAY, rate)
    return [
        Bar("throughput_ratio", against(PLAIN, HAPPY_16), 1.5, at_most=False, goal=2.0),
        Bar("p50_ratio", against(PLAIN, HAPPY_16, latency=True), 0.6, at_most=True, goal=0.4),
        Bar("p50_ratio_single", against(PLAIN, HAPPY_1, latency=True), 0.6, at_most=True),
        Bar("compensated_ratio", against(PLAIN, COMPENSATED_16), 2.0, at_most=False, goal=2.5),
        Bar("tuned_ratio", against(TUNED, HAPPY_16), 0.6, at_most=False),
        Bar("chain20_ratio", against(PLAIN, CHAIN_20, latency=True), 0.25, at_most=True),
        Bar("flood_completed_ratio", flood.completed_ratio if flood else None, 0.85, at_most=False),
        Bar("flood_vs_steady", flood.rate / steady if flood and steady else None, 0.8, at_most=False),
    ]


EVENTS_BAR: Final = (10, 17)


def events(figures: Figures) -> tuple[int, int] | None:
    """Count the events of a two-step intent: Backstay's and the hand-written saga's."""
    mine, theirs = figures.of(HAPPY_16, BACKSTAY), figures.of(HAPPY_16, PLAIN)
    return (mine[-1].events, theirs[-1].events) if mine and theirs else None


def last_line(found: Sequence[Bar], counted: tuple[int, int]) -> str:
    """Write the line that the issue asks for."""
    parts = [f"{bar.name}={bar.value:.2f}" for bar in found]
    parts.insert(5, f"events={counted[0]}/{counted[1]}")
    return "BENCH " + " ".join(parts)
