"""What the Makefile calls: `python -m worker.stack up|down|status|clean`."""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys

from worker import stdio
from worker.identity import IdentityError, check_identity
from worker.settings import Settings, SettingsError
from worker.stack import detached
from worker.stack.binaries import installed_postgres
from worker.stack.layout import backstay_root
from worker.stack.processes import StackError
from worker.stack.state import StackState


def main() -> int:
    """Run one command; 0 if all is well, 1 with a sentence on standard error if not."""
    stdio.open_missing()
    parser = argparse.ArgumentParser(prog="python -m worker.stack", description="The local stack of this checkout.")
    parser.add_argument("command", choices=("up", "down", "status", "clean"))
    command: str = parser.parse_args().command
    try:
        check_identity()
        settings = Settings.load()
        if command == "up":
            detached.up(settings)
            return status(settings)
        if command == "status":
            return status(settings)
        ended = detached.down(settings)
        say(f"stopped: {', '.join(ended)}" if ended else "nothing was running")
        if command == "clean":
            clean(settings)
    except (StackError, SettingsError, IdentityError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def status(settings: Settings) -> int:
    """Tell what runs; 1 if a part of the stack does not."""
    state = StackState.load(settings.state_dir) or StackState()
    running = {name: state.is_running(name) for name in ("postgres", "temporal", "bank", "worker")}
    for name, runs in running.items():
        say(f"{name:<9} " + (f"runs, process {state.processes[name].pid}" if runs else "does not run"))
    if running["postgres"]:
        say(f"database  {state.database_url}")
        say(f"psql      {installed_postgres() / 'psql'} -X {shlex.quote(state.database_url)}")
    if running["temporal"]:
        say(f"temporal  {state.temporal_address}, Web UI {state.ui_url}")
    if running["bank"]:
        say(f"bank      {state.bank_url}")
    say(f"logs      {settings.state_dir}/*.log")
    if settings.database_url:
        say("note      DATABASE_URL is set and wins: the command line uses that database, not this stack's")
    return 0 if all(running.values()) else 1


def clean(settings: Settings) -> None:
    """Remove the local stack's data, if it lies where we put data by default; other places are their owner's."""
    if settings.state_dir.parent == backstay_root():
        shutil.rmtree(settings.state_dir, ignore_errors=True)
    else:
        say(f"kept {settings.state_dir}: it was chosen by BACKSTAY_STATE_DIR; remove it yourself")


def say(text: str) -> None:
    """Print a line for people."""
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
