"""What each answer looks like to people: from an envelope's data to nodes and tables."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final

from contracts import table
from contracts.base import JsonObject
from contracts.checks import Check, Verdict
from contracts.drawing import mermaid, svg
from contracts.envelope import Envelope, StepReport
from contracts.proof import Proof
from contracts.question import Question
from worker.cli.render import Node, Table, View, clean, exactly, facts, money, pairs, saga, step, taken

PRINTED_WIDTH_MAX: Final = 160
"""A table of long cells that is wider is no use in a file or a pipe either."""


def intent(envelope: Envelope) -> Iterable[View]:
    """Show an intent, and what to do when it is not over."""
    yield saga(envelope)
    if envelope.meta.poll_after_ms is not None:
        yield f"next: backstay why {envelope.meta.intent_id}"


def intents(envelope: Envelope) -> Iterable[View]:
    """List intents."""
    rows = [
        (
            line["intent_id"],
            line["outcome"],
            line["cause"] if line["cause"] != "none" else "",
            line["risk_level"],
            line["admitted_at"].replace("T", " ").removesuffix("+00:00"),
            clean(line["session_id"]),
            clean(line["waiting_for"] or ""),
            ", ".join(line["tools"]) or "-",
        )
        for line in data(envelope)["intents"]
    ]
    headings = ("intent", "outcome", "cause", "risk", "admitted (UTC)", "session", "waits for", "tools")
    yield Table(headings, tuple(rows), empty="There are no intents.")
    yield from more(envelope)


def approvals(envelope: Envelope) -> Iterable[View]:
    """Show a card for each decision that is asked."""
    cards = data(envelope)["approvals"]
    if not cards:
        yield "Nothing waits for a decision."
    for card in cards:
        expired = "  EXPIRED" if card["expired"] else ""
        yield Node(
            f"{card['intent_id']}  {card['step_id']}  {card['tool']}  {card['risk_level']}{expired}",
            (
                Node("arguments", exactly(card["arguments"])),
                Node(f"asked because: {clean(card['because'])}"),
                Node(f"undo: {card['undo']}"),
                Node(f"goal: {clean(card['goal'] or 'not said')}"),
                Node(f"for {clean(card['principal'])}, by {clean(card['agent'])}, in {clean(card['session_id'])}"),
                Node(f"until {card['expires_at']}, of plan {card['plan_digest']}"),
                Node(card["approve"], style="green"),
                Node(card["deny"], style="red"),
            ),
            style="bold yellow",
        )
    yield from more(envelope)


def parked(envelope: Envelope) -> Iterable[View]:
    """Show every parked intent with what may be said to it."""
    lines = data(envelope)["parked"]
    if not lines:
        yield "Nothing is parked."
    for line in lines:
        stuck = tuple(Node(f"{step['step_id']}: {clean(step['error'] or 'no error')}") for step in line["stuck"])
        unknown = tuple(_unknown(Question.model_validate(one)) for one in line["unknown"])
        commands = tuple(Node(command, style="green") for command in line["commands"])
        yield Node(
            f"{line['intent_id']}  {line['reason']}  {line['phase']}  since {line['since']}",
            (*stuck, *unknown, *commands),
            style="bold red",
        )
    yield from more(envelope)


def message(envelope: Envelope) -> Iterable[View]:
    """Show what became of something that was said to a saga."""
    found = data(envelope)
    yield f"{clean(found['message'])}  (outcome now: {found['outcome']})"
    if envelope.meta.poll_after_ms is not None:
        yield f"next: backstay intent show {envelope.meta.intent_id} --wait 30"


def opened(envelope: Envelope) -> Iterable[View]:
    """Show an open intent, and how steps are added."""
    yield saga(envelope)
    if envelope.error is None:
        intent_id = envelope.meta.intent_id
        yield f"next: backstay intent add {intent_id} FILE, then backstay intent commit {intent_id} (or abort)"


def added(envelope: Envelope) -> Iterable[View]:
    """Show a step that was added, with its output; or how the intent ended that took none."""
    if envelope.error is not None:
        yield saga(envelope)
        return
    found = data(envelope)
    yield found["message"]
    yield step(StepReport.model_validate(found["step"]))


def unlocked(envelope: Envelope) -> Iterable[View]:
    """Show from whom an object was taken."""
    found = data(envelope)
    if not found["taken_from"]:
        yield f"Nobody held {found['resource']}."
    for line in found["taken_from"]:
        yield f"{found['resource']} was taken from {line['intent_id']}, which held it {line['mode']}."
        yield f"next: backstay why {line['intent_id']}"


def outlook(envelope: Envelope) -> Iterable[View]:
    """Show why an intent stands where it stands."""
    found = data(envelope)
    error = found["error"]
    deadline = found["deadline_at"]
    now = datetime.now(UTC)
    when = due(found["next_action_at"], now)
    next_action = f"{found['next_action']} {when}".strip() if found["next_action"] else "none"
    activities = tuple(
        Node(
            f"{activity['name']}  attempt {activity['attempt']}  "
            + ("running" if activity["running"] else due(activity["next_attempt_at"], now) or "waits for a worker"),
            (Node(f"last failure: {clean(activity['last_failure'])}"),) if activity["last_failure"] else (),
        )
        for activity in found["activities"]
    )
    options = tuple(Node(f"{option['command']}    {option['effect']}") for option in found["options"])
    yield Node(
        f"{found['intent_id']}  {found['outcome']}",
        (
            Node(
                f"phase: {found['phase'] or 'not admitted yet'}"
                + (f", cause: {found['cause']}" if found["cause"] != "none" else "")
            ),
            *((Node(f"error: {error['code']}: {clean(error['message'])}", style="red"),) if error else ()),
            *((Node(f"blocked by: {clean(found['blocked_by'])}", style="yellow"),) if found["blocked_by"] else ()),
            Node(f"next by itself: {clean(next_action)}"),
            *((Node(f"deadline: {due(deadline, now)}"),) if found["run"] == "open" and deadline else ()),
            *(_unknown(Question.model_validate(one), rests=found["parked"] is not None) for one in found["unknown"]),
            *((Node("activities", activities),) if activities else ()),
            *((Node("you can", options, style="bold"),) if options else ()),
        ),
        style="bold",
    )


def _unknown(question: Question, *, rests: bool = True) -> Node:
    """Show all that is known of a step that may have landed; `rests`: nobody looks by himself any more."""
    return facts(
        f"{question.step_id} may have landed: {question.sent()}",
        {
            "may land until": question.may_land_until,
            "mismatch": question.mismatch,
            "seen last": question.seen,
            "next look": None if rests else question.next_look_at,
            "patience until": None if rests else question.patience_until,
        },
        style="yellow",
    )


def key(envelope: Envelope) -> Iterable[View]:
    """Show an intent's canonical form and its key."""
    found = data(envelope)
    yield found["canonical"]
    yield facts(
        "sha256 of the line above",
        {"intent_key": found["intent_key"], "intent_id": found["intent_id"], "body_digest": found["body_digest"]},
    )


