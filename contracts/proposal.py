"""From what an agent posted to what the engine may admit: one pure check for all doors, for admission and for tests.

Everything that can be told from the intent and the contracts alone is told here, all wrong fields at once, before a
row, a key or a workflow exists. What a step's arguments are after it is byte for byte what was sent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from contracts import keys
from contracts.base import JsonObject
from contracts.binding import Binding
from contracts.canonical import canonical_form
from contracts.confirmation import confirmations
from contracts.graph import Node, ordered
from contracts.intent import OPEN, Caller, Intent, OpenIntent
from contracts.late import late_arguments
from contracts.objects import literals
from contracts.proof import Proof, prove_steps, require_sound
from contracts.reader import read_intent, read_open
from contracts.registry import Registry
from contracts.tool import AnyContract, SideEffect
from contracts.wire import decode_object


@dataclass(frozen=True)
class ProposedStep:
    """One call, checked; `arguments` are exactly as sent, `needs` is complete, `position` names it in the keys."""

    step_id: str
    contract: AnyContract
    arguments: JsonObject
    needs: tuple[str, ...]
    bindings: tuple[Binding, ...]
    position: int
    late: tuple[str, ...] = ()
    stands_for: str | None = None
    """The step whose fallback it is."""

    def in_place(self) -> Self:
        """Give the same call under the id of the step that it stands for."""
        return replace(self, step_id=self.stands_for or self.step_id, stands_for=None)

    @property
    def tool(self) -> str:
        """Wire name of its contract."""
        return self.contract.wire_name

    @property
    def side_effect(self) -> SideEffect:
        """What it leaves in the world."""
        return self.contract.side_effect

    @property
    def may_refuse(self) -> bool:
        """True when it can say no: for business reasons, or because of what it is graded by late."""
        return self.contract.may_refuse or bool(self.late)

    @property
    def writes(self) -> bool:
        """True when a landed step leaves an effect."""
        return self.contract.writes

    @property
    def is_pivot(self) -> bool:
        """True when nothing before it may be compensated once it landed."""
        return self.side_effect is SideEffect.IRREVERSIBLE

    @property
    def resources(self) -> tuple[str, ...]:
        """`kind:id` of the objects that its literals name."""
        return tuple(f"{kind}:{object_id}" for kind, object_id in literals(self, self.contract))


@dataclass(frozen=True)
class Proposal:
    """An intent that is well formed and proved sound; steps in topological order, ties as posted."""

    intent: Intent | OpenIntent
    caller: Caller
    steps: tuple[ProposedStep, ...]
    canonical_steps: list[JsonObject]
    intent_key: str
    intent_id: str
    body_digest: str
    lineage_digest: str
    """The same for every occurrence and attempt of one wish."""
    attempt: int
    proof: Proof


def propose_body(
    body: bytes,
    caller: Caller,
    registry: Registry,
    *,
    attempt: int = 1,
    session_id: str | None = None,
    business_reference: str | None = None,
) -> Proposal:
    """Do `propose` for a door that reads bytes: even of a number that no JSON reader keeps it says what is allowed."""
    return propose(
        decode_object(body),
        caller,
        registry,
        attempt=attempt,
        session_id=session_id,
        business_reference=business_reference,
    )


def propose(
    intent: JsonObject,
    caller: Caller,
    registry: Registry,
    *,
    attempt: int = 1,
    session_id: str | None = None,
    business_reference: str | None = None,
) -> Proposal:
    """Check an intent completely and work out its identity; the same input gives the same proposal for ever.

    `session_id` and `business_reference` are what the authenticated harness says: the first overrides the intent's
    own, the second alone is part of the key. A reference inside the intent was written by a model: it is data, in
    `body_digest` but not in the key.
    Raises: SagaError, phase validation, with every wrong field: BODY_MALFORMED, BODY_TOO_LARGE, TOOL_UNKNOWN (if any
    tool is), ARGUMENTS_INVALID or PLAN_UNSOUND.
    """
    given = intent if session_id is None else {**intent, "session_id": session_id}
    if OPEN in given:
        return _propose_open(read_open(given), caller, business_reference)
    model, nodes = read_intent(given, registry)
    canonical = canonical_form(nodes)
    key = keys.intent_key(
        tenant=caller.tenant,
        principal=caller.principal,
        session_id=model.session_id,
        canonical_steps=canonical.identity,
        business_reference=business_reference,
        occurrence=model.occurrence,
        attempt=attempt,
    )
    lineage = keys.lineage_digest(
        tenant=caller.tenant,
        principal=caller.principal,
        session_id=model.session_id,
        canonical_steps=canonical.identity,
        business_reference=business_reference,
    )
    steps = proposed_steps(ordered(nodes), canonical.positions)
    steps += confirming_steps(ordered(nodes))
    intent_id = keys.intent_id(key)
    proof = prove_steps(intent_id, steps, registry)
    require_sound(proof, [node.step_id for node in nodes])
    return Proposal(
        intent=model,
        caller=caller,
        steps=steps,
        canonical_steps=canonical.identity,
        intent_key=key,
        intent_id=intent_id,
        body_digest=keys.digest([canonical.full, model.business_reference]),
        lineage_digest=lineage,
        attempt=attempt,
        proof=proof,
    )


def proposed_steps(nodes: Sequence[Node], positions: Mapping[str, int]) -> tuple[ProposedStep, ...]:
    """Make steps of what was read, in the order of `nodes`, each with its fallback behind it."""
    firsts = {node.step_id: node.contract for node in nodes}
    others = firsts | {node.step_id: node.fallback.contract for node in nodes if node.fallback is not None}
    found: list[ProposedStep] = []
    for node in nodes:
        for call in (node,) if node.fallback is None else (node, node.fallback):
            late = [late_arguments(call.contract, call.arguments, contracts) for contracts in (firsts, others)]
            found.append(
                ProposedStep(
                    step_id=call.step_id,
                    contract=call.contract,
                    arguments=call.arguments,
                    needs=call.needs,
                    bindings=call.bindings,
                    position=positions[node.step_id],
                    late=tuple(sorted({*late[0], *late[1]})),
                    stands_for=None if call is node else node.step_id,
                )
            )
    return tuple(found)


def confirming_steps(nodes: Sequence[Node]) -> tuple[ProposedStep, ...]:
    """The steps that the engine appends; they are no part of the identity, which the steps that they confirm are."""
    made = confirmations(nodes)
    return proposed_steps(made, {node.step_id: len(nodes) + number for number, node in enumerate(made)})


def _propose_open(model: OpenIntent, caller: Caller, business_reference: str | None) -> Proposal:
    """Work out the identity of an intent whose steps are not known yet: its name stands for them."""
    canonical: list[JsonObject] = [{OPEN: model.open}]
    lineage = keys.lineage_digest(
        tenant=caller.tenant,
        principal=caller.principal,
        session_id=model.session_id,
        canonical_steps=canonical,
        business_reference=business_reference,
    )
    key = keys.intent_key(
        tenant=caller.tenant,
        principal=caller.principal,
        session_id=model.session_id,
        canonical_steps=canonical,
        business_reference=business_reference,
        occurrence=model.occurrence,
        attempt=1,
    )
    intent_id = keys.intent_id(key)
    return Proposal(
        intent=model,
        caller=caller,
        steps=(),
        canonical_steps=canonical,
        intent_key=key,
        intent_id=intent_id,
        body_digest=keys.digest([canonical, model.business_reference]),
        lineage_digest=lineage,
        attempt=1,
        proof=prove_steps(intent_id, (), {}),
    )
