"""Open intents that reserve: what was reserved is confirmed when the intent commits, and given up when it does not."""

import json
from collections.abc import AsyncGenerator

import pytest
from temporalio.client import Client, WorkflowUpdateStage

from contracts.errors import SagaError
from contracts.plan import Plan
from contracts.reasons import Reason
from tests.support.opened import Opened, debit, freeze, opened
from tests.support.reserving import held
from tests.support.sagas import Sagas, outcome, resolution, serve
from tests.support.samples import note
from worker.check import check
from worker.settings import Settings
from worker.sweep import Sweep


@pytest.fixture
async def sagas(temporal_client: Client, database_url: str, task_queue: str) -> AsyncGenerator[Sagas]:
    async with serve(temporal_client, database_url, task_queue) as served:
        yield served


def notes(sagas: Sagas) -> dict[str, str]:
    """Notes that were written: confirmed, struck, or only reserved."""
    rows = sagas.rows("select text, struck, memo from samples.notes order by text")
    return {row["text"]: "struck" if row["struck"] else row["memo"] or "reserved" for row in rows}


def plan_of(sagas: Sagas) -> Plan:
    """The plan as it is stored; its digest is the one beside it."""
    row = sagas.one("select plan, plan_digest, proof from backstay.intents")
    plan = Plan.parse(row["plan"])
    assert plan.digest == row["plan_digest"]
    assert [step["step_id"] for step in json.loads(row["proof"])["steps"]] == [step.step_id for step in plan.steps]
    return plan


async def test_what_was_reserved_is_confirmed_when_the_intent_commits(sagas: Sagas) -> None:
    intent = await opened(sagas)
    await intent.add(held("a"))
    await intent.add(freeze())
    await intent.add(held("b"))
    before = notes(sagas)
    await intent.add(debit())

    done = await intent.commit()
    again = await intent.commit()

    assert before == {"a": "reserved", "b": "reserved"}
    assert (done.outcome, again.outcome) == ("COMMITTED", "COMMITTED")
    assert list(intent.effects()) == ["a", "freeze", "b", "debit", "a.confirm", "b.confirm"]
    assert notes(sagas) == {"a": "confirmed", "b": "confirmed"}
    assert plan_of(sagas).by_id["a.confirm"].needs == ("a", "freeze", "b", "debit")
    placed = sagas.rows("select step_id from backstay.added_steps order by position")
    assert [row["step_id"] for row in placed] == ["a", "freeze", "b", "debit"]
    assert [found for found in (await check(sagas.database_url)).checks if not found.ok] == []


@pytest.mark.parametrize("last", [held("z"), note("z", "seal")])
async def test_a_last_step_runs_before_anything_is_confirmed(sagas: Sagas, last: dict[str, object]) -> None:
    intent = await opened(sagas)
    await intent.add(held("a"))

    done = await intent.commit(last)

    assert done.outcome == "COMMITTED"
    assert list(intent.effects())[:3] == ["a", "z", "a.confirm"]
    assert notes(sagas)["a"] == "confirmed"
    assert len(plan_of(sagas).steps) == len(intent.effects())


async def test_an_aborted_intent_gives_up_what_it_reserved(sagas: Sagas) -> None:
    intent = await opened(sagas)
    await intent.add(held("a"))
    await intent.add(held("b"))

    done = await intent.abort()

    assert done.outcome == "COMPENSATED"
    assert intent.undone() == ["b", "a"]
    assert notes(sagas) == {"a": "struck", "b": "struck"}


async def test_a_last_step_that_is_not_taken_leaves_the_intent_open_and_nothing_confirmed(sagas: Sagas) -> None:
    intent = await opened(sagas)
    await intent.add(held("a"))

    refused = await intent.commit(held("b", ttl_seconds=5))
    open_still = notes(sagas)
    done = await intent.commit()

    assert refused.error is not None
    assert refused.error.code is Reason.ARGUMENTS_INVALID
    assert open_still == {"a": "reserved"}
    assert done.outcome == "COMMITTED"
    assert notes(sagas) == {"a": "confirmed"}


async def test_a_last_step_that_its_tool_refuses_gives_up_every_reservation(sagas: Sagas) -> None:
    sagas.behaviour.refuse("z")
    intent = await opened(sagas)
    await intent.add(held("a"))

    await intent.commit(note("z"))

    assert outcome(await intent.result()) == ("COMPENSATED", "refused")
    assert notes(sagas) == {"a": "struck"}


@pytest.mark.parametrize("verb", ["forward", "close"])
async def test_a_run_that_was_ended_while_it_confirmed_goes_on_as_the_operator_says(sagas: Sagas, verb: str) -> None:
    intent = await opened(sagas)
    await intent.add(held("a"))
    sagas.behaviour.fail("a.confirm", *(SagaError(Reason.IN_PROGRESS, "come back") for _ in range(2)))
    gate = sagas.behaviour.hold("a.confirm", "outside")
    await intent.handle.start_update("commit", {"final_step": None}, wait_for_stage=WorkflowUpdateStage.ACCEPTED)  # pyright: ignore[reportUnknownMemberType] - the SDK's own gap
    await gate.arrived()
    await intent.handle.terminate("a test")
    settings = Settings.load(database_url=sagas.database_url, task_queue=sagas.task_queue)

    await Sweep(sagas.client, sagas.engine.database, settings).run()
    again = Opened(sagas, sagas.client.get_workflow_handle(intent.handle.id))
    sagas.handles.append(again.handle)
    await sagas.waiting(again.handle)
    gate.open()  # what the ended run had sent comes now, and may not land any more
    await sagas.update(again.handle, "resolve", resolution(verb))

    ended = ("COMMITTED", "none") if verb == "forward" else ("COMPENSATED", "interrupted")
    assert outcome(await again.result()) == ended
    assert notes(sagas) == {"a": "confirmed" if verb == "forward" else "struck"}


@pytest.mark.parametrize("change", ["not sealed", "no confirmation"])
async def test_the_app_can_append_nothing_but_confirmations_and_only_when_it_seals(sagas: Sagas, change: str) -> None:
    intent = await opened(sagas)
    await intent.add(held("a"))
    row = sagas.one("select intent_key, plan, plan_digest, proof, proof_digest from backstay.intents")
    plan = json.loads(row["plan"])
    plan["sealed"] = change != "not sealed"
    more = {**plan["steps"][0], "step_id": "a.confirm" if change == "not sealed" else "b"}
    plan["steps"].append(more)

    grown = await sagas.engine.database.one(
        "select backstay.grow_plan(%s, null, null, %s, %s, %s, %s, '{}', 'L0', 0) as grown",
        (row["intent_key"], json.dumps(plan), row["plan_digest"], row["proof"], row["proof_digest"]),
    )

    assert grown == {"grown": False}