def _graded(step: dict[str, Any]) -> str:
    least = "at least " if step["late"] else ""
    return f"{least}{step['level']}  {least}duty {step['duty']}"


def _verb(duty: str) -> str:
    return "graded" if duty == "NONE" else "asks"


def preview(envelope: Envelope) -> Iterable[View]:
    """Show a dry run."""
    found = data(envelope)
    steps = tuple(
        Node(
            f"{step['step_id']}  {step['tool']}  {step['side_effect']}  {_graded(step)}",
            (
                Node(taken("takes", step["step_id"], step["arguments"]), style="dim"),
                *((Node(f"only if {step['stands_for']} certainly never lands"),) if step["stands_for"] else ()),
                *(
                    (Node(f"graded when it resolves: {', '.join(step['late'])}; it may ask then", style="yellow"),)
                    if step["late"]
                    else ()
                ),
                *(
                    (Node(f"{_verb(step['duty'])} because: {clean('; '.join(step['because']))}", style="yellow"),)
                    if step["because"]
                    else ()
                ),
                *((Node(f"undo: {clean(step['undo'])}"),) if step["undo"] else ()),
            ),
        )
        for step in found["steps"]
    )
    proof = Proof.model_validate(found["proof"])
    before = found["posted_before"]
    yield Node(
        f"{found['intent_id']}  {found['risk_level']}  nothing was written",
        (
            *steps,
            Node(f"asks people about: {', '.join(found['asks']) or 'nothing'}", style="bold"),
            Node("proved", tuple(_check(check) for check in proof.checks), style="bold"),
            *((Node(f"the same was posted before and stands at {before}", style="yellow"),) if before else ()),
            Node(f"plan digest {found['plan_digest']}", style="dim"),
            Node(f"proof digest {found['proof_digest']}", style="dim"),
        ),
        style="bold",
    )
    rows, left_out = table.lines(proof)
    yield "\nwhere each failure ends"
    yield Table(table.headings(proof), rows, width_max=PRINTED_WIDTH_MAX)
    yield from table.notes(proof)
    if left_out:
        yield f"{left_out} more lines are not shown; --json has the proof."


def plan_mermaid(envelope: Envelope) -> Iterable[View]:
    """Show a dry run as a Mermaid picture."""
    yield mermaid(Proof.model_validate(data(envelope)["proof"])).rstrip()


def plan_svg(envelope: Envelope) -> str:
    """Draw a dry run as an SVG document."""
    return svg(Proof.model_validate(data(envelope)["proof"]))


def _check(check: Check) -> Node:
    style = {Verdict.HOLDS: "green", Verdict.BROKEN: "red", Verdict.AT_RUN_TIME: "yellow"}[check.verdict]
    return Node(f"{table.VERDICTS[check.verdict]}: {clean(table.check_text(check))}", style=style)


