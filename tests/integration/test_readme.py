"""The README tells the truth: its tool is the example file, and that tool works on its table on the real servers."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from temporalio.client import Client

from activities.catalog import load_packs
from contracts.envelope import Envelope, Outcome
from contracts.saga import WORKFLOW
from worker.service import serving
from worker.settings import Settings

ROOT = Path(__file__).parents[2]
TABLE = (ROOT / "examples" / "tools" / "loyalty.sql").read_text(encoding="utf-8")


@pytest.fixture
def example_tools(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let `loyalty` be imported as a user's own module would be."""
    monkeypatch.setattr(sys, "path", [str(ROOT / "examples" / "tools"), *sys.path])
    yield
    sys.modules.pop("loyalty", None)


def request(card_id: str, points: int, *, refused_after: bool = False) -> dict[str, object]:
    """Post one grant; with `refused_after` a second one follows, to a card that is not there."""
    steps = [{"step_id": "grant", "tool": "grant_loyalty_points", "arguments": {"card_id": card_id, "points": points}}]
    if refused_after:
        missing = {"card_id": "L999999", "points": 1}
        steps.append({"step_id": "more", "tool": "grant_loyalty_points", "arguments": missing})
    return {
        "caller": {"tenant": "demo-bank", "principal": "demo-customer", "agent": "demo-agent"},
        "intent": {"protocol": 1, "session_id": f"readme-{refused_after}", "steps": steps},
    }


def test_the_readme_shows_the_example_as_it_is() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)

    assert [(ROOT / "examples" / "tools" / "loyalty.py").read_text(encoding="utf-8")] == blocks


@pytest.mark.usefixtures("example_tools")
def test_the_example_is_a_pack_that_passes_registration() -> None:
    packs = load_packs(["loyalty"])

    assert "grant_loyalty_points@1" in [tool.contract.wire_name for pack in packs for tool in pack.tools]


@pytest.mark.usefixtures("example_tools")
async def test_the_example_lands_once_is_compensated_and_stays_in_its_tenant(
    temporal_client: Client, database_url: str, task_queue: str
) -> None:
    settings = Settings.load(database_url=database_url, task_queue=task_queue, packs="loyalty")
    with psycopg.connect(database_url, autocommit=True) as owner:
        owner.execute(TABLE.encode())

        async with serving(settings, temporal_client):
            done = await temporal_client.execute_workflow(
                WORKFLOW, request("L000001", 250), id=f"{task_queue}-1", task_queue=task_queue, result_type=Envelope
            )
            undone = await temporal_client.execute_workflow(
                WORKFLOW,
                request("L000001", 200, refused_after=True),
                id=f"{task_queue}-2",
                task_queue=task_queue,
                result_type=Envelope,
            )
            other = await temporal_client.execute_workflow(
                WORKFLOW, request("L000002", 250), id=f"{task_queue}-3", task_queue=task_queue, result_type=Envelope
            )
        points = owner.execute("select points from loyalty.cards order by card_id").fetchall()

    assert (done.data or {})["outcome"] == Outcome.COMMITTED
    assert (undone.data or {})["outcome"] == Outcome.COMPENSATED
    assert (other.data or {})["outcome"] == Outcome.NOT_APPLIED
    assert points == [(750,), (500,)]
