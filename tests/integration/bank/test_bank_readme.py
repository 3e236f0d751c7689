"""The README's remote tool is true: its intent ends as it shows, and its keys and answers are those."""

import json
from pathlib import Path

import psycopg
import pytest
from temporalio.client import Client

from contracts.envelope import Envelope
from contracts.saga import WORKFLOW
from tests.support.bankhouse import open_bank
from worker.service import serving
from worker.settings import Settings

ROOT = Path(__file__).parents[3]
CALLER = {"tenant": "demo-bank", "principal": "demo-customer", "agent": "demo-agent"}


@pytest.mark.servers
async def test_the_remote_tool_of_the_readme_does_what_it_shows(
    temporal_client: Client, database_url: str, task_queue: str, tmp_path: Path
) -> None:
    shown = (ROOT / "README.md").read_text(encoding="utf-8")
    intent = json.loads((ROOT / "examples/intents/10-charge-then-payout.json").read_bytes())
    with psycopg.connect(database_url, autocommit=True) as owner:
        owner.execute((ROOT / "examples/accounts.sql").read_bytes())
    with open_bank(tmp_path) as bank:
        settings = Settings.load(database_url=database_url, task_queue=task_queue, bank_url=bank.url)
        bank.switch("drop_reply")
        async with serving(settings, temporal_client):
            ended = await temporal_client.execute_workflow(
                WORKFLOW,
                {"caller": CALLER, "intent": intent},
                id=task_queue,
                task_queue=task_queue,
                result_type=Envelope,
            )
        moved = [(entry["order"]["kind"], entry["order"]["client_reference"]) for entry in bank.entries()]

    assert ended.data is not None
    steps = ended.data["steps"]
    assert f"{ended.meta.intent_id}  {ended.data['outcome']}" in shown
    for step in steps:
        assert f"{step['tool']}  {step['state']}  #{step['transaction_id']}" in shown
        assert f"key {step['step_key']}" in shown
    assert "charge_id=" + steps[0]["output"]["charge_id"] in shown
    assert "payout_id=" + steps[1]["output"]["payout_id"] in shown
    assert moved == [("CHARGE", "1"), ("PAYOUT", "2")]
