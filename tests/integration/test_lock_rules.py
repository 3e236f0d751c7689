"""The rules of `take_locks`, asked directly: who gets what, who waits, who is refused, whatever comes at once."""

import asyncio
import json
import random
from dataclasses import dataclass
from typing import Any, Final, LiteralString

import psycopg
import pytest
from psycopg.errors import InsufficientPrivilege
from psycopg.rows import DictRow, dict_row

from activities.database import Database
from activities.locks import unlock

SEEDS: Final = 3
PLAYERS: Final = 6
ROUNDS: Final = 15
_INTENT: Final = """
insert into backstay.intents (intent_key, intent_id, tenant, principal, agent, session_id, request, body_digest,
    lineage_digest, occurrence, attempt, workflow_id, run_id, phase, deadline_at)
values (%s, %s, 'bank', 'customer', 'agent', 's', '{}', '', '', 1, 1, %s, 'run', 'ADMITTED', now() + interval '1 hour')
"""
_CONFLICTS: Final[LiteralString] = """
select 1 from backstay.counting_locks a join backstay.counting_locks b
    on b.resource = a.resource and b.intent_key > a.intent_key
where a.is_held and b.is_held and 'EXCLUSIVE' in (a.mode, b.mode)
"""


@dataclass
class Rules:
    """The function, and the tables around it changed by hand."""

    database: Database
    url: str
    made: int = 0

    def sql(self, statement: str, *params: object) -> list[dict[str, Any]]:
        with psycopg.Connection[DictRow].connect(self.url, row_factory=dict_row, autocommit=True) as connection:
            cursor = connection.execute(statement.encode(), params)
            return cursor.fetchall() if cursor.description else []

    def intent(self) -> str:
        """Claim an intent; returns its key."""
        self.made += 1
        letters = "".join("abcdefghij"[int(digit)] for digit in str(self.made))
        key, intent_id = f"{self.made:064d}", f"int_{letters:a>26}"
        self.sql(_INTENT, key, intent_id, f"w{self.made}")
        return key

    async def take(self, key: str, *wanted: str, step: str = "step", epoch: int = 1, seconds: float = 30.0) -> str:
        """Ask for `x:NAME` (exclusive) or `s:NAME` (shared); returns the verdict."""
        modes = {"x": "EXCLUSIVE", "s": "SHARED"}
        asked = [{"resource": name[2:], "mode": modes[name[0]], "step_ids": [step]} for name in wanted]
        row = await self.database.one(
            "select verdict from backstay.take_locks(%s, %s, %s::jsonb, %s)", (key, epoch, json.dumps(asked), seconds)
        )
        return "NOTHING" if row is None else str(row["verdict"])

    def end(self, key: str) -> None:
        """Bring an intent to its end."""
        self.sql("update backstay.intents set phase = 'COMMITTED', final_at = now() where intent_key = %s", key)

    def park(self, key: str) -> None:
        """Lay an intent to rest."""
        self.sql("update backstay.intents set parked_reason = 'r', parked_since = now() where intent_key = %s", key)

    def held(self, key: str) -> list[str]:
        """What an intent holds and what counts of it."""
        query = "select mode, resource from backstay.counting_locks where intent_key = %s and is_held order by 2, 1"
        return [f"{row['mode'][0].lower().replace('e', 'x')}:{row['resource']}" for row in self.sql(query, key)]


@pytest.fixture
async def rules(database_url: str) -> Any:  # noqa: ANN401 - a generator of Rules
    async with Database(database_url) as database:
        yield Rules(database, database_url)


async def test_all_or_nothing(rules: Rules) -> None:
    one, two = rules.intent(), rules.intent()

    assert await rules.take(one, "x:b") == "HELD"
    assert await rules.take(two, "x:a", "x:b", "x:c") == "WAIT"
    assert rules.held(two) == []
    rules.end(one)
    assert await rules.take(two, "x:a", "x:b", "x:c") == "HELD"
    assert rules.held(two) == ["x:a", "x:b", "x:c"]


async def test_whoever_holds_locks_waits_only_for_younger_ones(rules: Rules) -> None:
    older, younger = rules.intent(), rules.intent()
    assert [await rules.take(older, "x:a"), await rules.take(younger, "x:b")] == ["HELD", "HELD"]

    assert await rules.take(older, "x:b") == "WAIT"
    assert await rules.take(younger, "x:a") == "REFUSED"
    assert rules.held(younger) == ["x:b"]


async def test_age_is_that_of_the_first_request_and_not_of_the_intent(rules: Rules) -> None:
    one, two = rules.intent(), rules.intent()
    assert [await rules.take(two, "x:a"), await rules.take(one, "x:b")] == ["HELD", "HELD"]

    assert await rules.take(two, "x:b") == "WAIT"
    assert await rules.take(one, "x:a") == "REFUSED"


