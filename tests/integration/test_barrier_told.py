"""What the barrier tells: each refusal in words and details, each audit row in full, and to handlers who asks."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from activities.barrier import execute_step, remember
from activities.database import Database, Transaction
from activities.tool import StepContext
from contracts.errors import ErrorInfo, Phase, SagaError
from contracts.reasons import Reason
from contracts.saga import ParkReason
from tests.support.desk import Desk, Desked
from tests.support.samples import look, note

BOUND = note("b", text={"$from": "a.text"})


async def told(work: Awaitable[object]) -> ErrorInfo:
    with pytest.raises(SagaError) as caught:
        await work
    return caught.value.info


def noted(desk: Desk, kind: str) -> dict[str, Any]:
    columns = "tenant, principal, agent, intent_key, step_id, tool, transaction_id, decisions, policy_digest"
    shown = "arguments::jsonb as arguments, result::jsonb as result"
    return desk.one(f"select {columns}, {shown} from backstay.audit_log where kind = %s", kind)  # noqa: S608 - of the test


async def test_a_tool_that_the_plan_does_not_name_is_told_by_step_and_tool(desk: Desk) -> None:
    intent = await desk.intent(note("a"), note("g", "guard"))
    call = intent.call("a")

    wrong_tool = await told(execute_step(desk.database, intent.tool("g"), call))
    no_step = await told(execute_step(desk.database, intent.tool("a"), call.model_copy(update={"step_id": "nothing"})))

    intent_id = intent.plan.intent_id
    assert wrong_tool.code is no_step.code is Reason.MISMATCH
    assert wrong_tool.message == f"Intent {intent_id} has no step 'a' with guard_sample_note@1."
    assert wrong_tool.details == {"step_id": "a", "tool": "guard_sample_note@1"}
    assert no_step.details == {"step_id": "nothing", "tool": "write_sample_note@1"}
    assert intent.effects() == {}


async def test_other_arguments_than_those_admitted_are_told_by_their_step(desk: Desk) -> None:
    intent = await desk.intent(note("a"))

    error = await told(intent.execute("a", text="other"))

    assert (error.code, error.details) == (Reason.MISMATCH, {"step_id": "a"})
    assert error.message == "Step 'a' was admitted with other arguments; only bindings may be filled in."


async def test_wrong_arguments_are_told_field_by_field_from_where_the_agent_wrote_them(desk: Desk) -> None:
    intent = await desk.intent(note("a"), BOUND)
    await intent.execute("a")

    error = await told(intent.execute("b", text=7))

    (field,) = error.fields
    assert (error.code, error.phase, field.path) == (Reason.ARGUMENTS_INVALID, Phase.VALIDATION, "arguments.text")
    assert error.message == "1 field(s) are wrong: arguments.text."


async def parked(intent: Desked) -> None:
    await intent.park(ParkReason.MISMATCH)


async def closed(intent: Desked) -> None:
    await intent.close()


async def overdue(intent: Desked) -> None:
    intent.desk.rows("update backstay.intents set deadline_at = now() - interval '1 second'")


async def switched_off(intent: Desked) -> None:
    intent.desk.rows("insert into backstay.kill_switches values ('all', '', 'drill', 'tester')")


@pytest.mark.parametrize(
    ("first", "reason", "words"),
    [
        (parked, Reason.INTENT_PARKED, "Intent {intent_id} is parked: MISMATCH."),
        (closed, Reason.SUPERSEDED, "Intent {intent_id} is CLOSING; no step may land."),
        (overdue, Reason.DEADLINE_EXCEEDED, "The deadline of intent {intent_id} has passed."),
        (switched_off, Reason.KILL_SWITCH_ON, "New effects of 'a' are switched off; try later."),
    ],
)
async def test_why_a_step_may_not_land_is_said_in_words(
    desk: Desk, first: Callable[[Desked], Awaitable[None]], reason: Reason, words: str
) -> None:
    intent = await desk.intent(note("a"))
    await first(intent)

    error = await told(intent.execute("a"))

    assert (error.code, error.message) == (reason, words.format(intent_id=intent.plan.intent_id))


async def test_an_undone_step_and_a_used_key_are_told_by_name(desk: Desk) -> None:
    intent = await desk.intent(note("a"), BOUND)
    await intent.execute("a")
    await intent.execute("b", text="one")

    used = await told(intent.execute("b", text="two"))
    desk.rows("update backstay.effects set state = 'COMPENSATED' where step_id = 'b'")
    undone = await told(intent.execute("b", text="one"))

    assert used.message == f"Step key {intent.call('b').step_key} landed with other arguments; make another intent."
    assert undone.message == "Step 'b' was compensated; it can never land."


async def test_a_missing_approval_is_told_by_its_step_and_is_a_matter_of_approval(desk: Desk) -> None:
    intent = await desk.intent(note("g", "guard"))

    error = await told(intent.execute("g"))

    assert (error.code, error.phase) == (Reason.APPROVAL_MISSING, Phase.APPROVAL)
    assert error.message == "Step 'g' has no valid, unspent approval for this plan; have it approved again."


async def test_an_effects_audit_row_says_who_what_on_whose_word_and_with_what_result(desk: Desk) -> None:
    intent = await desk.intent(note("g", "guard", memo="vip"))
    await intent.decide(decision_id="the-decision")

    result = await intent.execute("g")

    assert noted(desk, "effect") == {
        "tenant": "bank",
        "principal": "customer",
        "agent": "agent",
        "intent_key": intent.plan.intent_key,
        "step_id": "g",
        "tool": "guard_sample_note@1",
        "transaction_id": result.transaction_id,
        "decisions": "the-decision",
        "policy_digest": intent.plan.policy_digest,
        "arguments": intent.call("g").arguments,
        "result": result.output,
    }
    assert (result.step_id, result.step_key) == ("g", intent.call("g").step_key)
    assert result.applied_args == intent.call("g").arguments


async def test_a_refusals_audit_row_says_who_what_and_why(desk: Desk) -> None:
    intent = await desk.intent(note("a", memo="vip"))
    desk.behaviour.refuse("a", Reason.FUNDS_INSUFFICIENT)

    error = await told(intent.execute("a"))

    assert noted(desk, "refusal") == {
        "tenant": "bank",
        "principal": "customer",
        "agent": "agent",
        "intent_key": intent.plan.intent_key,
        "step_id": "a",
        "tool": "write_sample_note@1",
        "transaction_id": None,
        "decisions": None,
        "policy_digest": intent.plan.policy_digest,
        "arguments": intent.call("a").arguments,
        "result": {"reason": "FUNDS_INSUFFICIENT", "message": error.message},
    }


async def test_a_refused_compensations_audit_row_names_the_compensation(desk: Desk) -> None:
    intent = await desk.intent(note("a"))
    await intent.execute("a")
    await intent.close()
    desk.behaviour.refuse("undo:a")

    await told(intent.compensate("a"))

    row = noted(desk, "compensation_refused")
    assert (row["step_id"], row["tool"]) == ("a", intent.tool("a").contract.compensate_name)
    assert row["arguments"] is None


async def test_a_transient_refusal_is_not_noted(desk: Desk) -> None:
    intent = await desk.intent(note("a"))
    desk.behaviour.fail("a", SagaError(Reason.DEPENDENCY_DOWN, "later"))

    assert (await told(intent.execute("a"))).code is Reason.DEPENDENCY_DOWN
    assert intent.noted() == ["admitted"]


async def test_a_handler_is_told_who_asks_and_under_which_key_and_sees_the_arguments(desk: Desk) -> None:
    intent = await desk.intent(note("a", memo="vip"))
    tool, seen = intent.tool("a"), list[tuple[str, StepContext]]()

    async def spy(transaction: Transaction, arguments: Any, context: StepContext) -> Any:  # noqa: ANN401 - any tool's
        seen.append((arguments.memo, context))
        return await tool.execute(transaction, arguments, context)

    async def verify(_: Transaction, arguments: Any, output: Any, context: StepContext) -> None:  # noqa: ANN401 - as above
        seen.append((f"{arguments.memo} {output.text}", context))

    result = await execute_step(desk.database, replace(tool, execute=spy, verify=verify), intent.call("a"))

    assert result.transaction_id is not None
    context = StepContext(
        tenant="bank",
        principal="customer",
        agent="agent",
        intent_id=intent.plan.intent_id,
        step_id="a",
        step_key=intent.call("a").step_key,
        transaction_id=result.transaction_id,
    )
    assert seen == [("vip", context), ("vip a", context)]


async def test_a_reading_is_answered_under_its_key_and_its_handler_is_told_that_nothing_is_written(desk: Desk) -> None:
    intent = await desk.intent(look("r"))
    tool, seen = intent.tool("r"), list[StepContext]()

    async def spy(transaction: Transaction, arguments: Any, context: StepContext) -> Any:  # noqa: ANN401 - as above
        seen.append(context)
        return await tool.execute(transaction, arguments, context)

    first = await execute_step(desk.database, replace(tool, execute=spy), intent.call("r"))
    again = await execute_step(desk.database, replace(tool, execute=spy), intent.call("r"))

    (context,) = seen
    assert (context.transaction_id, context.step_key, context.principal) == (0, intent.call("r").step_key, "customer")
    assert (first.step_id, first.step_key, first.transaction_id) == ("r", intent.call("r").step_key, None)
    assert first == again
    assert first.applied_args == intent.call("r").arguments


async def test_of_two_readers_the_first_answer_is_that_of_both(desk: Desk) -> None:
    intent = await desk.intent(look("r"))
    call = intent.call("r")

    async def say(database: Database, response: str) -> str:
        return await database.run(lambda transaction: remember(transaction, call, response))

    answers = [await say(desk.database, '{"text":"first"}'), await say(desk.database, '{"text":"second"}')]

    assert answers == ['{"text":"first"}', '{"text":"first"}']
    stored = desk.one("select step_key, intent_key, response from backstay.readings")
    assert stored == {
        "step_key": call.step_key,
        "intent_key": intent.plan.intent_key,
        "response": '{"text":"first"}',
    }


async def test_a_pivot_is_known_as_one_in_the_tables_and_any_other_step_is_not(desk: Desk) -> None:
    intent = await desk.intent(note("a"), note("p", "seal"))
    await intent.execute("a")
    await intent.execute("p")

    rows = desk.rows(
        "select step_id, tool, direction, is_pivot, epoch, arguments::jsonb as arguments from backstay.effects"
        " order by transaction_id"
    )

    def row(step_id: str, tool: str, *, is_pivot: bool) -> dict[str, Any]:
        arguments = intent.call(step_id).arguments
        return {
            "step_id": step_id,
            "tool": tool,
            "direction": "execute",
            "is_pivot": is_pivot,
            "epoch": 1,
            "arguments": arguments,
        }

    assert rows == [row("a", "write_sample_note", is_pivot=False), row("p", "seal_sample_note", is_pivot=True)]
