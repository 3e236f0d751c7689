"""Bugs that are put in on purpose, each a replacement of source text in a copy, and the layer that has to catch it.

Where a rule of the database is taken out, it is taken out of the real SQL (which the tests on real servers have to
catch) and of the model's copy of it (which the exploration has to catch). All were written before they were run.
"""

from typing import Final, Literal, NamedTuple

Layer = Literal["model", "simulator", "unit", "integration", "replay"]
REDUCER, BACK, FORWARD = "workflows/reducer.py", "workflows/backward.py", "workflows/forward.py"
FAKE, BARRIER, PHASE = "tests/model/database.py", "activities/barrier.py", "activities/phase.py"
FENCE = "activities/fallback.py"
CONFIRMATION, RESERVATIONS = "contracts/confirmation.py", "activities/reservations.py"
TABLES, DOWNSTREAM, PEOPLE = "tests/model/tables.py", "tests/model/downstream.py", "tests/model/people.py"


class Patch(NamedTuple):
    """A text that stands in a file once, and what it becomes."""

    path: str
    old: str
    new: str


class Bug(NamedTuple):
    """What was taken out, where it is from, and who catches it."""

    name: str
    origin: str
    patches: tuple[Patch, ...]
    caught_by: tuple[Layer, ...]
    tests: tuple[str, ...] = ()
    """What the layers other than the model run."""


REDUCERS: Final = tuple(f"tests/unit/test_reducer{part}.py" for part in ("", "_back", "_people", "_runs", "_remote"))

