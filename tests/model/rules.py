"""What must hold in every world: invariants 2-5 of DESIGN.md section 9, compensation order, finality, no haste."""

from contracts.confirmation import confirms
from contracts.envelope import Cause
from contracts.intent import FALLBACK_SUFFIX
from contracts.saga import IntentPhase
from contracts.tool import Dispatch
from tests.model.database import FakeDatabase
from tests.model.rows import COMPENSATED, UNDECIDED, Database, Flight, Outcome, Row
from workflows import commands as do
from workflows.state import Stage, State

HARM = ("cancel", "crash", "terminated", "reset", "late")


class ViolationError(Exception):
    """A promise of the design is broken."""


def is_harm(label: str) -> bool:
    """True of a step that no saga may depend on to come to its end."""
    return label.startswith(HARM) or label.endswith("crash")


def claimed_by_another(database: Database) -> Database:
    """Another workflow posted the same intent first."""
    return database._replace(phase=IntentPhase.ADMITTED, owner="foreign")


def check_act(  # noqa: C901, PLR0912 - one branch for each promise
    fake: FakeDatabase, before: Database, flight: Flight, outcome: Outcome
) -> None:
    """What no single act may do, whoever asked for it."""
    after = outcome.database
    if before == after:
        return
    if flight.name == "execute" and not fake.step(flight.step_id).writes:
        return
    if before.phase is not None and before.phase.is_final:
        raise ViolationError(f"{flight.label} changes an intent that is {before.phase}")
    if not flight.valid and flight.name != "admit":
        raise ViolationError(f"{flight.label} of a stale run changes the tables")
    for step, row, now in zip(fake.plan.steps, before.rows, after.rows, strict=True):
        _check_step(fake, before, step.step_id, row, now)
        if now.effect in COMPENSATED and row.effect not in COMPENSATED and flight.name == "compensate":
            _check_order(fake, before, step.step_id)
        if flight.name == "execute" and step.step_id == flight.step_id and _is_sent(now) and not _is_sent(row):
            if before.phase is not IntentPhase.ADMITTED or before.parked is not None:
                raise ViolationError(f"{step.step_id} lands while the intent is {before.parked or before.phase}")
            if step.step_id in fake.gated and step.step_id not in before.approved - before.denied:
                raise ViolationError(f"{step.step_id} runs without an approval")
            if step.stands_for is not None:
                _check_fenced(fake, after, step.stands_for)
    confirmed = [step.step_id for step in fake.plan.steps if step.confirms and step.step_id in fake.live(after)]
    if confirmed and not fake.reserved(after):
        raise ViolationError(f"{', '.join(confirmed)} has landed, and not all that was posted stands")
    if (flight.name, flight.argument) == ("resolve", "close") and after.phase is IntentPhase.ADMITTED:
        raise ViolationError("an operator closed it, and the way forward is open")
    if after.phase != before.phase:
        check_end(fake, after)


def _check_fenced(fake: FakeDatabase, after: Database, step_id: str) -> None:
    row = fake.row(after, step_id)
    if row.effect != "TOMBSTONE":
        raise ViolationError(f"the fallback of {step_id} runs, and its key is open")
    if row.truth in ("FLYING", "LANDED", "WRONG"):
        raise ViolationError(f"the fallback of {step_id} runs, and {step_id} {_told(row)}")


def _is_sent(row: Row) -> bool:
    return row.effect == "LANDED" or row.attempt not in ("", "READ")


def _check_step(  # noqa: C901 - as above
    fake: FakeDatabase, before: Database, step_id: str, row: Row, now: Row
) -> None:
    remote = fake.step(step_id).dispatch is Dispatch.REMOTE
    if row.effect in (*COMPENSATED, "TOMBSTONE") and now.effect == "LANDED":
        raise ViolationError(f"{step_id} lands after it was {row.effect}")
    if now.effect == "COMPENSATED" and row.effect not in {"LANDED", "COMPENSATED"}:
        raise ViolationError(f"{step_id} is compensated though it never landed")
    if (fake.step(step_id).is_pivot or confirms(step_id)) and now.effect in COMPENSATED:
        raise ViolationError(f"{step_id} cannot be undone, and is")
    if not remote:
        return
    if now.effect == "LANDED" and now.truth not in ("LANDED", "BACK"):
        raise ViolationError(f"{step_id} is taken for landed, and is {now.truth or 'not there'}")
    if now.truth == "BACK" and row.truth not in ("LANDED", "BACK", "WRONG"):
        raise ViolationError(f"{step_id} is undone before it landed")
    if now.attempt in ("NOT_LANDED", "FENCED") and now.truth not in ("", "SHUT") and row != now:
        raise ViolationError(f"{step_id} is taken for {now.attempt}, and {_told(now)}")
    if now.attempt == "REFUSED" and row.attempt != "REFUSED" and now.truth not in ("", "SHUT", "FLYING"):
        raise ViolationError(f"{step_id} is taken for refused, and {_told(now)}")
    sent = (
        now.truth in ("FLYING", "LANDED") and row.attempt in (*UNDECIDED, "NOT_LANDED") and now.attempt != row.attempt
    )
    if sent and row.truth in ("FLYING", "LANDED") and now.attempt == "SENT" and not fake.weather.knows_keys:
        raise ViolationError(f"{step_id} is sent twice to a downstream that knows no keys")
    if before.phase is IntentPhase.CLOSING and now.attempt == "SENT" and row.attempt != "SENT":
        raise ViolationError(f"{step_id} is sent while the intent closes")