def account(envelope: Envelope) -> Iterable[View]:
    """Show an account's page."""
    found = data(envelope)
    currency = found["currency"]
    limit = money(found["limit_cents"], currency) if found["limit_cents"] is not None else None
    yield facts(
        f"{found['account_id']}  {found['kind']}  {found['state']}",
        {
            "balance": money(found["balance_cents"], currency),
            "held": money(found["held_cents"], currency),
            "available": money(found["available_cents"], currency),
            "limit": limit,
            "belongs to": found["principal"] or "the tenant",
        },
    )
    movements = tuple(
        (
            line["movement_id"],
            line["booked_at"],
            money(line["change_cents"]),
            line["operation_type"],
            line["other_account"],
            line["intent_id"] or "",
        )
        for line in found["movements"]
    )
    yield "\nmovements"
    yield Table(("movement", "booked", "change", "type", "other account", "intent"), movements)
    holds = tuple(
        (line["hold_id"], line["state"], money(line["amount_cents"]), line["expires_at"], line["intent_id"])
        for line in found["holds"]
    )
    yield "\nholds"
    yield Table(("hold", "state", "amount", "expires", "intent"), holds)


def tools(envelope: Envelope) -> Iterable[View]:
    """List tools, or show one in full."""
    found = data(envelope)
    if "tools" in found:
        rows = tuple((tool["tool"], tool["side_effect"], tool["title"]) for tool in found["tools"])
        yield Table(("tool", "side effect", "does"), rows)
        return
    yield Node(
        f"{found['tool']}  {found['side_effect']}  {found['title']}",
        (
            Node(found["description"]),
            Node(f"level L{found['level']}, duty {found['duty']}, at least: arguments can lift both"),
            Node("takes", tuple(_field(name, spec, found["input"]) for name, spec in _properties(found["input"]))),
            Node("gives", tuple(_field(name, spec, found["output"]) for name, spec in _properties(found["output"]))),
            Node("may refuse with", tuple(Node(reason) for reason in found["reasons"])),
            *((Node(f"undo: {found['compensates_by']}"),) if found["compensates_by"] else ()),
            *((Node(f"confirmed when all else is done: {found['confirms']}"),) if found.get("confirms") else ()),
        ),
        style="bold",
    )


def check(envelope: Envelope) -> Iterable[View]:
    """Show what a check found."""
    found = data(envelope)
    for one in found["checks"]:
        violations = tuple(Node(pairs(row)) for row in one["violations"])
        word = "ok" if one["ok"] else f"VIOLATED by {one['violation_count']}"
        yield Node(f"{word}  {one['name']}", violations, style="green" if one["ok"] else "bold red")
    for name in found["not_yet"]:
        yield Node(f"not yet  {name}", style="yellow")


def swept(envelope: Envelope) -> Iterable[View]:
    """Show what a sweep did."""
    found = data(envelope)
    yield f"looked at {found['looked_at']} open intents; expired {found['expired_holds']} overdue holds"
    for intent_id in found["started"]:
        done = "adopted and parked" if intent_id in found["adopted"] else "started; a worker will adopt it"
        yield f"{intent_id}  {done}; next: backstay why {intent_id}"
    if found["more"]:
        yield "There are more; sweep again."


def data(envelope: Envelope) -> JsonObject:
    """The data of an answer that has some."""
    return envelope.data or {}


def more(envelope: Envelope) -> Iterable[View]:
    """Say that a list was cut."""
    if envelope.meta.truncated:
        yield "There are more; raise --limit."


def due(at: str | None, now: datetime) -> str:
    """Say when something happens, and in how long."""
    if at is None:
        return ""
    seconds = int((datetime.fromisoformat(at) - now).total_seconds())
    if seconds <= 0:
        return f"at {at} (now)"
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    text = f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
    return f"at {at} (in {text})"


def _properties(schema: JsonObject) -> Iterable[tuple[str, JsonObject]]:
    properties: dict[str, Any] = schema.get("properties", {})
    return properties.items()


def _field(name: str, spec: JsonObject, schema: JsonObject) -> Node:
    need = "" if name in schema.get("required", []) else "  (optional)"
    said = [spec, *spec.get("anyOf", [])]  # what may be null says what it is inside
    description = next((one["description"] for one in said if "description" in one), "")
    words = tuple(word for one in said for word in _words(one, schema))
    return Node(f"{name}{need}: {description}", (Node(f"one of {', '.join(words)}"),) if words else ())


def _words(spec: JsonObject, schema: JsonObject) -> list[str]:
    """The words that a field takes, wherever its schema has them; none where it takes any."""
    inside = [*spec.get("allOf", []), *([spec["items"]] if "items" in spec else [])]
    if "$ref" in spec:
        inside.append(schema.get("$defs", {}).get(spec["$ref"].rpartition("/")[2], {}))
    own = [spec["const"]] if "const" in spec else spec.get("enum", [])
    return [*map(str, own), *(word for one in inside for word in _words(one, schema))]
