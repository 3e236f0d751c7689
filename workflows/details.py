"""What Temporal's own Web UI and CLI show of a saga: a Markdown card, with JSON that can be pasted as it is."""

import json

from contracts.base import JsonObject
from contracts.plan import Plan
from contracts.saga import ParkReason
from workflows.state import Stage, State


def markdown(state: State) -> str:
    """Draw the card: headline, table of steps, and the messages that are possible now."""
    lines = [f"### {state.outcome()} ({state.stage.lower()})", ""]
    if state.plan is None:
        return "\n".join([*lines, "Waiting for admission."])
    lines += ["| step | tool | state | level | duty | transaction | note |", "|---|---|---|---|---|---|---|"]
    reports = {report.step_id: report for report in state.snapshot().steps}
    for step in state.plan.steps:
        report = reports.get(step.step_id)
        note = ""
        if report is not None:
            note = report.residue or (report.error.code.value if report.error else "")
        shown = report.state if report is not None else "PLANNED"
        number = report.transaction_id if report is not None and report.transaction_id is not None else ""
        lines.append(
            f"| {step.step_id} | {step.tool} | {shown} | L{step.level} | {step.duty} | {number} | {_cell(note)} |"
        )
    if state.stage is Stage.AWAITING_APPROVAL:
        lines += _asking(state, state.plan)
    if state.stage is Stage.OPEN:
        lines += ["", "Waiting for the next step. Update `add_step`, paste and complete; or `commit`, or `abort`:", ""]
        lines += _block({"step": {"step_id": "choose-one", "tool": "name@1", "arguments": {}}})
    if state.stage is Stage.PARKED:
        lines += ["", f"Parked: {state.parked}. Update `resolve`, paste and complete:", ""]
        lines += _block(_resolution(state))
    return "\n".join(lines)


def _asking(state: State, plan: Plan) -> list[str]:
    """What is asked, each digest with the arguments that it stands for."""
    lines = ["", f"Waiting for {state.waiting_for()}.", "", "Update `decide`, paste and complete:", ""]
    late = [graded for graded in state.ask.late if graded.step_id in state.ask.undecided]
    decision: JsonObject = {
        "decision_id": "choose-one",
        "plan_digest": state.plan_digest,
        "verdict": "approve",
        "approver": "your-name",
        "reason": "",
    }
    if len(late) < len(state.ask.undecided):
        lines += _block(decision)
        for step in plan.gated_steps:
            lines += ["", f"`{step.step_id}` asks because: {_cell('; '.join(step.because))}", ""]
            lines += _block({"tool": step.tool, "arguments": step.arguments})
    for graded in late:
        lines += ["", f"`{graded.step_id}` asks because: {_cell('; '.join(graded.because))}", ""]
        lines += _block({"tool": plan.by_id[graded.step_id].tool, "arguments": graded.arguments})
        lines += _block({**decision, "plan_digest": graded.digest, "step_id": graded.step_id})
    return lines


def _resolution(state: State) -> JsonObject:
    """A resolution that is possible now; what else is, the answer to a wrong one tells."""
    verb, step_id = "close", None
    if state.parked in (ParkReason.STUCK_AFTER_PIVOT, ParkReason.WORLD_MOVED):
        verb = "forward"
    if state.parked in (ParkReason.COMPENSATION_REFUSED, ParkReason.OUTCOME_UNKNOWN):
        verb, step_id = "retry", next(iter(state.parked_steps), None)
    return {
        "resolution_id": "choose-one",
        "verb": verb,
        "operator": "your-name",
        "step_id": step_id,
        "evidence": "",
    }


def _block(value: object) -> list[str]:
    return ["```json", json.dumps(value, ensure_ascii=True, indent=2), "```"]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("`", "'")
