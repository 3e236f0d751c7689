"""An open question: a step that was sent somewhere and of which nobody knows whether it landed, in words.

One wording for what is shown of it, for the answer to an operator, and for the residue that his word leaves.
"""

from contracts.base import Record
from contracts.errors import ErrorInfo, SagaError
from contracts.reasons import Reason


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
        message = f"Whether step {self.step_id!r} landed is not known: {self.text().removesuffix('.')}."
        return SagaError(Reason.OUTCOME_UNKNOWN, message, details=self.model_dump(mode="json")).info
