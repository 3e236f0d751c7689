"""A tool's contract: everything the engine must know about one write, as data.

The handlers that do the work are code and live in `activities`; this module holds what can be shown to an
agent, checked at the door, graded for risk and proved in a plan without running anything.
"""

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Generic, TypeVar

from pydantic import BaseModel

from contracts.reasons import Reason

In = TypeVar("In", bound=BaseModel)
Out = TypeVar("Out", bound=BaseModel)

TOOL_NAME: Final = re.compile(r"^[a-z]+(_[a-z]+){2,4}$")
TOOL_NAME_LENGTH_MAX: Final = 48
DAY_SECONDS: Final = 86_400


class SideEffect(StrEnum):
    """What a tool leaves in the world."""

    READ_ONLY = "READ_ONLY"
    REVERSIBLE = "REVERSIBLE"
    IRREVERSIBLE = "IRREVERSIBLE"


class Duty(StrEnum):
    """Which human decision a step needs before it runs; ordered by `rank`."""

    NONE = "NONE"
    ONE = "ONE"
    TWO = "TWO"

    @property
    def rank(self) -> int:
        """0, 1 or 2: how many people must agree."""
        return _DUTY_RANK[self]


_DUTY_RANK: Final = {Duty.NONE: 0, Duty.ONE: 1, Duty.TWO: 2}


class Dispatch(StrEnum):
    """Where the write happens; decides how its outcome can be known."""

    DATABASE = "DATABASE"
    """In our own PostgreSQL, in one transaction of at most one second: never unknown."""
    REMOTE = "REMOTE"
    """Somewhere else, over a wire: may be unknown."""


class Access(StrEnum):
    """What a step does to an object that an argument names."""

    READ = "READ"
    TAKE = "TAKE"
    HOLD = "HOLD"
    LOCK = "LOCK"
    PAY_INTO = "PAY_INTO"


class LockMode(StrEnum):
    """What a step needs of an object besides its own transaction, from before its intent's first write to its end."""

    NONE = "NONE"
    """The write is enough: what it leaves (a hold, a state) is seen by whoever comes next."""
    SHARED = "SHARED"
    """The object stays as it is; others may rely on that too."""
    EXCLUSIVE = "EXCLUSIVE"
    """Nobody else sees the object half done, or changed and perhaps changed back."""


class Idempotency(StrEnum):
    """How the place where the write happens recognises a repeat."""

    NATIVE = "native"
    HEADER = "header"
    LOOKUP = "lookup"
    NONE = "none"

    @property
    def knows_keys(self) -> bool:
        """True when sending the same key again, in its lifetime, lands at most once."""
        return self in (Idempotency.NATIVE, Idempotency.HEADER)


class WhenMoved(StrEnum):
    """What is done when a landed remote write, read back, differs in a way that others may have made."""

    REPORT = "report"
    """The saga goes on; the answer tells."""
    PARK = "park"
    """Nothing more lands before a person has looked."""


class Stability(StrEnum):
    """How far callers may rely on the contract."""

    EXPERIMENTAL = "experimental"
    STABLE = "stable"
    DEPRECATED = "deprecated"


@dataclass(frozen=True, kw_only=True)
class Description:
    """What an agent reads; five short sentences, each with one job."""

    does: str
    use_when: str
    not_when: str
    needs: str
    returns: str

    def text(self) -> str:
        """Join the parts as agents see them."""
        return (
            f"{self.does} Use when {self.use_when} Not when {self.not_when} Needs: {self.needs} Returns: {self.returns}"
        )


@dataclass(frozen=True, kw_only=True)
class ResourceUse:
    """An argument that names an object, what is done to it, and in which states that is allowed."""

    argument: str
    kind: str
    access: Access
    states: frozenset[str]
    state_after: str | None = None
    lock: LockMode = LockMode.NONE


@dataclass(frozen=True, kw_only=True)
class ObjectMade:
    """An object that a landed step brings into the world, in `state`; `output` is the field that gives its id.

    `amount` is the argument that says how much the object holds: what is taken from it later, together, is at most
    that.
    """

    output: str
    kind: str
    state: str
    amount: str | None = None