BUGS: Final[tuple[Bug, ...]] = (
    Bug(
        "without close_intent: nobody lists what landed, nobody looks at the end",
        "DESIGN 4.2; PEERS 8",
        (
            Patch(FAKE, "listed = () if due else seen", "listed: Answer = ()"),
            Patch(FAKE, "elif tuple(live) != self.writes if committing else any(live):", "elif False:"),
        ),
        ("model", "simulator"),
    ),
    Bug(
        "the saga compensates what it remembers, not what the database lists",
        "PEERS 10",
        (Patch(REDUCER, "return back(_listed(state, closed))", "return back(state)"),),
        ("model", "simulator"),
    ),
    Bug(
        "an unknown outcome is taken for a failure",
        "PEERS 1; F32",
        (
            Patch(
                REDUCER,
                "if state.known_plan.by_id[step_id].is_remote and not error.code.is_definite:",
                "if error.code is Reason.BODY_MALFORMED:",
            ),
        ),
        ("unit",),
        REDUCERS,
    ),
    Bug(
        "the saga turns back while a step runs",
        "PEERS 8; LRA; F91",
        (Patch(REDUCER, "case Stage.FORWARD if not state.running():", "case Stage.FORWARD:"),),
        ("model", "simulator"),
    ),
    Bug(
        "compensation in any order",
        "PEERS 10; Restate",
        (
            Patch(
                BACK,
                "and not any(_is_live(state, other) for other in blockers[step.step_id])",
                "and blockers is not None",
            ),
        ),
        ("model", "simulator"),
    ),
    Bug(
        "landing order on one object does not count on the way back",
        "PEERS 18",
        (Patch(BACK, "is_later = mine is not None and theirs is not None and theirs > mine", "is_later = False"),),
        ("model", "simulator"),
    ),
    Bug(
        "a step that may have landed holds nothing on the way back",
        "PEERS 1",
        (Patch(BACK, "    if step.state is StepState.UNKNOWN:\n        return True\n", ""),),
        ("model", "simulator"),
    ),
    Bug(
        "a refusal after the pivot turns back",
        "PEERS 11",
        (Patch(FORWARD, "if state.cause is not Cause.NONE or state.past_pivot:", "if state.cause is not Cause.NONE:"),),
        ("unit",),
        REDUCERS,
    ),
    Bug(
        "a cancel during compensation closes again",
        "PEERS 9; F93",
        (
            Patch(
                REDUCER,
                "        case Stage.CLOSING if state.cause is Cause.EXPIRED:\n            return wished, NOTHING\n",
                "        case Stage.CLOSING if state.cause is Cause.EXPIRED:\n            return wished, NOTHING\n"
                "        case Stage.COMPENSATING:\n            return close(wished, Cause.CANCELLED)\n",
            ),
        ),
        ("model",),
    ),
    Bug(
        "a cancel between two steps is swallowed",
        "PEERS 8; F94",
        (Patch(REDUCER, "return _go_on(replace(wished, cause=Cause.CANCELLED))", "return wished, NOTHING"),),
        ("model", "simulator"),
    ),
    Bug(
        "a cancel before admission is forgotten",
        "PEERS 8; F90",
        (Patch(REDUCER, "        case Stage.ADMITTING:\n            return wished, NOTHING\n", ""),),
        ("unit",),
        REDUCERS,
    ),
    Bug(
        "a compensation that is refused for good calls nobody",
        "PEERS 7; F42",
        (
            Patch(
                BACK,
                "    if any(step.state is StepState.PARKED for step in state.steps.values()):\n"
                "        return park(state, ParkReason.COMPENSATION_REFUSED)\n",
                "",
            ),
        ),
        ("unit",),
        REDUCERS,
    ),
    Bug(
        "a run that lost its claim never asks how the intent stands",
        "PEERS 17",
        (
            Patch(
                REDUCER,
                "return (state, NOTHING) if state.running() else _admit_again(state)",
                "return state, NOTHING",
            ),
        ),
        ("model",),
    ),
    Bug(
        "a reset run that rests never learns that it lost its claim",
        "PEERS 17",
        (Patch(REDUCER, "return _admit_again(state) if rests else (state, NOTHING)", "return state, NOTHING"),),
        ("model",),
    ),
    Bug(
        "a denial that comes with admission's answer is overlooked",
        "PEERS 13",
        (
            Patch(
                REDUCER,
                "    if state.ask.denied:\n        return close(state, Cause.DENIED)\n    for",
                "    for",
            ),
        ),
        ("model",),
    ),
    Bug(
        "a denial while a step runs is forgotten",
        "PEERS 13; F70",
        (Patch(REDUCER, "return _go_on(replace(state, cause=Cause.DENIED))", "return state, NOTHING"),),
        ("unit",),
        REDUCERS,
    ),
    Bug(
        "the last answer about decisions wins, whichever was earlier",
        "PEERS 13",
        (Patch(REDUCER, "    denied = {*earlier.denied, *later.denied}\n", "    denied = {*later.denied}\n"),),
        ("unit",),
        REDUCERS,
    ),
    Bug(
        "a pivot that may have landed does not stop the way back",
        "PEERS 1; 11",
        (
            Patch(
                FORWARD,
                "in unknown_steps(state) if plan.by_id[step_id].is_pivot):",
                "in unknown_steps(state) if not plan.by_id[step_id]):",
            ),
        ),
        ("model",),
    ),
    Bug(
        "a step that landed unseen is not run again for its stored answer",
        "PEERS 19",
        (
            Patch(
                REDUCER,
                'if effect.state == "LANDED" and known is not None and known.state is not StepState.DONE:',
                'if effect.state == "TOMBSTONE" and known is not None:',
            ),
        ),
        ("unit",),
        REDUCERS,
    ),
    Bug(
        "a step lands whatever the phase",
        "PEERS 3; F40",
        (
            Patch(
                TABLES,
                'if database.phase is not IntentPhase.ADMITTED or row.effect not in ("", "LANDED"):',
                'if row.effect not in ("", "LANDED"):',
            ),
            Patch(BARRIER, "where phase = 'ADMITTED' and run_id", "where run_id"),
        ),
        ("model", "integration"),
        ("tests/integration/test_barrier.py",),
    ),
    Bug(
        "a tombstone does not stop a late step",
        "PEERS 2; 3; F41",
        (
            Patch(
                BARRIER,
                '    if row["state"] != "LANDED":\n',
                '    if row["state"] == "":\n',
            ),
        ),
        ("integration",),
        ("tests/integration/test_barrier.py",),
    ),
    Bug(
        "one key with other arguments answers the old result",
        "PEERS 5; F51",
        (Patch(BARRIER, 'if row["argument_digest"] != digest(call.arguments):', "if call.step_id is None:"),),
        ("integration",),
        ("tests/integration/test_barrier.py",),
    ),
    Bug(
        "a stale run may still write",
        "PEERS 17",
        (
            Patch(TABLES, "        if not flight.valid:\n            return Reason.RUN_STALE\n", ""),
            Patch(
                "activities/standing.py",
                'if row["run_id"] != claim.run_id or row["epoch"] != claim.epoch:',
                "if claim.epoch < 0:",
            ),
            Patch(
                BARRIER,
                "and run_id = %(run_id)s and epoch = %(epoch)s\n",
                "and %(run_id)s is not null and %(epoch)s >= 0\n",
            ),
        ),
        ("model", "integration"),
        ("tests/integration/test_barrier.py", "tests/integration/test_phase.py"),
    ),
    Bug(
        "a parked intent does not stop a step",
        "PEERS 12",
        (
            Patch(TABLES, "return Reason.INTENT_PARKED if database.parked else None", "return None"),
            Patch(BARRIER, '    if owned["parked_reason"] is not None:\n', "    if not owned:\n"),
            Patch(
                BARRIER,
                "and parked_reason is null and not overdue and not killed\n    on conflict",
                "and not overdue and not killed\n    on conflict",
            ),
        ),
        ("model", "integration"),
        ("tests/integration/test_barrier.py", "tests/integration/test_phase.py"),
    ),
    Bug(
        "a step runs without its approval",
        "PEERS 13; agent-saga",
        (
            Patch(
                TABLES,
                "return step_id not in self.gated or (step_id in database.approved and step_id not in database.denied)",
                "return bool(step_id)",
            ),
            Patch(BARRIER, "if asked is not None else None", "if asked == '' else None"),
        ),
        ("model", "integration"),
        ("tests/integration/test_decisions.py",),
    ),
    Bug(
        "a denial after the approval does not count",
        "PEERS 14",
        (
            Patch(
                BARRIER,
                "        where n.intent_key = d.intent_key and n.step_id = d.step_id and n.verdict = 'deny')",
                "        where n.intent_key = d.intent_key and n.step_id = d.step_id and n.verdict = 'never')",
            ),
        ),
        ("integration",),
        ("tests/integration/test_decisions.py",),
    ),
    Bug(
        "absence is believed while a request may still land",
        "PEERS 6; did-it-land",
        (
            Patch(
                DOWNSTREAM,
                'return row.truth in (("", "FLYING") if cancels else ("",))',
                'return row.truth in ("", "FLYING")',
            ),
            Patch(
                "activities/sightings.py",
                'return bool(asked["past_flight"]) and (seen.changes_until is None or',
                "return bool(asked) or (seen.changes_until is None or",
            ),
        ),
        ("model", "integration"),
        ("tests/integration/test_remote.py",),
    ),
    Bug(
        "an answer for another amount counts as landed",
        "PEERS 1; did-it-land",
        (
            Patch(
                "activities/attempts.py", "if asked[name] is not None and asked[name] != told[name]", "if name == told"
            ),
        ),
        ("integration",),
        ("tests/integration/test_remote.py",),
    ),
    Bug(
        "settling commits whatever landed",
        "PEERS 10; agent-hypervisor",
        (
            Patch(
                FAKE,
                "elif tuple(live) != self.writes if committing else any(live):",
                "elif not committing and any(live):",
            ),
            Patch(PHASE, "if (live != wanted) if committing else live:", "if not committing and live:"),
        ),
        ("integration",),
        ("tests/integration/test_phase.py",),
    ),
    Bug(
        "closing goes over a pivot that landed",
        "PEERS 11",
        (
            Patch(FAKE, "past = self.pivot_landed(database)\n", "past = False\n"),
            Patch(
                PHASE, "        if pivot_landed(effects):\n", "        if pivot_landed(effects) and standing.parked:\n"
            ),
        ),
        ("model", "integration"),
        ("tests/integration/test_phase.py", "tests/integration/test_graphs.py"),
    ),
    Bug(
        "a reservation is confirmed before all else has landed",
        "issue 3, item 5",
        (
            Patch(CONFIRMATION, "needs = every if decided or not found", "needs = (node.step_id,) if every"),
            Patch(RESERVATIONS, "        if missing:\n", "        if missing and not context.step_id:\n"),
            Patch(TABLES, "and not row.effect and not self.reserved(database):", "and not self.plan:"),
        ),
        ("model", "unit", "integration"),
        ("tests/unit/test_confirmation.py", "tests/integration/test_reservations.py"),
    ),
    Bug(
        "what was reserved is cancelled after a confirmation has landed",
        "issue 3, item 5; PEERS 11",
        (Patch(CONFIRMATION, "side_effect=SideEffect.IRREVERSIBLE,", "side_effect=SideEffect.REVERSIBLE,"),),
        ("model", "unit", "integration"),
        ("tests/unit/test_confirmation.py", "tests/integration/test_reservations.py"),
    ),
    Bug(
        "an operator's `close` is only in the saga's memory",
        "PEERS 17",
        (
            Patch(
                PEOPLE,
                "if turns_back and database.phase is IntentPhase.ADMITTED:",
                "if turns_back and database.phase is None:",
            ),
        ),
        ("model", "simulator"),
    ),
    Bug(
        "a fallback runs though its step may have landed",
        "PEERS 1; DESIGN 3.6",
        (
            Patch(
                REDUCER,
                '    if seen.state == "UNKNOWN":\n        return _go_on(state)\n',
                '    if seen.state == "UNKNOWN":\n        if step_id not in state.known_plan.fallbacks:\n'
                "            return _go_on(state)\n"
                '        error = SagaError(Reason.DEPENDENCY_DOWN, "it did not land").info\n',
            ),
            Patch(TABLES, 'not in ("", "TOMBSTONE") or row.attempt in UNDECIDED:', 'not in ("", "TOMBSTONE"):'),
            Patch(FENCE, 'if attempt is not None and attempt["state"] not in (*UNDECIDED, "LANDED"):', "if attempt:"),
        ),
        ("model", "integration"),
        ("tests/integration/test_fallbacks.py",),
    ),
    Bug(
        "a fallback leaves the key of its step open",
        "PEERS 2; 3; DESIGN 3.6",
        (
            Patch(
                TABLES,
                "        return self.put(database, first, effect=",
                "        return database or self.put(database, first, effect=",
            ),
            Patch(BARRIER, "    await fence_first(transaction, planned, standing, call)\n", ""),
        ),
        ("model", "integration"),
        ("tests/integration/test_fallbacks.py",),
    ),
    Bug(
        "one step key for all steps of an intent",
        "PEERS 4; agentrelay",
        (
            Patch(
                "contracts/keys.py", 'return f"{key}/{step_id}/execute"', 'return f"{key}/execute" if step_id else ""'
            ),
        ),
        ("unit",),
        ("tests/unit/test_golden_keys.py", "tests/unit/test_keys.py"),
    ),
    Bug(
        "steps start in another order than in the stored histories",
        "PEERS 15",
        (
            Patch(
                FORWARD, "ready = [step for step in plan.steps if", "ready = [step for step in reversed(plan.steps) if"
            ),
        ),
        ("unit",),
        REDUCERS,
    ),
)
