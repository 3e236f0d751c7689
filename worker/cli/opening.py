"""Commands about open intents: open, add, commit, abort."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from worker.cli.intents import app
from worker.cli.options import Agent, AsJson, IntentId, Principal, Reference, Tenant

if TYPE_CHECKING:
    from contracts.envelope import Envelope
    from worker.cli.running import Session

__all__ = ["app"]
StepFile = Annotated[
    str, typer.Argument(metavar="FILE", help="The step as JSON: step_id, tool, arguments; - reads standard input.")
]


@app.command("open")
def open_(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name that this conversation has not used.")],
    *,
    session: Annotated[str, typer.Option("--session", help="The conversation's id.")],
    goal: Annotated[str | None, typer.Option(help="What it is for, in words; shown to people.")] = None,
    business_reference: Reference = None,
    tenant: Tenant = None,
    principal: Principal = None,
    agent: Agent = None,
    as_json: AsJson = False,
) -> None:
    """Open an intent whose steps are added one by one, as the agent learns.

    Opening the same again joins it. Exit code 0: it takes steps. It is undone when nothing is added for 15 minutes.
    """
    from worker.cli import running, views  # noqa: PLC0415 - pydantic; `--help` must not pay for it

    async def work(opened: "Session") -> "Envelope":
        openings = await opened.openings()
        return await openings.open(
            name, opened.caller, session_id=session, goal=goal, business_reference=business_reference
        )

    running.answer(work, views.opened, as_json=as_json, tenant=tenant, principal=principal, agent=agent)


@app.command()
def add(
    intent_id: IntentId,
    file: StepFile,
    *,
    tenant: Tenant = None,
    principal: Principal = None,
    agent: Agent = None,
    as_json: AsJson = False,
) -> None:
    """Add a step to an open intent, run it and print its output; the same again is the same step.

    Exit code 0: it is done. 1: it was refused, for the reason that is printed; the intent may still be open.
    """
    from worker.cli import running, views  # noqa: PLC0415 - as above

    body = running.read_body(file)

    async def work(opened: "Session") -> "Envelope":
        return await (await opened.openings()).add(opened.caller, intent_id, body)

    running.answer(work, views.added, as_json=as_json, tenant=tenant, principal=principal, agent=agent)


@app.command()
def commit(
    intent_id: IntentId,
    *,
    final_step: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A last step as JSON, which may be one that cannot be undone.")
    ] = None,
    tenant: Tenant = None,
    principal: Principal = None,
    agent: Agent = None,
    as_json: AsJson = False,
) -> None:
    """Add nothing more to an open intent and keep what was added.

    Exit codes as `intent post`; 1 also for a last step that is refused, and then the intent is still open.
    """
    from worker.cli import running, views  # noqa: PLC0415 - as above

    body = None if final_step is None else running.read_body(str(final_step))

    async def work(opened: "Session") -> "Envelope":
        return await (await opened.openings()).commit(opened.caller, intent_id, final_step=body)

    running.answer(work, views.intent, as_json=as_json, tenant=tenant, principal=principal, agent=agent)


@app.command()
def abort(
    intent_id: IntentId,
    *,
    reason: Annotated[str, typer.Option(help="Why; kept in the audit log.")] = "",
    tenant: Tenant = None,
    principal: Principal = None,
    agent: Agent = None,
    as_json: AsJson = False,
) -> None:
    """Add nothing more to an open intent and undo what was added; waits until it is.

    Exit code 0: nothing of it is left. 1: too late, it was committed.
    """
    from worker.cli import running, views  # noqa: PLC0415 - as above

    async def work(opened: "Session") -> "Envelope":
        return await (await opened.openings()).abort(opened.caller, intent_id, reason=reason)

    running.answer(work, views.intent, as_json=as_json, tenant=tenant, principal=principal, agent=agent)
