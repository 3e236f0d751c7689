"""Commands for who runs it: sweep, check, tools, ledger, worker, bank, db upgrade, up, down, demo."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from worker.cli.options import AsJson, Tenant

if TYPE_CHECKING:
    from contracts.envelope import Envelope
    from worker.cli.running import Session

database_app = typer.Typer(no_args_is_help=True, help="Bring the database to this version's schema.")


def sweep(*, as_json: AsJson = False) -> None:
    """Find open intents that nobody carries, and start a run that parks each for an operator; free overdue holds.

    Safe at any time and again. Exit code 0 also when there was nothing to do.
    """
    from worker.cli import running, views  # noqa: PLC0415 - pydantic; `--help` must not pay for it

    async def work(opened: "Session") -> "Envelope":
        from worker.listings import answer  # noqa: PLC0415 - as above
        from worker.sweep import Sweep  # noqa: PLC0415 - as above

        swept = await Sweep(await opened.client(), await opened.database(), opened.settings).run()
        return answer(swept.model_dump(mode="json"))

    running.answer(work, views.swept, as_json=as_json)


def check(*, as_json: AsJson = False) -> None:
    """Check every invariant from the tables, in one snapshot that cannot change anything.

    Exit code 1: at least one is violated. What a later version will check says "not yet", never "ok".
    """
    from worker.cli import running, views  # noqa: PLC0415 - as above

    async def work(opened: "Session") -> "Envelope":
        from worker.check import check as run_check  # noqa: PLC0415 - as above
        from worker.check import envelope_of  # noqa: PLC0415 - as above

        return envelope_of(await run_check(opened.settings.require_database_url()))

    running.answer(work, views.check, as_json=as_json)


def tools(
    name: Annotated[str | None, typer.Argument(metavar="[TOOL]", help="One tool, shown in full.")] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """List the tools that an intent may use, or show one in full."""
    from worker.cli import running, views  # noqa: PLC0415 - as above

    async def work(opened: "Session") -> "Envelope":
        from worker.listings import answer, tool_in_full, tool_list  # noqa: PLC0415 - as above

        if name is None:
            return answer(tool_list(opened.registry))
        return answer(tool_in_full(opened.registry.resolve(name)))

    running.answer(work, views.tools, as_json=as_json)


def ledger(
    account: Annotated[str, typer.Argument(metavar="ACCOUNT", help="Like A00000001.")],
    *,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Show an account: state, balance, what is held, its latest movements and holds."""
    from worker.cli import running, views  # noqa: PLC0415 - as above

    async def work(opened: "Session") -> "Envelope":
        from worker import listings  # noqa: PLC0415 - as above

        return await listings.account(await opened.database(), opened.tenant, account)

    running.answer(work, views.account, as_json=as_json, tenant=tenant)


def worker() -> None:
    """Carry sagas out until SIGTERM or Ctrl-C, which let running steps end first; a second one ends at once.

    Needs DATABASE_URL and a Temporal (TEMPORAL_ADDRESS, or temporal.toml), or what `backstay up` started.
    Logs are JSON lines on standard error; one line on standard output says that it is ready.
    """
    from worker.cli import running  # noqa: PLC0415 - as above
    from worker.cli.serving import serve  # noqa: PLC0415 - as above

    serve(running.load_settings())


def bank(
    *,
    port: Annotated[int, typer.Option(min=0, max=65_535, help="0 takes a free one.")] = 8460,
    host: Annotated[str, typer.Option(help="Where to listen; it knows no passwords.")] = "127.0.0.1",
    book: Annotated[Path | None, typer.Option(help="Its book; bank.jsonl in the state directory when missing.")] = None,
    key_lifetime_seconds: Annotated[
        float, typer.Option(min=0.001, help="How long an idempotency key is remembered.")
    ] = 86_400,
) -> None:
    """Be a small bank that can go wrong on demand, to try remote tools on; tell a worker by BACKSTAY_BANK_URL.

    It keeps an append-only book of its own. It says on standard output where it listens.
    """
    from worker.bank.book import BookError  # noqa: PLC0415 - as above
    from worker.bank.serving import serve  # noqa: PLC0415 - as above
    from worker.cli import running  # noqa: PLC0415 - as above

    path = book or running.load_settings().state_dir / "bank.jsonl"
    try:
        serve(path, host=host, port=port, key_lifetime_seconds=key_lifetime_seconds)
    except (BookError, OSError) as error:
        running.fail(str(error), running.EXIT_USAGE)


@database_app.command("upgrade")
def upgrade(*, as_json: AsJson = False) -> None:
    """Bring the database to the newest schema. Safe again, and by two at once."""
    from worker.cli import running  # noqa: PLC0415 - as above

    async def work(opened: "Session") -> "Envelope":
        from worker.cli.stack import upgrade_database  # noqa: PLC0415 - as above

        return await upgrade_database(opened.settings)

    running.answer(work, _said, as_json=as_json)


def up(*, as_json: AsJson = False) -> None:
    """Start PostgreSQL, Temporal and a worker on this machine; they outlive this command. What runs is left alone."""
    from worker.cli import running  # noqa: PLC0415 - as above

    async def work(opened: "Session") -> "Envelope":
        from worker.cli.stack import start  # noqa: PLC0415 - as above

        return start(opened.settings)

    running.answer(work, _said, as_json=as_json)


def down(*, as_json: AsJson = False) -> None:
    """Stop what `backstay up` started; data and logs stay."""
    from worker.cli import running  # noqa: PLC0415 - as above

    async def work(opened: "Session") -> "Envelope":
        from worker.cli.stack import stop  # noqa: PLC0415 - as above

        return stop(opened.settings)

    running.answer(work, _said, as_json=as_json)


def demo() -> None:
    """Show every promise on real servers of its own, and hold it against the tables. Exit code 0: all held."""
    from worker.demo import run  # noqa: PLC0415 - as above

    raise typer.Exit(run())


def _said(envelope: "Envelope") -> list[str]:
    """Print what a command that manages processes has to say."""
    return list((envelope.data or {}).get("lines", []))