async def test_an_older_one_passes_a_younger_one_in_the_queue(rules: Rules) -> None:
    older, holder, younger = rules.intent(), rules.intent(), rules.intent()
    assert await rules.take(older, "x:a") == "HELD"
    assert await rules.take(holder, "x:b") == "HELD"
    assert await rules.take(younger, "x:b", "x:c") == "WAIT"

    assert await rules.take(older, "x:c") == "HELD", "nobody holds it, and who waits for it is younger"


async def test_a_shared_request_does_not_pass_an_exclusive_one_that_came_before(rules: Rules) -> None:
    reader, writer, later = rules.intent(), rules.intent(), rules.intent()
    assert await rules.take(reader, "s:a") == "HELD"
    assert await rules.take(writer, "x:a") == "WAIT"

    assert await rules.take(later, "s:a") == "WAIT"
    rules.end(reader)
    assert await rules.take(later, "s:a") == "WAIT"
    assert await rules.take(writer, "x:a") == "HELD"


async def test_of_two_sharers_that_both_want_it_alone_the_younger_closes(rules: Rules) -> None:
    older, younger = rules.intent(), rules.intent()
    assert [await rules.take(key, "s:a") for key in (older, younger)] == ["HELD", "HELD"]

    assert await rules.take(older, "x:a") == "WAIT"
    assert await rules.take(younger, "x:a") == "REFUSED"
    rules.end(younger)
    assert await rules.take(older, "x:a") == "HELD"
    assert rules.held(older) == ["x:a", "s:a"]


async def test_what_is_held_alone_is_not_asked_for_again_to_be_shared(rules: Rules) -> None:
    key = rules.intent()
    assert await rules.take(key, "x:a", step="one") == "HELD"

    assert await rules.take(key, "s:a", step="two") == "HELD"
    assert rules.held(key) == ["x:a"]
    assert rules.sql("select step_ids from backstay.locks") == [{"step_ids": ["one", "two"]}]


async def test_whoever_has_waited_too_long_has_lost_its_place_and_is_refused(rules: Rules) -> None:
    holder, lapsed, other = rules.intent(), rules.intent(), rules.intent()
    assert await rules.take(holder, "x:a") == "HELD"
    assert await rules.take(lapsed, "x:a", "x:b", seconds=30) == "WAIT"
    assert await rules.take(other, "x:b") == "WAIT"

    rules.sql("update backstay.locks set waits_until = now() where not is_held and intent_key = %s", lapsed)

    assert await rules.take(other, "x:b") == "HELD"
    assert await rules.take(lapsed, "x:a", "x:b") == "REFUSED"
    assert rules.sql("select 1 from backstay.locks where intent_key = %s", lapsed) == []


@pytest.mark.parametrize(
    "change",
    [
        "phase = 'CLOSING'",
        "parked_reason = 'r', parked_since = now()",
        "epoch = 2",
        "phase = 'COMMITTED', final_at = now()",
    ],
)
async def test_nothing_is_taken_for_an_intent_whose_steps_may_not_land(rules: Rules, change: str) -> None:
    key = rules.intent()
    rules.sql(f"update backstay.intents set {change} where intent_key = %s", key)  # noqa: S608 - from above

    assert await rules.take(key, "x:a") == "NOTHING"
    assert rules.sql("select 1 from backstay.locks") == []


async def test_a_closing_intent_keeps_its_locks_and_loses_its_places(rules: Rules) -> None:
    closing, other, third = rules.intent(), rules.intent(), rules.intent()
    assert await rules.take(closing, "x:a") == "HELD"
    assert await rules.take(other, "x:b") == "HELD"
    assert await rules.take(closing, "x:b") == "WAIT"

    rules.sql("update backstay.intents set phase = 'CLOSING' where intent_key = %s", closing)
    rules.end(other)

    assert await rules.take(third, "x:b") == "HELD"
    assert rules.held(closing) == ["x:a"]


async def test_at_rest_only_what_is_held_alone_and_may_have_been_changed_is_kept(rules: Rules) -> None:
    key = rules.intent()
    for step in ("landed", "undone", "planned"):
        assert await rules.take(key, f"x:{step}", f"s:shared_{step}", step=step) == "HELD"
    for step, state in (("landed", "LANDED"), ("undone", "COMPENSATED")):
        rules.sql(
            "insert into backstay.effects (step_key, intent_key, step_id, tool, direction, state, argument_digest,"
            " arguments, epoch) values (%s, %s, %s, 't', 'execute', %s, '', '{}', 1)",
            *(f"{key}/{step}/execute", key, step, state),
        )

    rules.park(key)

    assert rules.held(key) == ["x:landed"]


