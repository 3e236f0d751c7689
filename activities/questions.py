"""Open questions: the steps that were sent somewhere and of which nobody knows whether they landed, in words.

One wording for what is shown of them, for the answer to an operator, and for the residue that his word leaves.
"""

import json
from datetime import datetime
from typing import Final, LiteralString

from activities.database import Row
from contracts.base import Record
from contracts.errors import ErrorInfo, SagaError
from contracts.reasons import Reason

QUESTIONS: Final[LiteralString] = """
select intent_key, step_id, state, downstream, remote_key, sends, first_sent_at, in_flight_until, patience_until, known,
    in_flight_until <= now() as past_flight
from backstay.attempts where intent_key = any(%s) and direction = 'execute' and state in ('SENT', 'UNKNOWN')
order by transaction_id
"""


class Question(Record):
    """What is known of a step that was sent and may have landed; times are UTC.

    `is_unknown`: False while it is on its way for the first time. `patience_until`: from then on a person is called,
    or it is called off where the downstream can do that.
    """

    step_id: str
    is_unknown: bool
    downstream: str
    remote_key: str
    sends: int
    first_sent_at: str
    may_land_until: str
    patience_until: str
    seen: str | None
    mismatch: str | None
    next_look_at: str | None

    def sent(self) -> str:
        """Say how it was sent."""
        times = "once" if self.sends == 1 else f"{self.sends} times"
        return f"sent {times} to {self.downstream} under {self.remote_key}, first at {self.first_sent_at}"

    def text(self) -> str:
        """Say all of it in one line."""
        seen = f"; seen last: {self.seen}" if self.seen else ""
        wrong = f"; a mismatch: {self.mismatch}" if self.mismatch and self.mismatch != self.seen else ""
        return f"{self.sent()}, may land until {self.may_land_until}{wrong}{seen}"

    def error(self) -> ErrorInfo:
        """Tell it as what is wrong with the step."""
        message = f"Whether step {self.step_id!r} landed is not known: {self.text()}."
        return SagaError(Reason.OUTCOME_UNKNOWN, message, details=self.model_dump(mode="json")).info


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
