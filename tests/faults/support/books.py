"""The judge: what must hold in the tables whatever was killed, and whether an answer tells what they hold.

Plain SQL over movements, holds, captures, effects and audit rows; nothing here asks the engine.
"""

import re
from pathlib import Path
from typing import Any, Final, LiteralString, cast

from contracts.envelope import Envelope
from tests.faults.support.intents import OPENED_CENTS
from tests.faults.support.world import Posted, World

INVARIANTS: Final = Path(__file__).resolve().parents[3] / "activities" / "invariants.sql"

# Each statement lists what is wrong; a row is a violation.
RULES: Final[dict[str, LiteralString]] = {
    "balances equal their movements": """
        select a.account_id, a.balance_cents, m.sum_cents from ledger.accounts a
        cross join lateral (select coalesce(sum(case when credit_account = a.account_id then amount_cents
            else -amount_cents end), 0) as sum_cents from ledger.movements
            where a.account_id in (credit_account, debit_account)) m
        where a.balance_cents is not null and a.balance_cents <> m.sum_cents""",
    "held amounts equal the open holds": """
        select a.account_id, a.held_cents, h.sum_cents from ledger.accounts a
        cross join lateral (select coalesce(sum(amount_cents), 0) as sum_cents from ledger.holds
            where account_id = a.account_id and state = 'OPEN') h
        where a.held_cents is not null and a.held_cents <> h.sum_cents""",
    "a capture has its hold, and captures no more than it": """
        select c.capture_id from ledger.captures c left join ledger.holds h using (hold_id)
        where h.hold_id is null or h.state <> 'CAPTURED' or c.amount_cents <> h.captured_cents
            or h.captured_cents > h.amount_cents""",
    "a capture has one movement, and refunds as it says": """
        select c.capture_id, c.refunded_cents from ledger.captures c
        cross join lateral (select
            count(*) filter (where operation_type = 'CAPTURE') as captures,
            coalesce(sum(amount_cents) filter (where operation_type = 'CAPTURE'), 0) as captured,
            coalesce(sum(amount_cents) filter (where operation_type = 'REFUND'), 0) as refunded
            from ledger.movements m where m.capture_id = c.capture_id) m
        where m.captures <> 1 or m.captured <> c.amount_cents or m.refunded <> c.refunded_cents""",
    "no hold is open past its saga's final phase, unless the saga committed it": """
        select h.hold_id, i.phase from ledger.holds h join backstay.intents i using (intent_id)
        where h.state = 'OPEN' and i.phase in ('COMPENSATED', 'NOT_APPLIED')""",
    "a business row has its effect, and the effect its business row": """
        select coalesce(e.transaction_id, b.transaction_id) as transaction_id, e.tool, e.direction, b.source
        from (
            select transaction_id, 'hold' as source from ledger.holds
            union all select transaction_id, 'movement' from ledger.movements where transaction_id is not null
        ) b full join (
            select * from backstay.effects where tool in ('freeze_account_funds', 'debit_frozen_funds',
                'reserve_customer_payment', 'credit_customer_account', 'transfer_customer_funds')
                and direction = 'execute' and state <> 'TOMBSTONE'
        ) e on e.transaction_id = b.transaction_id
        left join backstay.effects undo on undo.transaction_id = b.transaction_id and undo.direction = 'compensate'
        where (e.transaction_id is null and undo.transaction_id is null) or b.transaction_id is null""",
    "forward minus compensated is 0 or 1 per step": """
        select e.intent_key, e.step_id, e.state, count(c.step_key) as compensations from backstay.effects e
        left join backstay.effects c on c.intent_key = e.intent_key and c.step_id = e.step_id
            and c.direction = 'compensate'
        where e.direction = 'execute' group by e.step_key, e.intent_key, e.step_id, e.state
        having (e.state = 'LANDED' and count(c.step_key) > 0) or count(c.step_key) > 1
            or (e.state = 'COMPENSATED' and count(c.step_key) = 0 and not exists (select from backstay.resolutions r
                where r.intent_key = e.intent_key and r.step_id = e.step_id and r.verb in ('done', 'skip')))""",
    "at its final phase an intent has all effects live or none": """
        select i.intent_id, i.phase, count(*) filter (where e.state = 'LANDED') as live
        from backstay.intents i left join backstay.effects e on e.intent_key = i.intent_key and e.direction = 'execute'
        where i.final_at is not null group by i.intent_key
        having (i.phase = 'COMMITTED' and count(*) filter (where e.state = 'LANDED')
                <> jsonb_array_length(jsonb_path_query_array(i.plan::jsonb,
                    '$.steps[*] ? (@.side_effect != "READ_ONLY" && !exists(@.stands_for ? (@ != null)))')))
            or (i.phase <> 'COMMITTED' and count(*) filter (where e.state = 'LANDED') > 0)
            or (i.phase = 'NOT_APPLIED' and count(*) filter (where e.state = 'COMPENSATED') > 0)
            or (i.phase = 'COMPENSATED' and count(*) filter (where e.state = 'COMPENSATED') = 0)""",
    "compensations land in the reverse of the landing order": """
        select one.intent_key, one.step_id, two.step_id as later from backstay.effects one
        join backstay.effects two on two.intent_key = one.intent_key and two.direction = 'execute'
            and two.transaction_id > one.transaction_id
        join backstay.effects undone on undone.intent_key = one.intent_key and undone.step_id = one.step_id
            and undone.direction = 'compensate'
        left join backstay.effects undone_later on undone_later.intent_key = two.intent_key
            and undone_later.step_id = two.step_id and undone_later.direction = 'compensate'
        where one.direction = 'execute' and one.state = 'COMPENSATED' and two.state <> 'TOMBSTONE'
            and (undone_later.transaction_id is null or undone_later.transaction_id > undone.transaction_id)
            and not exists (select from backstay.resolutions r
                where r.intent_key = two.intent_key and r.step_id = two.step_id and r.verb in ('done', 'skip'))""",
    "an effect has exactly one audit row, written in its transaction": """
        select e.step_key, count(a.audit_id) as rows from backstay.effects e
        left join backstay.audit_log a on a.transaction_id = e.transaction_id and a.kind = 'effect'
            and a.intent_key = e.intent_key and a.step_id = e.step_id and a.at = e.landed_at
        where e.state <> 'TOMBSTONE' group by e.step_key having count(a.audit_id) <> 1""",
    "an audit row of an effect has its effect": """
        select a.audit_id from backstay.audit_log a left join backstay.effects e using (transaction_id)
        where a.kind = 'effect' and e.step_key is null""",
    "an intent is admitted, closed and settled at most once": """
        select intent_key, kind, count(*) from backstay.audit_log where kind in ('admitted', 'closed', 'settled')
        group by intent_key, kind having count(*) > 1""",
    "a step that was asked about ran on one spent approval": """
        select r.intent_key, r.step_id from backstay.approval_requests r
        join backstay.effects e on e.intent_key = r.intent_key and e.step_id = r.step_id and e.direction = 'execute'
            and e.state <> 'TOMBSTONE'
        left join backstay.approval_consumptions c on c.step_key = e.step_key
        left join backstay.decisions d on d.intent_key = c.intent_key and d.step_id = c.step_id
            and d.decision_id = c.decision_id
        where d.decision_id is null or d.verdict <> 'approve' or d.plan_digest <> r.plan_digest
            or d.decided_at > r.expires_at or d.decided_at > e.landed_at""",
    "an approval is spent by a step that ran": """
        select c.step_key from backstay.approval_consumptions c left join backstay.effects e using (step_key)
        where e.step_key is null or e.state = 'TOMBSTONE'""",
    "a final outcome is stored with its report, and nothing parked stays in a final phase": """
        select intent_id, phase from backstay.intents where final_at is not null
            and (report is null or report::jsonb ->> 'outcome' <> phase)""",
}


