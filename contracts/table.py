"""A proof as text: what was checked, and the table of ends, for people and as Markdown."""

from contracts.checks import Check, Verdict
from contracts.ends import End, Fault, Row, Way
from contracts.envelope import Outcome
from contracts.prefixes import Mask, bits
from contracts.proof import Proof

LINES_MAX = 200
"""Lines of the table that are shown; the proof itself has all."""
VERDICTS = {Verdict.HOLDS: "holds", Verdict.BROKEN: "broken", Verdict.AT_RUN_TIME: "at run time"}
_FAULTS = {
    Fault.REFUSED: "refused",
    Fault.UNKNOWN_LANDED: "unknown, landed",
    Fault.UNKNOWN_NOT_LANDED: "unknown, not landed",
    Fault.CRASH: "crash",
    Fault.CANCEL: "cancel",
}
_UNKNOWN = (Fault.UNKNOWN_LANDED, Fault.UNKNOWN_NOT_LANDED)
_NEVER = "-"
_BY = {Way.INSTEAD: "its fallback", Way.FIRST: "its step after all"}

Line = tuple[str, ...]


def faults_of(proof: Proof) -> tuple[Fault, ...]:
    """Choose the columns: no outcome is unknown where every step is one transaction of our own."""
    remote = any(step.faults[fault] for step in proof.steps for fault in _UNKNOWN)
    return tuple(fault for fault in Fault if remote or fault not in _UNKNOWN)


def headings(proof: Proof) -> Line:
    """Head the table."""
    return ("landed", "running", *(_FAULTS[fault] for fault in faults_of(proof)))


def lines(proof: Proof, at_most: int = LINES_MAX) -> tuple[tuple[Line, ...], int]:
    """Write one line for each prefix and each step that runs after it; and count the lines that are left out."""
    places = _places(proof)
    return tuple(_line(proof, landed, number) for landed, number in places[:at_most]), max(0, len(places) - at_most)


def notes(proof: Proof) -> tuple[str, ...]:
    """Say what the table leaves out."""
    found: list[str] = []
    if not proof.complete:
        found.append(f"more than {len(proof.prefixes)} prefixes: these have the fewest and the most landed steps")
    if not any(step.faults[fault] for step in proof.steps for fault in _UNKNOWN):
        found.append("no outcome is ever unknown: each write is one transaction of our own database")
    if any(step.writes and not step.is_pivot for step in proof.steps):
        found.append("a compensation that is refused, or runs out of attempts, parks the saga for a person")
    found += [
        f"{step.step_id} runs only once {step.stands_for} certainly did not land and never can"
        for step in proof.steps
        if step.stands_for is not None
    ]
    if proof.ties:
        pairs = "; ".join(" and ".join(pair) for pair in proof.ties)
        found.append(f"independent steps on one object are undone in the reverse of how they landed: {pairs}")
    return tuple(found)


def check_text(check: Check) -> str:
    """Write one finding as a line."""
    about = f" ({', '.join(check.path)})" if check.path else ""
    advice = f" {check.advice}" if check.advice else ""
    return f"{check.rule.value}{about}: {check.says}{advice}"


def end_text(end: End) -> str:
    """Write where a saga comes to rest: the outcome, what is undone in which order, what stays."""
    undone = ", then ".join(" and ".join(group) for group in end.undone)
    if end.way in _BY:
        return f"{end.outcome.value} by {_BY[end.way]}"
    if end.outcome is not Outcome.PARKED:
        return f"{end.outcome.value} ({undone})" if undone else end.outcome.value
    known = [step_id for step_id in end.live if step_id != end.unknown]
    told = [f"undone: {undone}"] if undone else []
    told += [f"stays: {', '.join(known)}"] if known else []
    told += [f"unknown: {end.unknown}"] if end.unknown is not None else []
    return f"{end.outcome.value} {end.parked} ({'; '.join(told) or 'nothing stays'})"


def markdown(proof: Proof) -> str:
    """Write the whole proof as Markdown."""
    rows, left_out = lines(proof)
    heads = headings(proof)
    told = [
        f"# Plan {proof.intent_id}: {'sound' if proof.sound else 'not sound'}",
        "",
        "| verdict | what |",
        "|---|---|",
        *(f"| {VERDICTS[check.verdict]} | {_cell(check_text(check))} |" for check in proof.checks),
        "",
        f"| {' | '.join(heads)} |",
        f"|{'---|' * len(heads)}",
        *(f"| {' | '.join(_cell(cell) for cell in row)} |" for row in rows),
        "",
        *(f"- {note}" for note in notes(proof)),
    ]
    if left_out:
        told.append(f"- {left_out} more lines are left out here")
    return "\n".join((*told, f"- digest `{proof.digest}`", ""))


def _places(proof: Proof) -> list[tuple[Mask, int]]:
    return [(landed, number) for landed in proof.prefixes for number in proof.order.startable(landed)]


def _line(proof: Proof, landed: Mask, number: int) -> Line:
    rows = {row.fault: row for row in proof.rows_at(landed, number)}
    names = ", ".join(proof.steps[at].step_id for at in bits(landed)) or "nothing"
    return (names, proof.steps[number].step_id, *(_ends(rows[fault]) for fault in faults_of(proof)))


def _ends(row: Row) -> str:
    """Write the ends that one fault may have; going on comes first."""
    ordered = sorted(row.ends, key=lambda end: end.outcome is not Outcome.COMMITTED)
    return " or ".join(dict.fromkeys(end_text(end) for end in ordered)) or _NEVER


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
