"""Reading open questions: the steps that were sent somewhere and of which nobody knows whether they landed."""

import json
from datetime import datetime
from typing import Final, LiteralString

from activities.database import Row
from contracts.question import Question

QUESTIONS: Final[LiteralString] = """
select intent_key, step_id, state, downstream, remote_key, sends, first_sent_at, in_flight_until, patience_until, known,
    in_flight_until <= now() as past_flight
from backstay.attempts where intent_key = any(%s) and direction = 'execute' and state in ('SENT', 'UNKNOWN')
order by transaction_id
"""


def question_of(attempt: Row) -> Question:
    """Put an attempt's row into words."""
    known = json.loads(attempt["known"])
    return Question(
        step_id=attempt["step_id"],
        is_unknown=attempt["state"] == "UNKNOWN" or attempt["sends"] > 1 or attempt["past_flight"],
        downstream=attempt["downstream"],
        remote_key=attempt["remote_key"],
        sends=attempt["sends"],
        first_sent_at=_time(attempt["first_sent_at"]),
        may_land_until=_time(attempt["in_flight_until"]),
        patience_until=_time(max(attempt["patience_until"], attempt["in_flight_until"])),
        seen=known.get("seen"),
        mismatch=known.get("mismatch"),
        next_look_at=known.get("next_look_at"),
    )


def _time(at: datetime) -> str:
    return at.isoformat(timespec="seconds")