def check_books(world: World) -> None:
    """Assert every rule over the whole database; open sagas only have to keep what holds at any time."""
    broken: dict[str, list[dict[str, Any]]] = {}
    rules: dict[str, LiteralString] = {**RULES, **shipped()}
    for rule, statement in rules.items():
        if rows := world.all(statement):
            broken[rule] = rows[:5]
    assert not broken, broken


def shipped() -> dict[str, LiteralString]:
    """Read the SQL file that `backstay check` runs, as its head says that it is to be read."""
    found: dict[str, LiteralString] = {}
    for block in re.split(r"^-- name: ", INVARIANTS.read_text(), flags=re.MULTILINE)[1:]:
        name, _, rest = block.partition("\n")
        found[name] = cast("LiteralString", rest.partition(";\n")[0])
    return found


def check_answer(posted: Posted, envelope: Envelope) -> str:
    """Assert that an envelope tells what the tables hold; return the outcome."""
    data = envelope.data or {}
    outcome, steps = data["outcome"], {step["step_id"]: step for step in data["steps"]}
    row, effects = posted.row(), posted.effects()
    if outcome == "PARKED":
        assert row is not None
        assert row["parked_reason"] is not None
        assert envelope.status_code == 202
        return str(outcome)
    if row is None:
        assert (outcome, data["cause"]) == ("NOT_APPLIED", "rejected"), envelope
        return str(outcome)
    assert row["phase"] == outcome, (row["phase"], envelope)
    assert row["cause"] == data["cause"]
    assert row["parked_reason"] is None
    assert (envelope.status_code == 200) == (outcome == "COMMITTED")
    for step_id, state in effects.items():
        told = {"LANDED": ("DONE",), "COMPENSATED": ("COMPENSATED",), "TOMBSTONE": ("SUPERSEDED", "REFUSED", "PLANNED")}
        assert steps[step_id]["state"] in told[state], (step_id, state, envelope)
    writing = {step_id: step for step_id, step in steps.items() if not step["tool"].startswith("check_")}
    for step_id, step in writing.items():
        assert (step["state"] in ("DONE", "COMPENSATED")) == (effects.get(step_id) in ("LANDED", "COMPENSATED")), step
    live = [state for state in effects.values() if state == "LANDED"]
    assert len(live) == (len(writing) if outcome == "COMMITTED" else 0)
    return str(outcome)


def check_purchase(posted: Posted, account: str, outcome: str, amount_cents: int) -> None:
    """Assert that the account shows a purchase exactly when it was committed."""
    spent = amount_cents if outcome == "COMMITTED" else 0
    assert posted.world.standing(account) == (OPENED_CENTS - spent, 0), (outcome, posted.movements())
    booked = sum(cents if kind == "CAPTURE" else -cents for kind, cents in posted.movements())
    assert booked == spent