async def test_an_intent_at_rest_keeps_what_was_sent_and_nobody_knows_of(rules: Rules) -> None:
    key = rules.intent()
    for state in ("SENT", "UNKNOWN", "REFUSED", "FENCED"):
        assert await rules.take(key, f"x:{state}", step=state) == "HELD"
        rules.sql(
            "insert into backstay.attempts (step_key, intent_key, step_id, tool, direction, remote_key, downstream,"
            " state, argument_digest, arguments, epoch, in_flight_until, key_valid_until, patience_until)"
            " values (%s, %s, %s, 't', 'execute', %s, 'd', %s, '', '{}', 1, now(), now(), now())",
            *(f"{key}/{state}/execute", key, state, state, state),
        )

    rules.park(key)

    assert rules.held(key) == ["x:SENT", "x:UNKNOWN"]


async def test_taking_away_moves_the_epoch_and_leaves_only_that_lock_behind(rules: Rules) -> None:
    key, other = rules.intent(), rules.intent()
    assert await rules.take(key, "x:a", "x:b", "s:c") == "HELD"

    taken = await unlock(rules.database, "a", tenant="bank", operator="operator", reason="it hangs")

    assert [(row["mode"], row["epoch"]) for row in taken] == [("EXCLUSIVE", 2)]
    assert rules.held(key) == ["x:b", "s:c"]
    assert await rules.take(other, "x:a") == "HELD"
    assert await rules.take(key, "x:a", "x:b", "s:c") == "NOTHING", "that epoch is over"
    assert await rules.take(key, "x:b", epoch=2) == "TAKEN_AWAY"


@pytest.mark.parametrize("at_rest", [True, False])
async def test_taking_away_from_one_whose_steps_cannot_land_leaves_its_epoch(rules: Rules, *, at_rest: bool) -> None:
    key, other = rules.intent(), rules.intent()
    assert await rules.take(key, "x:a", "x:b") == "HELD"
    for step in ("step", "other"):
        rules.sql(
            "insert into backstay.effects (step_key, intent_key, step_id, tool, direction, state, argument_digest,"
            " arguments, epoch) values (%s, %s, %s, 't', 'execute', 'LANDED', '', '{}', 1)",
            *(f"{key}/{step}/execute", key, step),
        )
    change = "parked_reason = 'r', parked_since = now()" if at_rest else "phase = 'CLOSING'"
    rules.sql(f"update backstay.intents set {change} where intent_key = %s", key)  # noqa: S608 - from above

    taken = await unlock(rules.database, "a", tenant="bank", operator="operator", reason="")

    assert [row["epoch"] for row in taken] == [1]
    assert rules.held(key) == ["x:b"]
    assert await rules.take(other, "x:a") == "HELD"
    rules.sql("update backstay.intents set phase = 'ADMITTED', parked_reason = null, parked_since = null")
    assert await rules.take(key, "x:b") == "TAKEN_AWAY"


async def test_an_intent_that_has_rested_may_ask_again_for_what_was_taken_away(rules: Rules) -> None:
    key = rules.intent()
    assert await rules.take(key, "x:a") == "HELD"
    await unlock(rules.database, "a", tenant="bank", operator="operator", reason="")

    rules.park(key)
    rules.sql("update backstay.intents set parked_reason = null, parked_since = null")

    assert await rules.take(key, "x:a", epoch=2) == "HELD"


async def test_rows_of_ended_intents_go_when_somebody_takes_the_same_object(rules: Rules) -> None:
    for _ in range(3):
        key = rules.intent()
        assert await rules.take(key, "x:a") == "HELD"
        rules.end(key)

    assert len(rules.sql("select 1 from backstay.locks")) == 1


async def test_no_role_of_the_engine_writes_locks_but_by_their_functions(rules: Rules) -> None:
    await rules.take(rules.intent(), "x:a")

    for statement in ("update backstay.locks set is_held = false", "delete from backstay.locks"):
        with pytest.raises(InsufficientPrivilege):
            await rules.database.one(statement)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_however_they_crowd_no_two_ever_hold_what_does_not_go_together_and_all_end(
    rules: Rules, seed: int
) -> None:
    """Players take one set outright and reach for more, in every order; whoever is told to wait asks again."""
    chance = random.Random(seed)  # noqa: S311 - no secret
    names = "abcd"
    scripts = [
        [
            [f"{chance.choice('xs')}:{name}" for name in chance.sample(names, chance.randint(1, 3))]
            for _ in range(chance.randint(1, 3))
        ]
        for _ in range(PLAYERS * ROUNDS)
    ]
    keys = [rules.intent() for _ in scripts]
    verdicts: list[str] = []

    async def play() -> None:
        while scripts:
            script, key = scripts.pop(), keys.pop()
            for wanted in script:
                while (verdict := await rules.take(key, *wanted)) == "WAIT":  # noqa: ASYNC110 - it polls
                    await asyncio.sleep(0.01)
                verdicts.append(verdict)
                assert await rules.database.one(_CONFLICTS) is None
                if verdict == "REFUSED":
                    break
            await asyncio.to_thread(rules.end, key)

    async with asyncio.timeout(60):
        await asyncio.gather(*(play() for _ in range(PLAYERS)))

    assert set(verdicts) == {"HELD", "REFUSED"}