@dataclass(frozen=True, kw_only=True)
class AmountUse:
    """The argument that says how much, the one that says which currency, and whose funds must suffice.

    `exactly_of` names an argument with an object whose whole amount this has to be, no more and no less.
    """

    argument: str
    currency: str
    taken_from: str | None = None
    paid_into: str | None = None
    exactly_of: str | None = None


@dataclass(frozen=True, kw_only=True)
class Confirmation:
    """What makes a tool's reservation final, once every other step has landed; the tool itself then only reserves.

    `expires_at` is the field of its output that says until when the reservation stands, by the clock of who keeps it;
    `lasts` the argument that says for how many seconds, if one does.
    """

    does: str
    output: type[BaseModel]
    expires_at: str
    lasts: str | None = None


@dataclass(frozen=True, kw_only=True)
class Example:
    """A sample call: what a user says and the arguments it becomes."""

    utterance: str
    arguments: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class ToolContract(Generic[In, Out]):
    """One tool, by major version. Field meanings are DESIGN.md section 6; times are in seconds."""

    name: str
    title: str
    description: Description
    side_effect: SideEffect
    input: type[In]
    output: type[Out]
    major: int = 1
    stability: Stability = Stability.STABLE
    dispatch: Dispatch = Dispatch.DATABASE
    may_refuse: bool = True
    reasons: tuple[Reason, ...] = ()
    resources: tuple[ResourceUse, ...] = ()
    makes: tuple[ObjectMade, ...] = ()
    amount: AmountUse | None = None
    rows_argument: str | None = None
    identity_fields: tuple[str, ...] | None = None
    idempotency: Idempotency = Idempotency.NATIVE
    compensates_by: str | None = None
    """In plain words, what compensation does; None for READ_ONLY and IRREVERSIBLE tools."""
    confirms: Confirmation | None = None
    """None: what the tool does is final as soon as it is done."""
    preconditions: tuple[str, ...] = ()
    postconditions: tuple[str, ...] = ()
    duty: Duty = Duty.NONE
    timeout_seconds: float = 5.0
    attempts_max: int = 10
    downstream: str = ""
    """REMOTE: the system that it calls; compensations share one budget there."""
    key_lifetime_seconds: int = 0
    """REMOTE, native or header: for how long the downstream recognises a key; after it nothing is sent again."""
    in_flight_seconds: int = 0
    """REMOTE: for how long a request that was sent may still land."""
    patience_seconds: int = 0
    """REMOTE: for how long an unknown outcome is looked up before a person is called."""
    cancel_by_key: bool = False
    """REMOTE: the downstream can be told never to carry out a key, whether or not it has seen it."""
    compensations_per_minute: int = 0
    """REMOTE and REVERSIBLE: how many compensations the downstream is sent a minute, by all intents together."""
    when_moved: WhenMoved = WhenMoved.REPORT
    """REMOTE, with a `verify` handler: what a difference that others may have made comes to."""
    duplicate_window_seconds: int = DAY_SECONDS
    sensitive_fields: frozenset[str] = field(default_factory=frozenset[str])
    approval_state: tuple[str, ...] = ()
    examples: tuple[Example, ...] = ()
    owner: str = ""

    @property
    def wire_name(self) -> str:
        """Name on the wire and of the activity: `freeze_account_funds@1`."""
        return f"{self.name}@{self.major}"

    @property
    def compensate_name(self) -> str:
        """Name of the compensating activity."""
        return f"{self.wire_name}.compensate"

    @property
    def writes(self) -> bool:
        """True when a landed step leaves an effect."""
        return self.side_effect is not SideEffect.READ_ONLY

    @property
    def is_remote(self) -> bool:
        """True when its outcome may be unknown: it writes over a wire."""
        return self.writes and self.dispatch is Dispatch.REMOTE

    @property
    def lookup_name(self) -> str:
        """Name of the activity that looks an unknown outcome up."""
        return f"{self.wire_name}.lookup"


AnyContract = ToolContract[Any, Any]
