"""Graphs on the real Temporal server and the real PostgreSQL: side by side where nothing says otherwise."""

from collections.abc import AsyncGenerator

import pytest
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import ApplicationError

from contracts.base import JsonObject
from contracts.reasons import Reason
from tests.support.sagas import Sagas, freeze_and_debit, outcome, request, serve, states
from tests.support.samples import look, note
from workflows.reducer import PARALLEL_STEPS_MAX


@pytest.fixture
async def sagas(temporal_client: Client, database_url: str, task_queue: str) -> AsyncGenerator[Sagas]:
    async with serve(temporal_client, database_url, task_queue) as served:
        yield served


def after(step: JsonObject, *needs: str) -> JsonObject:
    """Let a step wait for these and for nothing else."""
    return {**step, "needs": list(needs)}


def pair(number: int) -> list[JsonObject]:
    """A hold and its capture, beside everything else."""
    freeze, debit = freeze_and_debit()
    hold = {"$from": f"freeze_{number}.hold_id"}
    return [
        after({**freeze, "step_id": f"freeze_{number}"}),
        after({**debit, "step_id": f"debit_{number}", "arguments": {**debit["arguments"], "hold_id": hold}}),
    ]


def balance(sagas: Sagas) -> tuple[int, int]:
    row = sagas.one("select balance_cents, held_cents from ledger.accounts where account_id = 'A00000001'")
    return row["balance_cents"], row["held_cents"]


async def test_two_branches_on_one_account_and_a_step_that_waits_for_both_commit(sagas: Sagas) -> None:
    before, held = balance(sagas)

    envelope = await sagas.run(*pair(1), *pair(2), after(note("last"), "debit_1", "debit_2"))

    landed = list(sagas.effects(envelope))
    assert outcome(envelope) == ("COMMITTED", "none")
    assert landed[-1] == "last"
    assert landed.index("freeze_1") < landed.index("debit_1")
    assert landed.index("freeze_2") < landed.index("debit_2")
    assert balance(sagas) == (before - 1_000, held)


async def test_independent_steps_run_at_the_same_time(sagas: Sagas) -> None:
    gates = {name: sagas.behaviour.hold(name) for name in ("a", "b")}
    handle = await sagas.start(request(after(note("a")), after(note("b")), after(note("c"), "a", "b")))

    for gate in gates.values():
        await gate.arrived()  # neither has been let go
    assert sagas.behaviour.calls["c"] == 0
    for gate in gates.values():
        gate.open()

    assert outcome(await sagas.result(handle)) == ("COMMITTED", "none")


async def test_no_more_than_eight_steps_run_at_once(sagas: Sagas) -> None:
    names = [f"n{number}" for number in range(PARALLEL_STEPS_MAX + 4)]
    gates = {name: sagas.behaviour.hold(name) for name in names}
    handle = await sagas.start(request(*(after(note(name)) for name in names)))

    for name in names[:PARALLEL_STEPS_MAX]:
        await gates[name].arrived()
    assert [sagas.behaviour.calls[name] for name in names[PARALLEL_STEPS_MAX:]] == [0, 0, 0, 0]
    for gate in gates.values():
        gate.open()

    envelope = await sagas.result(handle)
    assert outcome(envelope) == ("COMMITTED", "none")
    assert set(names) == set(sagas.effects(envelope))


@pytest.mark.situation(10)
async def test_a_refusal_waits_for_what_runs_beside_it_and_takes_that_back_too(sagas: Sagas) -> None:
    before = balance(sagas)
    slow = sagas.behaviour.hold("slow", "after")
    sagas.behaviour.refuse("no")
    handle = await sagas.start(
        request(*pair(1), after(note("slow")), after(note("no"), "debit_1"), after(note("never"), "slow", "no"))
    )

    await slow.arrived()
    slow.open()
    envelope = await sagas.result(handle)

    assert outcome(envelope) == ("COMPENSATED", "refused")
    assert states(envelope) == {
        "freeze_1": "COMPENSATED",
        "debit_1": "COMPENSATED",
        "slow": "COMPENSATED",
        "no": "REFUSED",
        "never": "PLANNED",
    }
    assert set(sagas.effects(envelope).values()) == {"COMPENSATED"}
    assert balance(sagas) == before
    assert sagas.notes() == {"slow": False}


@pytest.mark.situation(10)
async def test_branches_are_taken_back_each_in_its_own_order(sagas: Sagas) -> None:
    sagas.behaviour.refuse("no")

    envelope = await sagas.run(
        after(note("a1")),
        after(note("a2"), "a1"),
        after(note("b1")),
        after(note("b2"), "b1"),
        after(note("no"), "a2", "b2"),
    )

    undone = [
        row["step_id"]
        for row in sagas.rows(
            "select step_id from backstay.effects where direction = 'compensate' order by transaction_id"
        )
    ]
    assert outcome(envelope) == ("COMPENSATED", "refused")
    assert set(undone) == {"a1", "a2", "b1", "b2"}
    assert undone.index("a2") < undone.index("a1")
    assert undone.index("b2") < undone.index("b1")


async def test_what_a_reading_step_said_reaches_both_that_bind_to_it(sagas: Sagas) -> None:
    bound = {"$from": "look.text"}

    envelope = await sagas.run(
        look("look"),
        after(note("one", text=bound), "look"),
        after(note("two", text=bound), "look"),
    )

    assert outcome(envelope) == ("COMMITTED", "none")
    assert [row["text"] for row in sagas.rows("select text from samples.notes")] == ["0 notes", "0 notes"]


async def test_a_plan_whose_order_is_left_open_on_one_object_is_refused(sagas: Sagas) -> None:
    freeze, _ = freeze_and_debit()
    lock = {
        "step_id": "lock",
        "tool": "lock_customer_account",
        "arguments": {"account_id": "A00000001", "reason_code": "SUSPECTED_FRAUD"},
    }

    with pytest.raises(WorkflowFailureError) as failed:
        await sagas.run(after(freeze), after(lock))

    cause = failed.value.cause
    assert isinstance(cause, ApplicationError)
    assert (cause.type, "Let step lock need step freeze." in cause.message) == (Reason.PLAN_UNSOUND, True)
    assert sagas.one("select count(*) as n from backstay.intents")["n"] == 0
