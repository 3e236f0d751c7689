"""Commands for people who decide: approvals, approve, deny; parked, resolve, unlock."""

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from worker.cli.options import AsJson, IntentId, Limit, Tenant

if TYPE_CHECKING:
    from contracts.envelope import Envelope
    from worker.cli.running import Session

StepId = Annotated[str | None, typer.Argument(metavar="[STEP]", help="One step; without it all that are asked.")]
Approver = Annotated[str | None, typer.Option(help="Who decides, instead of BACKSTAY_APPROVER.")]
WhyText = Annotated[str, typer.Option(help="Why; kept with the decision.")]
PlanDigest = Annotated[
    str | None, typer.Option(help="The plan digest on the card that you saw; refused if it is another plan.")
]
STEP_VERBS = ("retry", "skip", "done")
WHOLE_VERBS = ("close", "forward")


def approvals(*, limit: Limit = 20, tenant: Tenant = None, as_json: AsJson = False) -> None:
    """List what waits for a decision, with the exact arguments and the commands that answer."""
    from worker.cli import running, views  # noqa: PLC0415 - pydantic; `--help` must not pay for it

    async def work(opened: "Session") -> "Envelope":
        from worker import listings  # noqa: PLC0415 - as above

        return await listings.approvals(await opened.database(), opened.tenant, limit=limit)

    running.answer(work, views.approvals, as_json=as_json, tenant=tenant)


def approve(
    intent_id: IntentId,
    step_id: StepId = None,
    *,
    reason: WhyText = "",
    approver: Approver = None,
    plan_digest: PlanDigest = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Let a step run that waits for a decision.

    Exit code 0: the approval was taken, although the saga may still run; `intent show` tells how it ends.
    1: it changed nothing (too late, denied before, another plan), for the reason that is printed.
    """
    _decide("approve", intent_id, step_id, reason, approver, plan_digest, tenant=tenant, as_json=as_json)


def deny(
    intent_id: IntentId,
    step_id: StepId = None,
    *,
    reason: WhyText = "",
    approver: Approver = None,
    plan_digest: PlanDigest = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """End an intent that waits for a decision; a denial is final.

    Exit code 0: the denial was taken. 1: it changed nothing, for the reason that is printed.
    """
    _decide("deny", intent_id, step_id, reason, approver, plan_digest, tenant=tenant, as_json=as_json)


def _decide(  # noqa: PLR0917 - what the two commands take
    verdict: Literal["approve", "deny"],
    intent_id: str,
    step_id: str | None,
    reason: str,
    approver: str | None,
    plan_digest: str | None,
    *,
    tenant: str | None,
    as_json: bool,
) -> None:
    from worker.cli import running, views  # noqa: PLC0415 - as above

    async def work(opened: "Session") -> "Envelope":
        messages = await opened.messages()
        return await messages.decide(
            opened.tenant,
            intent_id,
            verdict,
            approver=opened.settings.approver,
            step_id=step_id,
            reason=reason,
            plan_digest=plan_digest,
        )

    running.answer(work, views.message, as_json=as_json, tenant=tenant, approver=approver)


def parked(*, limit: Limit = 20, tenant: Tenant = None, as_json: AsJson = False) -> None:
    """List intents that rest until an operator acts, with the commands that are possible."""
    from worker.cli import running, views  # noqa: PLC0415 - as above

    async def work(opened: "Session") -> "Envelope":
        from worker import listings  # noqa: PLC0415 - as above

        return await listings.parked(await opened.database(), opened.tenant, limit=limit)

    running.answer(work, views.parked, as_json=as_json, tenant=tenant)


def resolve(
    intent_id: IntentId,
    words: Annotated[list[str], typer.Argument(metavar="[STEP] VERB", help="STEP retry|skip|done, or close|forward.")],
    *,
    evidence: Annotated[str, typer.Option(help="What was done outside, or why it stays; for skip and done.")] = "",
    operator: Annotated[str | None, typer.Option(help="Who acts, instead of BACKSTAY_OPERATOR.")] = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Say how a parked intent goes on; `backstay parked` lists what is possible.

    retry tries the step again. done: it was undone by hand. skip: its effect stays and is listed as residue.
    close undoes what landed, forward goes on with the plan.
    Exit code 0: it was taken; `intent show` tells how it ends. 1: it is not possible now.
    """
    from worker.cli import running, views  # noqa: PLC0415 - as above

    step_id, verb = _step_and_verb(words)

    async def work(opened: "Session") -> "Envelope":
        messages = await opened.messages()
        return await messages.resolve(
            opened.tenant,
            intent_id,
            verb,
            operator=opened.settings.operator,
            step_id=step_id,
            evidence=evidence,
        )

    running.answer(work, views.message, as_json=as_json, tenant=tenant, operator=operator)


def unlock(
    resource: Annotated[str, typer.Argument(metavar="RESOURCE", help="kind:id, as `backstay why` shows it.")],
    *,
    reason: Annotated[str, typer.Option(help="Why; kept in the audit log.")] = "",
    operator: Annotated[str | None, typer.Option(help="Who acts, instead of BACKSTAY_OPERATOR.")] = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Take an object away from the intent that has locked it.

    Whoever waits for it goes on. Its holder is refused at its next step, and closes; after its pivot it parks.
    Exit code 0 also when nobody held it.
    """
    from worker.cli import running, views  # noqa: PLC0415 - as above

    async def work(opened: "Session") -> "Envelope":
        from activities import locks  # noqa: PLC0415 - as above
        from worker.listings import answer  # noqa: PLC0415 - as above

        operator = opened.settings.operator
        database = await opened.database()
        taken = await locks.unlock(database, resource, tenant=opened.tenant, operator=operator, reason=reason)
        return answer({"resource": resource, "taken_from": taken})

    running.answer(work, views.unlocked, as_json=as_json, tenant=tenant, operator=operator)


def _step_and_verb(words: list[str]) -> tuple[str | None, Literal["retry", "skip", "done", "close", "forward"]]:
    match words:
        case [("close" | "forward") as verb]:
            return None, verb
        case [step_id, ("retry" | "skip" | "done") as verb]:
            return step_id, verb
        case _:
            raise typer.BadParameter(
                f"say STEP and one of {', '.join(STEP_VERBS)}, or for the whole intent one of {', '.join(WHOLE_VERBS)}."
            )
