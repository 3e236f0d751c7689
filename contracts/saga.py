"""What travels between the saga and its activities, and between people and the saga.

Every message that a person may send is one model, because Temporal's Web UI sends exactly one payload.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field

from contracts.base import JsonObject, JsonValue, Record
from contracts.envelope import Cause, IntentReport, Outcome, StepReport
from contracts.errors import ErrorInfo
from contracts.intent import INTENT_ID_PATTERN, NAME_PATTERN, PLANNED_STEP_ID_PATTERN
from contracts.keys import compensate_key, execute_key
from contracts.plan import Plan
from contracts.tool import Duty

WORKFLOW: Final = "IntentWorkflow"
ADMIT: Final = "admit_intent"
CLOSE: Final = "close_intent"
SETTLE: Final = "settle_intent"
GRADE: Final = "grade_step"
PARK: Final = "park_intent"
ADMIT_DECISION: Final = "admit_decision"
ADMIT_RESOLUTION: Final = "admit_resolution"

SEARCH_STATE: Final = "BackstayState"
SEARCH_TENANT: Final = "BackstayTenant"
SEARCH_AGENT: Final = "BackstayAgent"
SEARCH_RISK: Final = "BackstayRisk"
SEARCH_TOOLS: Final = "BackstayTools"
SEARCH_KEYWORDS: Final = (SEARCH_STATE, SEARCH_TENANT, SEARCH_AGENT, SEARCH_RISK)


class IntentPhase(StrEnum):
    """The phase column: changed only by compare-and-set."""

    ADMITTED = "ADMITTED"
    CLOSING = "CLOSING"
    COMMITTED = "COMMITTED"
    COMPENSATED = "COMPENSATED"
    NOT_APPLIED = "NOT_APPLIED"

    @property
    def is_final(self) -> bool:
        """True when nothing can change it any more."""
        return self not in (IntentPhase.ADMITTED, IntentPhase.CLOSING)

    @property
    def outcome(self) -> Outcome:
        """The phase as an outcome; PENDING while it is open."""
        return Outcome(self.value) if self.is_final else Outcome.PENDING


class ParkReason(StrEnum):
    """Why an intent rests until an operator acts."""

    INTERRUPTED = "INTERRUPTED"
    MISMATCH = "MISMATCH"
    COMPENSATION_REFUSED = "COMPENSATION_REFUSED"
    STUCK_AFTER_PIVOT = "STUCK_AFTER_PIVOT"
    OUTCOME_UNKNOWN = "OUTCOME_UNKNOWN"
    WORLD_MOVED = "WORLD_MOVED"


class Claim(Record):
    """Who acts on an intent: refused when run or epoch is stale."""

    intent_key: str
    workflow_id: str
    run_id: str
    epoch: int


class AdmitRequest(Record):
    """Input of admission: the workflow's own input, unread (it may be anything), and the run that asks."""

    request: JsonValue
    workflow_id: str
    run_id: str


class Graded(Record):
    """A step that was graded when its late arguments were known: with them filled in, for good.

    `digest` is what a decision about it names: it binds the plan and these arguments.
    """

    step_id: str
    level: int
    duty: Duty
    because: tuple[str, ...] = ()
    arguments: JsonObject
    digest: str


class Ask(Record):
    """The human decisions of an intent: what is asked, what was decided, how long it may still be decided.

    `late` are the asked steps that were graded after admission.
    """

    undecided: tuple[str, ...] = ()
    approved: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()
    expires_in_seconds: float = 0.0
    expires_at: str = ""
    late: tuple[Graded, ...] = ()

    def digests(self, plan_digest: str | None, step_ids: Iterable[str]) -> dict[str, str | None]:
        """What a decision about each of these steps has to name."""
        late = {graded.step_id: graded.digest for graded in self.late}
        return {step_id: late.get(step_id, plan_digest) for step_id in step_ids}


class Standing(Record):
    """How an intent stands in the database, as one transaction saw it."""

    intent_id: str
    plan: Plan | None = None
    plan_digest: str | None = None
    epoch: int = 1
    phase: IntentPhase = IntentPhase.ADMITTED
    cause: Cause = Cause.NONE
    error: ErrorInfo | None = None
    parked: ParkReason | None = None
    parked_detail: JsonObject | None = None
    report: IntentReport | None = None
    ask: Ask = Ask()
    duplicate: bool = False
    """True when another workflow owns the intent: this run ends without having written anything."""
    lost: ErrorInfo | None = None
    """Which lock was taken away from it while it may still commit."""


class StepCall(Record):
    """Input of a tool's activity: which step, with its bindings filled in.

    Who asks, what was approved and what was planned the activity reads from the tables, never from a message.
    `arguments` stay raw and are validated inside.
    """

    claim: Claim
    step_id: str
    arguments: JsonObject

    @property
    def step_key(self) -> str:
        """Key of the step's one execution."""
        return execute_key(self.claim.intent_key, self.step_id)


class GradeCall(Record):
    """Ask for the grade of a step whose late arguments are known now; what they are is read from the tables."""

    claim: Claim
    step_id: str


class GradeAnswer(Record):
    """The grade of a step, and what people are asked now."""

    graded: Graded
    ask: Ask = Ask()


class StepResult(Record):
    """A landed step. `transaction_id` is None for a tool that only reads; `warnings`: what reading it back found."""

    step_id: str
    step_key: str
    transaction_id: int | None = None
    applied_args: JsonObject
    output: JsonObject
    warnings: tuple[str, ...] = ()


