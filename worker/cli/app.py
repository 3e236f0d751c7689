"""The `backstay` command: its tree of commands, and how every one of them ends.

A process that had Temporal's client inside may abort at interpreter exit after all its work is done (measured: 3 in 30;
`docs/driver.md`). So `main` flushes and leaves with `os._exit`: no crash at exit can change an exit code.
"""

import os
import sys
from typing import Annotated, Any, Final, NoReturn

import typer
from typer.core import TyperGroup
from typer.main import get_command

from worker import stdio
from worker.cli import intents, opening, operations, people

DEBUG_VARIABLE: Final = "BACKSTAY_DEBUG"
EXIT_FAULT: Final = 70
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130
EXIT_BROKEN_PIPE: Final = 141


class _Commands(TyperGroup):
    """Lists the commands in the order in which somebody meets them."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401, ARG002 - typer does not export its context's type
        order = (
            "intent why key plan approvals approve deny parked resolve unlock sweep check tools ledger worker bank db"
            " up down demo"
        )
        return [name for name in order.split() if name in self.commands]


app = typer.Typer(
    name="backstay",
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="A durable saga engine for agents' writes. `backstay up` starts it on this machine, `backstay demo` shows it;"
    " in a checkout `make status` tells what runs, and `make clean` removes it with its data.",
)


def _version(asked: bool) -> None:  # noqa: FBT001 - as typer calls it
    if asked:
        from importlib.metadata import version  # noqa: PLC0415 - only who asks pays for it

        typer.echo(f"backstay {version('backstay')}")
        raise typer.Exit


@app.callback()
def backstay(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """Say what all commands share."""


app.add_typer(opening.app, name="intent")
app.command()(intents.why)
app.command()(intents.key)
app.command()(intents.plan)
app.command()(people.approvals)
app.command()(people.approve)
app.command()(people.deny)
app.command()(people.parked)
app.command()(people.resolve)
app.command()(people.unlock)
app.command()(operations.sweep)
app.command()(operations.check)
app.command()(operations.tools)
app.command()(operations.ledger)
app.command()(operations.worker)
app.command()(operations.bank)
app.add_typer(operations.database_app, name="db")
app.command()(operations.up)
app.command()(operations.down)
app.command()(operations.demo)


def main() -> NoReturn:
    """Run the command of `sys.argv` and end the process with its exit code, whatever libraries do at exit."""
    stdio.open_missing()
    code = run(sys.argv[1:])
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BrokenPipeError:
        code = EXIT_BROKEN_PIPE
    os._exit(code)


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code: 130 after Ctrl-C, 2 for wrong usage, else the command's own."""
    command: Any = get_command(app)
    try:
        command.main(args=arguments, prog_name="backstay")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else EXIT_USAGE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        return EXIT_BROKEN_PIPE
    except Exception as error:  # a bug of ours: one sentence for the person, the rest for who mends it
        if os.environ.get(DEBUG_VARIABLE):
            raise
        sys.stderr.write(
            f"This is a fault of Backstay ({type(error).__name__}: {error}). Nothing is known about its outcome: look"
            f" with `backstay intent list`, and report it with what {DEBUG_VARIABLE}=1 prints.\n"
        )
        return EXIT_FAULT
    return 0
