"""A saga in a few lines: each step with its state, below it the effects that it has in the table, with their keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rich.text import Text
from rich.tree import Tree

from contracts.envelope import IntentReport, StepState
from worker.cli import render

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from contracts.envelope import Envelope, StepReport

KEY_SHOWN: Final = 8
_SERIAL_WIDTH: Final = 4


def picture(envelope: Envelope, effects: Iterable[Mapping[str, Any]]) -> Tree:
    """Draw an intent's envelope together with its rows of the effects table."""
    drawn = render.saga(envelope)
    report = IntentReport.model_validate(envelope.data)
    cause = f"  {report.cause}" if report.cause != "none" else ""
    repeat = "  duplicate" if envelope.meta.duplicate else ""
    head = Text.assemble((f"{envelope.meta.intent_id}  ", "bold"), (f"{report.outcome}{cause}{repeat}", drawn.style))
    tree = Tree(head, guide_style="dim")
    step_width = max((len(step.step_id) for step in report.steps), default=0)
    tool_width = max((len(step.tool) for step in report.steps), default=0)
    rows = list(effects)
    for step in report.steps:
        line = Text.assemble(
            f"{step.step_id:<{step_width}}  ",
            (f"{step.tool:<{tool_width}}  ", "dim"),
            (step.state, render.step(step).style),
        )
        branch = tree.add(line)
        for row in rows:
            if row["step_id"] == step.step_id:
                branch.add(_effect(row))
        for text, style in _remarks(step):
            branch.add(Text(text, style))
    if report.waiting_for is not None and report.outcome == "PENDING" and "decision" in report.waiting_for:
        tree.add(Text(f"waits for {render.clean(report.waiting_for)}", "yellow"))
    return tree


def _effect(row: Mapping[str, Any]) -> Text:
    key = str(row["step_key"])
    what = "" if row["state"] == "LANDED" else f"  {str(row['state']).lower()}"
    return Text.assemble(
        (f"#{row['transaction_id']:<{_SERIAL_WIDTH}}", ""), (f"{key[:KEY_SHOWN]}..{key[key.index('/') :]}{what}", "dim")
    )


def _remarks(step: StepReport) -> Iterable[tuple[str, str]]:
    if step.error is not None and step.state in (StepState.REFUSED, StepState.PARKED):
        yield f"{step.error.code}: {render.clean(step.error.message)}", "red"
    if step.residue is not None:
        yield f"residue: {render.clean(step.residue)}", "yellow"