def _told(row: Row) -> str:
    return "may still land" if row.truth == "FLYING" else f"is {row.truth}"


def _check_order(fake: FakeDatabase, database: Database, step_id: str) -> None:
    """Reverse of the dependency order, and of the landing order on one object; what may have landed counts."""
    live = {*fake.live(database), *fake.unknown(database)}
    mine, number = set(fake.step(step_id).resources), fake.number(database, step_id)
    builds_on = fake.plan.dependents[step_id] & live
    later = {other for other in live if fake.keeps_order and fake.number(database, other) > number}
    sharing = {other for other in later if mine & set(fake.step(other).resources)}
    if builds_on | sharing:
        raise ViolationError(f"{step_id} is compensated before {', '.join(sorted(builds_on | sharing))}")


def check_end(fake: FakeDatabase, database: Database) -> None:
    """At a final phase all landed, or none is live; and the downstream agrees."""
    if database.phase is None or not database.phase.is_final:
        return
    committed = database.phase is IntentPhase.COMMITTED
    if fake.places(database) != (fake.writes if committed else tuple(0 for _ in fake.writes)):
        raise ViolationError(f"{database.phase} with {', '.join(fake.live(database)) or 'nothing'} landed")
    for step, row in zip(fake.plan.steps, database.rows, strict=True):
        if step.dispatch is not Dispatch.REMOTE or not step.writes or row.effect == "RESIDUE":
            continue
        if row.truth not in (("LANDED",) if row.effect == "LANDED" else ("", "BACK", "SHUT")):
            raise ViolationError(f"{database.phase}, but downstream {step.step_id} {_told(row)}")
    undone = any(row.effect in COMPENSATED for row in database.rows)
    if database.phase is (IntentPhase.NOT_APPLIED if undone else IntentPhase.COMPENSATED):
        raise ViolationError(f"{database.phase}, and {'something' if undone else 'nothing'} was compensated")


def check_command(flights: tuple[Flight, ...], flight: Flight, state: State) -> None:
    """What the saga may ask for while something else is under way."""
    names = {other.name for other in flights}
    if any(other.name == flight.name and other.step_id == flight.step_id for other in flights):
        raise ViolationError(f"{flight.label} is asked for twice at once")
    busy = names & {"execute", "compensate", "look up"}
    if flight.name in ("close", "settle", "park", "admit") and busy:
        raise ViolationError(f"{flight.label} while {', '.join(sorted(busy))} runs")
    if {flight.name} | names >= {"execute", "compensate"}:
        raise ViolationError(f"{flight.label} in the other direction than what runs")
    if flight.name in ("execute", "compensate", "look up") and names & {"close", "settle", "park", "admit"}:
        raise ViolationError(f"{flight.label} while {', '.join(sorted(names))} runs")
    posted = [step_id for step_id in state.steps if confirms(step_id) is None and not step_id.endswith(FALLBACK_SUFFIX)]
    if flight.name == "execute" and confirms(flight.step_id) and not all(map(state.landed, posted)):
        raise ViolationError(f"{flight.label} is started before all that was posted has landed")
    all_done = all(state.landed(step_id) for step_id in state.steps if not step_id.endswith(FALLBACK_SUFFIX))
    if flight.name == "settle" and all_done and state.cancellation is not None and not state.past_pivot:
        raise ViolationError("a cancel that was taken is forgotten")
    if flight.name == "close" and state.past_pivot:
        raise ViolationError("the saga turns back after its pivot")
    if flight.name == "execute" and state.ask.denied and not state.past_pivot:
        raise ViolationError(f"{flight.label} is started though {', '.join(state.ask.denied)} was denied")
    starts = flight.name == "execute" and state.stage is Stage.FORWARD and state.cause is not Cause.NONE
    if starts and not state.past_pivot:
        raise ViolationError(f"{flight.label} is started though the saga turns back")


def check_finish(fake: FakeDatabase, database: Database, finish: do.Finish) -> None:
    """No outcome is said before the database has its phase, and none but that."""
    phase = database.phase
    if finish.duplicate and database.owner != "current":
        if any(row != Row() for row in database.rows) and database.owner == "foreign":
            raise ViolationError("a duplicate has written something")
        return
    if phase is None or not phase.is_final or finish.report.outcome is not phase.outcome:
        raise ViolationError(f"the saga says {finish.report.outcome}, the database {phase}")
    check_end(fake, database)
