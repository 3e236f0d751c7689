"""Replays histories in a process where no pack can be imported: `python -m tests.replay.replaying DIRECTORY [CHANGE]`.

Prints one JSON object: for each history its failure, or null. CHANGE names a saga that was changed on purpose.
"""

import asyncio
import importlib.abc
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Final

EMPTIED: Final = ("activities", "worker", "psycopg", "bench", "examples")


class NoRegistry(importlib.abc.MetaPathFinder):
    """Refuses to import whatever knows tools or a database."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        """Raise for what is not there; leave the rest to others."""
        del path, target
        if fullname.split(".", maxsplit=1)[0] in EMPTIED:
            raise ImportError(f"{fullname} must not be needed to replay a history")


if __name__ == "__main__":  # a test that imports this module keeps its own importing
    sys.meta_path.insert(0, NoRegistry())

# The names below may only be imported once the finder stands.
from temporalio.client import WorkflowHistory  # noqa: E402
from temporalio.contrib.pydantic import pydantic_data_converter  # noqa: E402
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner  # noqa: E402

from workflows import commands as do  # noqa: E402
from workflows import events as on  # noqa: E402
from workflows import intent_workflow, reducer  # noqa: E402
from workflows.state import State  # noqa: E402


def one_more(state: State, event: on.Event) -> reducer.Advance:
    """Do an extra thing before settling."""
    state, commands = reducer.advance(state, event)
    settles = any(isinstance(command, do.Settle) for command in commands)
    return state, (do.Admit(), *commands) if settles else commands


def other_order(state: State, event: on.Event) -> reducer.Advance:
    """Compensate the first step first."""
    state, commands = reducer.advance(state, event)
    steps = [step for step in state.steps if state.steps[step].transaction_id is not None]
    return state, tuple(
        do.Compensate(step_id=steps[-1 - steps.index(command.step_id)])
        if isinstance(command, do.Compensate) and command.step_id in steps
        else command
        for command in commands
    )


def one_less(state: State, event: on.Event) -> reducer.Advance:
    """Ask nobody."""
    state, commands = reducer.advance(state, event)
    return state, tuple(command for command in commands if not isinstance(command, do.Ask))


def started_otherwise(state: State, event: on.Event) -> reducer.Advance:
    """Start what may run at once in the reverse order."""
    state, commands = reducer.advance(state, event)
    return state, commands[::-1]


CHANGES: Final = {
    "none": reducer.advance,
    "extra": one_more,
    "order": other_order,
    "less": one_less,
    "started": started_otherwise,
}


def stored(directory: Path) -> dict[str, WorkflowHistory]:
    """Read the histories, by name."""
    found: dict[str, WorkflowHistory] = {}
    for path in sorted(directory.glob("*.json")):
        body = json.loads(path.read_text(encoding="utf-8"))
        workflow_id = body["events"][0]["workflowExecutionStartedEventAttributes"]["workflowId"]
        found[path.stem] = WorkflowHistory.from_json(workflow_id, body)
    return found


async def replay(directory: Path, change: str) -> dict[str, str | None]:
    """Replay each; None for one that went well."""
    setattr(intent_workflow, "advance", CHANGES[change])  # noqa: B010 - the workflow exports no such name
    replayer = Replayer(
        workflows=[intent_workflow.IntentWorkflow],
        data_converter=pydantic_data_converter,
        workflow_runner=UnsandboxedWorkflowRunner(),
    )
    failures: dict[str, str | None] = {}
    for name, history in stored(directory).items():
        result = await replayer.replay_workflow(history, raise_on_replay_failure=False)
        failure = result.replay_failure
        failures[name] = None if failure is None else f"{type(failure).__name__}: {failure}"
    return failures


def main() -> None:
    """Do as the module says; end without the interpreter's own shutdown, which temporalio 1.35 sometimes aborts."""
    directory, change = Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "none"
    failures = asyncio.run(replay(directory, change))
    imported = sorted({name.split(".")[0] for name in sys.modules} & set(EMPTIED))
    sys.stdout.write(json.dumps({"failures": failures, "imported": imported}) + "\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
