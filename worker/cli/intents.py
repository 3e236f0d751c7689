"""Commands about intents: post, show, list, cancel; why, key, plan."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from worker.cli.options import Agent, AsJson, IntentFile, IntentId, Limit, Principal, Reference, SessionId, Tenant

if TYPE_CHECKING:
    from contracts.envelope import Envelope
    from worker.cli.running import Session

app = typer.Typer(no_args_is_help=True, help="Post intents, see how they stand, stop them.")
WAIT_SECONDS = 30.0
STATES = ("all", "open", "parked", "final")


def _state(value: str) -> str:
    if value not in STATES:
        raise typer.BadParameter(f"choose one of {', '.join(STATES)}.")
    return value


@app.command()
def post(
    file: IntentFile,
    *,
    session: SessionId = None,
    key: Annotated[
        str | None, typer.Option(help="Your own idempotency key: the same post under it always gets the first answer.")
    ] = None,
    business_reference: Reference = None,
    wait: Annotated[float, typer.Option(min=0, max=3600, help="Seconds to wait for the outcome.")] = WAIT_SECONDS,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Answer as soon as it is accepted.")] = False,
    tenant: Tenant = None,
    principal: Principal = None,
    agent: Agent = None,
    as_json: AsJson = False,
) -> None:
    """Post an intent and print how it stands.

    Posting the same again is safe: it joins what runs, or prints the stored outcome.
    Exit codes: 0 committed, 1 refused or compensated, 2 usage, 3 still on its way or waiting for people, 4 parked.
    Ctrl-C ends the waiting, not the intent.
    """
    from worker.cli import running, views  # noqa: PLC0415 - pydantic; `--help` must not pay for it

    body = running.read_body(file)
    accepted: list[str] = []

    async def work(opened: "Session") -> "Envelope":
        door = await opened.door()
        return await door.post(
            body,
            opened.caller,
            session_id=session,
            business_reference=business_reference,
            idempotency_key=key,
            wait_seconds=0.0 if no_wait else wait,
            accepted=accepted.append,
        )

    try:
        running.answer(work, views.intent, as_json=as_json, tenant=tenant, principal=principal, agent=agent)
    except KeyboardInterrupt:
        sys.stderr.write(_interrupted(accepted))
        raise


def _interrupted(accepted: list[str]) -> str:
    """Say what Ctrl-C leaves behind: it ended the waiting, and an intent that was accepted goes on."""
    if accepted:
        return (
            f"Stopped waiting. Intent {accepted[-1]} was accepted and goes on: `backstay intent show {accepted[-1]}`"
            f" tells how it stands, `backstay intent cancel {accepted[-1]}` stops it.\n"
        )
    return "Stopped before an answer came, so it may have been accepted; posting the same again is safe and tells.\n"


@app.command()
def show(
    intent_id: IntentId,
    *,
    wait: Annotated[
        float, typer.Option(min=0, max=3600, help="Seconds to wait until it has ended, or rests for somebody to act.")
    ] = 0.0,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Print how an intent stands, from the tables.

    Exit codes as of post: 0 committed, 1 refused or compensated, 3 on its way, 4 parked.
    """
    from worker.cli import running, views  # noqa: PLC0415 - as above

    async def work(opened: "Session") -> "Envelope":
        from worker.waiting import at_rest  # noqa: PLC0415 - as above

        return await at_rest(await opened.door(), opened.tenant, intent_id, within_seconds=wait)

    running.answer(work, views.intent, as_json=as_json, tenant=tenant)


@app.command("list")
def list_(
    *,
    state: Annotated[str, typer.Option(callback=_state, help="all, open, parked or final.")] = "all",
    limit: Limit = 20,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """List intents, the newest first."""
    from worker.cli import running, views  # noqa: PLC0415 - as above

    async def work(opened: "Session") -> "Envelope":
        from worker import listings  # noqa: PLC0415 - as above

        return await listings.intents(await opened.database(), opened.tenant, state=state, limit=limit)

    running.answer(work, views.intents, as_json=as_json, tenant=tenant)


@app.command()
def cancel(
    intent_id: IntentId,
    *,
    reason: Annotated[str, typer.Option(help="Why; kept in the audit log.")] = "",
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Stop an intent and undo what landed.

    Exit code 0: the wish was taken; `intent show` tells how it ends. 1: too late, or there is no such intent.
    """
    from worker.cli import running, views  # noqa: PLC0415 - as above

    async def work(opened: "Session") -> "Envelope":
        messages = await opened.messages()
        operator = opened.settings.operator
        return await messages.cancel(opened.tenant, intent_id, requested_by=operator, reason=reason)

    running.answer(work, views.message, as_json=as_json, tenant=tenant)


def why(intent_id: IntentId, *, tenant: Tenant = None, as_json: AsJson = False) -> None:
    """Tell what an intent waits for, what happens next by itself and when, and what you can do."""
    from worker.cli import running, views  # noqa: PLC0415 - as above

    async def work(opened: "Session") -> "Envelope":
        from worker.listings import answer  # noqa: PLC0415 - as above

        outlook = await (await opened.door()).why(opened.tenant, intent_id)
        return answer(outlook.model_dump(mode="json"))

    running.answer(work, views.outlook, as_json=as_json, tenant=tenant)


def key(
    file: IntentFile,
    *,
    session: SessionId = None,
    business_reference: Reference = None,
    attempt: Annotated[int, typer.Option(min=1, max=1000, help="Of an intent with retry_of.")] = 1,
    tenant: Tenant = None,
    principal: Principal = None,
    as_json: AsJson = False,
) -> None:
    """Print an intent's canonical form and the key made from it; nothing is asked or written.

    Two intents are one exactly when they have the same key.
    """
    from worker.cli import running, views  # noqa: PLC0415 - as above

    body = running.read_body(file)

    async def work(opened: "Session") -> "Envelope":
        from contracts.proposal import propose_body  # noqa: PLC0415 - as above
        from worker.listings import answer, key_of  # noqa: PLC0415 - as above

        proposal = propose_body(
            body,
            opened.caller,
            opened.registry,
            attempt=attempt,
            session_id=session,
            business_reference=business_reference,
        )
        return answer(key_of(proposal, business_reference))

    running.answer(work, views.key, as_json=as_json, tenant=tenant, principal=principal)


def plan(
    file: IntentFile,
    *,
    session: SessionId = None,
    business_reference: Reference = None,
    as_mermaid: Annotated[bool, typer.Option("--mermaid", help="Print the picture as Mermaid, nothing else.")] = False,
    svg: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the picture there as SVG.")] = None,
    tenant: Tenant = None,
    principal: Principal = None,
    agent: Agent = None,
    as_json: AsJson = False,
) -> None:
    """Prove an intent and show what it would do, who would be asked and where each failure ends; nothing is written.

    Exit code 1: admission would refuse it, for the reason that is printed.
    """
    from worker.cli import running, views  # noqa: PLC0415 - as above

    body = running.read_body(file)

    async def work(opened: "Session") -> "Envelope":
        door = await opened.door()
        envelope = await door.plan(body, opened.caller, session_id=session, business_reference=business_reference)
        if svg is not None and envelope.data is not None:
            running.write_text(svg, views.plan_svg(envelope))
        return envelope

    view = views.plan_mermaid if as_mermaid else views.preview
    running.answer(work, view, as_json=as_json, tenant=tenant, principal=principal, agent=agent)
