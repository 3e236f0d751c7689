"""What an agent says to an open intent, and what travels between its saga and the tables.

Updates, because each is answered. Steps travel raw: what is wrong with them is told by admission, field by field.
"""

from typing import Final

from contracts.base import JsonObject, Record
from contracts.envelope import StepReport
from contracts.errors import ErrorInfo
from contracts.saga import Cancellation, Claim, Message, MessageAnswer, Standing

ADMIT_STEP: Final = "admit_step"
OPENED: Final = "open"
ADD_STEP: Final = "add_step"
COMMIT: Final = "commit"
ABORT: Final = "abort"
UPDATES_MAX: Final = 500
UPDATES_BYTES_MAX: Final = 4_194_304
"""Of all these updates of a run: a whole plan has a quarter MiB, and Temporal ends a run whose history has 50 MiB."""
UPDATE_BYTES_FREE: Final = 1_024
"""An update up to this is taken beyond it: `commit` and `abort` stay possible."""
WAITING_MAX: Final = 8
"""Temporal holds ten unanswered updates of a run at most; the others are for who wants to stop it."""
SIGNALS_MAX: Final = 1_000


class Opening(Message):
    """Ask whether the intent is open by now."""


class Addition(Message):
    """Add a step and run it: `step_id`, `tool`, `arguments`; bindings name steps that were added before."""

    step: JsonObject


class Commit(Message):
    """Add nothing more and commit; a last step, which alone may be irreversible, can come with it."""

    final_step: JsonObject | None = None


class Abort(Cancellation):
    """Add nothing more and undo what landed."""


class AddRequest(Record):
    """Input of `admit_step`: a step to append, and whether the plan is complete with it; one of the two at least."""

    claim: Claim
    step: JsonObject | None = None
    final: bool = False


class AddAnswer(Record):
    """What became of it. `standing` has the plan as it is now; none when nothing was taken.

    Neither accepted nor an error: the tables have a step that is not done, and the run has to learn of it first.
    """

    accepted: bool
    error: ErrorInfo | None = None
    standing: Standing | None = None


class OpenAnswer(MessageAnswer):
    """Answer to one of these updates; `step` is what was added, with its output."""

    step: StepReport | None = None