class CompensateCall(Record):
    """Input of a compensating activity; everything it does comes from the effect row, never from a message."""

    claim: Claim
    step_id: str

    @property
    def execute_key(self) -> str:
        """Key of what is undone."""
        return execute_key(self.claim.intent_key, self.step_id)

    @property
    def compensate_key(self) -> str:
        """Key of the undoing."""
        return compensate_key(self.claim.intent_key, self.step_id)


class CompensateResult(Record):
    """A compensation that is done; `undone` is False when there was nothing to undo."""

    step_id: str
    step_key: str
    transaction_id: int
    undone: bool
    residue: str | None = None


class LookupCall(Record):
    """Ask what became of a step whose outcome is unknown; what was sent is read from its attempt row.

    `closing`: the saga is on its way back, so nothing is sent again, and the key is cancelled where that can be.
    """

    claim: Claim
    step_id: str
    closing: bool = False

    @property
    def step_key(self) -> str:
        """Key of the step's one execution."""
        return execute_key(self.claim.intent_key, self.step_id)


class Sighting(Record):
    """What is known of a step now. `NOT_LANDED` is said only when it is certain for good, or nothing is sent again.

    `after_seconds`: when to look, or to send, again. `may_resend`: the same key may be sent again while the saga goes
    forward. `over`: patience has run out. `known` is all that is known, for the person who is called.
    """

    step_id: str
    state: Literal["LANDED", "NOT_LANDED", "UNKNOWN"]
    result: StepResult | None = None
    error: ErrorInfo | None = None
    may_resend: bool = False
    over: bool = False
    after_seconds: float = 1.0
    known: JsonObject = Field(default_factory=dict[str, Any])


class CloseRequest(Record):
    """Ask for the way back: no step may land any more."""

    claim: Claim
    cause: Cause
    error: ErrorInfo | None = None
    actor: str | None = None


class EffectSeen(Record):
    """One execute row of the barrier."""

    step_id: str
    state: Literal["LANDED", "COMPENSATED", "TOMBSTONE"]
    transaction_id: int
    residue: str | None = None


class Closed(Record):
    """Answer of `close_intent`: how it stands and all effects that ever landed.

    `unknown`: steps that were sent somewhere and whose outcome is not known.
    `past_pivot`: a step that cannot be undone has landed, so the way back is shut.
    `pivot_unknown`: such a step may have landed, so the intent is not closed before that is known.
    `due_in_seconds`: the expiry that was named as cause has not come yet by the database's clock.
    """

    standing: Standing
    effects: tuple[EffectSeen, ...] = ()
    unknown: tuple[str, ...] = ()
    past_pivot: bool = False
    pivot_unknown: bool = False
    due_in_seconds: float | None = None


class SettleRequest(Record):
    """Ask for the final phase; `steps` is what the saga remembers and the tables do not hold."""

    claim: Claim
    steps: tuple[StepReport, ...] = ()


class ParkRequest(Record):
    """Put an intent to rest until an operator acts."""

    claim: Claim
    reason: ParkReason
    detail: JsonObject


DecisionId = Annotated[str, Field(pattern=NAME_PATTERN)]
IntentId = Annotated[str, Field(pattern=INTENT_ID_PATTERN)]


StepId = Annotated[str, Field(pattern=PLANNED_STEP_ID_PATTERN)]
Words = Annotated[str, Field(max_length=500, pattern=r"^[^\x00]*$")]
"""What a person says; no table holds a NUL."""


MESSAGE_BYTES_MAX: Final = 16_384
"""Of what a person sends: the words that it may hold need no more, and a run may hear 2,000 updates."""


class Message(Record):
    """What a person sends. `intent_id`, where it is said, must be the intent that runs: ids of workflows are reused."""

    model_config = ConfigDict(extra="forbid")

    intent_id: IntentId | None = None


class Decision(Message):
    """What a person decides about one step or, without `step_id`, about all that are asked."""

    decision_id: DecisionId
    plan_digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    verdict: Literal["approve", "deny"]
    approver: Annotated[str, Field(pattern=NAME_PATTERN)]
    step_id: StepId | None = None
    reason: Words = ""


class DecisionRequest(Record):
    """Input of `admit_decision`."""

    claim: Claim
    decision: Decision
    door: Literal["update", "signal"]


class DecisionAnswer(Record):
    """What became of a decision: whether it counts, and what is asked now."""

    accepted: bool
    error: ErrorInfo | None = None
    ask: Ask = Ask()


class Cancellation(Message):
    """Ask to stop an intent."""

    reason: Words = ""
    requested_by: Annotated[str, Field(pattern=NAME_PATTERN)] = "unknown"


class Resolution(Message):
    """What an operator decides about a parked intent: a verb for one step, or for the whole."""

    resolution_id: DecisionId
    verb: Literal["retry", "skip", "done", "close", "forward"]
    operator: Annotated[str, Field(pattern=NAME_PATTERN)]
    step_id: StepId | None = None
    evidence: Annotated[str, Field(max_length=2_000, pattern=r"^[^\x00]*$")] = ""


class ResolutionRequest(Record):
    """Input of `admit_resolution`."""

    claim: Claim
    resolution: Resolution


class ResolutionAnswer(Record):
    """What became of a resolution, and how the intent stands after it."""

    accepted: bool
    error: ErrorInfo | None = None
    standing: Standing | None = None
    residue: str | None = None


class MessageAnswer(Record):
    """Answer to an update: was it taken, and how does the intent stand?"""

    accepted: bool
    message: str
    error: ErrorInfo | None = None
    outcome: Outcome = Outcome.PENDING
