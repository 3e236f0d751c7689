"""Finding near-duplicates, race-free: whoever claims a near-key next waits until this transaction is over."""

from collections.abc import Iterable, Mapping
from typing import Final, LiteralString

from activities.database import Answer, Transaction
from contracts.proposal import ProposedStep

_LOCK: Final[LiteralString] = """
select count(pg_advisory_xact_lock(hashtextextended(near_key, 5)))
from (select unnest(%s::text[]) as near_key order by 1) as sorted
"""
_ALIKE: Final[LiteralString] = """
select distinct on (n.near_key) n.near_key, i.intent_id
from unnest(%(near_keys)s::text[], %(windows)s::bigint[]) as asked(near_key, window_seconds)
join backstay.near_duplicates n using (near_key)
join backstay.intents i using (intent_key)
where i.phase not in ('NOT_APPLIED', 'COMPENSATED')
    and (i.phase <> 'COMMITTED' or exists (
        select from backstay.effects e
        where e.step_key = n.intent_key || '/' || n.step_id || '/execute' and e.state = 'LANDED'))
    and i.lineage_digest <> %(lineage_digest)s
    and (i.final_at is null or i.final_at > now() - make_interval(secs => asked.window_seconds))
order by n.near_key, i.admitted_at desc
"""


async def lock_near(transaction: Transaction, keys: Mapping[str, str]) -> None:
    """Let nobody else claim these near-keys before the transaction is over."""
    await transaction.later(_LOCK, (list(keys.values()),))


async def ask_alike(
    transaction: Transaction, steps: Iterable[ProposedStep], lineage_digest: str, keys: Mapping[str, str]
) -> Answer:
    """Ask which steps were done before by another wish; read the answer with `alike`."""
    windows = {step.step_id: step.contract.duplicate_window_seconds for step in steps}
    return await transaction.ask(
        _ALIKE,
        {
            "near_keys": list(keys.values()),
            "windows": [windows[step_id] for step_id in keys],
            "lineage_digest": lineage_digest,
        },
    )


async def alike(asked: Answer, keys: Mapping[str, str]) -> dict[str, str]:
    """For each step that was done before, the latest intent that did it."""
    found = {row["near_key"]: row["intent_id"] for row in await asked.all()}
    return {step_id: found[near_key] for step_id, near_key in keys.items() if near_key in found}
