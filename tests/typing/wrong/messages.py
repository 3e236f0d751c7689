"""Messages and calls of the door with wrong fields. Each marked line is wrong on purpose; nothing else is."""

from contracts.intent import Caller
from contracts.saga import Claim, CompensateCall, Decision, StepCall
from tests.typing.right import CLAIM
from worker.door import Door

DIGEST = "0" * 64

Claim(intent_key=DIGEST, workflow_id="w", run_id="r", epoch="1")  # wrong: arg-type | reportArgumentType
Claim(intent_key=DIGEST, workflow_id="w", run_id="r")  # wrong: call-arg | reportCallIssue
StepCall(claim=CLAIM, step_id=7, arguments={})  # wrong: arg-type | reportArgumentType
StepCall(claim="claim", step_id="a", arguments={})  # wrong: arg-type | reportArgumentType
StepCall(claim=CLAIM, step_id="a", arguments=[])  # wrong: arg-type | reportArgumentType
StepCall(claim=CLAIM, step_id="a", arguments={}, approved=True)  # wrong: call-arg | reportCallIssue
StepCall(claim=CLAIM, step_id="a")  # wrong: call-arg | reportCallIssue
CompensateCall(claim=CLAIM, step_id="a", arguments={})  # wrong: call-arg | reportCallIssue
Decision(decision_id="d1", plan_digest=DIGEST, verdict="maybe", approver="ann")  # wrong: arg-type | reportArgumentType
Decision(decision_id="d1", plan_digest=b"", verdict="deny", approver="ann")  # wrong: arg-type | reportArgumentType
Decision(decision_id="d", plan_digest="", verdict="deny", approver="a", tenant="b")  # wrong: call-arg | reportCallIssue
Decision(decision_id="d1", plan_digest=DIGEST, verdict="deny")  # wrong: call-arg | reportCallIssue
StepCall(claim=CLAIM, step_id="a", arguments={}).step_id = "b"  # wrong: misc | -


async def post(door: Door, caller: Caller) -> None:
    """Post what is no body, for nobody, with words in wrong places."""
    await door.post("{}", caller)  # wrong: arg-type | reportArgumentType
    await door.post({"protocol": 1}, caller)  # wrong: arg-type | reportArgumentType
    await door.post(b"{}", "anna")  # wrong: arg-type | reportArgumentType
    await door.post(b"{}")  # wrong: call-arg | reportCallIssue
    await door.post(b"{}", caller, "session")  # wrong: call-arg | reportCallIssue
    await door.post(b"{}", caller, wait_seconds="1")  # wrong: arg-type | reportArgumentType
    door.post(b"{}", caller)  # wrong: unused-coroutine | reportUnusedCoroutine
    answer: dict[str, str] = await door.post(b"{}", caller)  # wrong: assignment | reportAssignmentType
    answer.clear()
