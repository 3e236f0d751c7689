"""Adding a step to an open intent: judged as admission judges a plan, in one transaction, write-once per step id.

The intent's row is locked, and every step before it is done: what the new one is bound to is known, and the objects
that are read show all that was done (ADR 0013). No is an answer and claims nothing but one audit row.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, LiteralString

from activities import audit
from activities.admission import SWITCHES, check_switches
from activities.barrier import validated
from activities.database import Database, Row, Transaction
from activities.grading import NEAR, filled, outputs_of
from activities.near import alike, ask_alike, lock_near
from activities.objects import read_objects
from activities.standing import caller_of, locked, standing_of
from activities.tool import Pack
from contracts.base import JsonObject
from contracts.binding import resolve
from contracts.errors import Phase, SagaError
from contracts.growth import Growth, grow, request_digest, seal
from contracts.near import near_keys
from contracts.opening import AddAnswer, AddRequest
from contracts.plan import Plan, PlannedStep
from contracts.planning import plan_added
from contracts.proposal import ProposedStep
from contracts.reasons import Reason
from contracts.registry import Registry
from contracts.risk import Policy
from contracts.saga import IntentPhase, Standing
from contracts.tool import Duty

_ASKED: Final[LiteralString] = """
select i.request, i.lineage_digest, i.deadline_at < now() as overdue, a.request_digest
from backstay.intents i
left join backstay.added_steps a on a.intent_key = i.intent_key and a.step_id = %(step_id)s
where i.intent_key = %(intent_key)s
"""
_GROW: Final[LiteralString] = """
select backstay.grow_plan(%(intent_key)s, %(step_id)s, %(request_digest)s, %(plan)s, %(plan_digest)s, %(proof)s,
    %(proof_digest)s, %(tools)s, %(risk_level)s, %(window)s) as grown
"""
STEP_ID_LENGTH_MAX: Final = 48


@dataclass(frozen=True)
class _Locked:
    """An open intent under its lock, and what the tables know of the step that is asked for."""

    row: Row
    asked: Row
    plan: Plan
    standing: Standing
    effects: list[Row]


@dataclass(frozen=True)
class Adding:
    """Everything that an added step is judged by."""

    database: Database
    registry: Registry
    packs: tuple[Pack, ...]
    policy: Policy

    async def admit_step(self, request: AddRequest) -> AddAnswer:
        """Append a step to the plan, seal it, or both; or say why not. A repeat gets the same answer.

        Raises SagaError: INTENT_NOT_FOUND, RUN_STALE; transient ones.
        """
        return await self.database.run(lambda transaction: self._admit(transaction, request))

    async def _admit(self, transaction: Transaction, request: AddRequest) -> AddAnswer:
        step = request.step
        asked_for = await transaction.ask(
            _ASKED, {"intent_key": request.claim.intent_key, "step_id": None if step is None else _id_of(step)}
        )
        row, decisions, effects = await locked(transaction, request.claim)
        standing, asked = standing_of(row, decisions), await asked_for.one() or {}
        try:
            if standing.plan is None or not standing.plan.opened:
                raise _not_open(standing)
            seen = _Locked(row, asked, standing.plan, standing, effects)
            return await self._judged(transaction, request, seen)
        except SagaError as error:
            await self._note(transaction, row, step, error)
            return AddAnswer(accepted=False, error=error.info)

    async def _judged(self, transaction: Transaction, request: AddRequest, seen: _Locked) -> AddAnswer:
        """Say yes, or that something else comes first. Raises SagaError for a no, with nothing written."""
        step, plan = request.step, seen.plan
        is_known = step is not None and seen.asked["request_digest"] is not None
        if is_known and seen.asked["request_digest"] != request_digest(step or {}):
            raise _reused(plan, step or {})
        _check_standing(seen, is_repeat=plan.sealed if step is None else is_known)
        outputs = await outputs_of(transaction, plan, seen.effects)
        is_behind = any(one.step_id not in outputs for one in plan.steps if step is None or one.step_id != _id_of(step))
        if is_behind and not plan.sealed:
            return AddAnswer(accepted=False, standing=seen.standing)
        if step is not None and not is_known:
            grown = await self._grown(transaction, seen, step, outputs, final=request.final)
        elif request.final and not plan.sealed:
            grown = await self._sealed(transaction, seen)
        else:
            grown = plan
        standing = seen.standing.model_copy(update={"plan": grown, "plan_digest": grown.digest})
        return AddAnswer(accepted=True, standing=standing)

    async def _grown(
        self,
        transaction: Transaction,
        seen: _Locked,
        step: JsonObject,
        outputs: Mapping[str, JsonObject],
        *,
        final: bool,
    ) -> Plan:
        plan = seen.plan
        growth = grow(plan, step, self.registry, final=final)
        planned = await self._planned(transaction, seen, growth, outputs)
        steps = (*plan.steps, planned, *self._confirmations(seen, growth))
        grown = plan.changed(steps=steps, sealed=final, proof_digest=growth.proof.digest)
        return await self._store(transaction, seen, grown, growth.proof.text, growth.added, step)

    async def _sealed(self, transaction: Transaction, seen: _Locked) -> Plan:
        plan, growth = seen.plan, seal(seen.plan, self.registry)
        if growth is None:
            return await self._store(transaction, seen, plan.changed(sealed=True), None)
        steps = (*plan.steps, *self._confirmations(seen, growth))
        grown = plan.changed(steps=steps, sealed=True, proof_digest=growth.proof.digest)
        return await self._store(transaction, seen, grown, growth.proof.text)

    def _confirmations(self, seen: _Locked, growth: Growth) -> list[PlannedStep]:
        """Plan what confirms the steps of a plan that is sealed with this; it touches nothing and asks nobody."""
        caller = caller_of(seen.row)
        every = (*growth.steps, *growth.confirming)
        return [
            plan_added(every[: number + 1], caller=caller, objects={}, policy=self.policy, alike={})
            for number in range(len(growth.steps), len(every))
        ]

    async def _planned(
        self, transaction: Transaction, seen: _Locked, growth: Growth, outputs: Mapping[str, JsonObject]
    ) -> PlannedStep:
        """Judge a step with all that it is bound to; what is graded by is written into the plan."""
        caller, added = caller_of(seen.row), growth.added
        validated(added.contract, resolve(added.arguments, outputs))
        known = replaced(growth, filled(added, outputs))
        check_switches(await transaction.all(SWITCHES), caller, known[-1:])
        near = near_keys(caller, known, json.loads(seen.asked["request"]).get("business_reference"))
        mine = {added.step_id: near[added.step_id]} if added.writes else {}
        await lock_near(transaction, mine)
        asked = await ask_alike(transaction, known, seen.asked["lineage_digest"], mine)
        objects = await read_objects(transaction, self.packs, known)
        before = await alike(asked, mine)
        planned = plan_added(known, caller=caller, objects=objects, policy=self.policy, alike=before)
        if planned.duty is not Duty.NONE:
            raise _asks_people(planned, before.get(planned.step_id))
        values = {"intent_key": seen.plan.intent_key, "near_keys": list(mine.values()), "step_ids": list(mine)}
        await transaction.later(NEAR, values)
        return planned

    async def _store(  # noqa: PLR0917 - what is stored, and what of it was asked for
        self,
        transaction: Transaction,
        seen: _Locked,
        plan: Plan,
        proof: str | None,
        new: ProposedStep | None = None,
        step: JsonObject | None = None,
    ) -> Plan:
        stored = await transaction.one("select proof from backstay.intents where intent_key = %s", (plan.intent_key,))
        row = await transaction.one(
            _GROW,
            {
                "intent_key": plan.intent_key,
                "step_id": None if step is None else _id_of(step),
                "request_digest": None if step is None else request_digest(step),
                "plan": plan.model_dump_json(),
                "plan_digest": plan.digest,
                "proof": proof or (stored or {})["proof"],
                "proof_digest": plan.proof_digest,
                "tools": list(plan.tools),
                "risk_level": plan.risk_level,
                "window": 0 if new is None else new.contract.duplicate_window_seconds,
            },
        )
        if row is None or not row["grown"]:
            raise AssertionError(f"the plan of {plan.intent_id} does not continue what is stored under our lock")
        added = plan.by_id[new.step_id] if new is not None else None
        await audit.append(
            transaction,
            "sealed" if added is None else "step_added",
            caller=caller_of(seen.row),
            intent_key=plan.intent_key,
            step_id=added.step_id if added else None,
            tool=added.tool if added else None,
            arguments=audit.masked(added.arguments, self.registry[added.tool].sensitive_fields) if added else None,
            policy_digest=self.policy.digest,
            result={
                "plan_digest": plan.digest,
                "proof_digest": plan.proof_digest,
                "level": added.level if added else plan.level,
                "sealed": plan.sealed,
            },
        )
        return plan

    async def _note(self, transaction: Transaction, row: Row, step: JsonObject | None, error: SagaError) -> None:
        await audit.append(
            transaction,
            "add_refused",
            caller=caller_of(row),
            intent_key=row["intent_key"],
            result={"step_id": None if step is None else _id_of(step), "reason": error.reason, "message": str(error)},
        )


def replaced(growth: Growth, arguments: JsonObject) -> tuple[ProposedStep, ...]:
    """The steps with the last one's arguments as they are known now."""
    return (*growth.steps[:-1], replace(growth.added, arguments=arguments, late=()))


def _id_of(step: JsonObject) -> str:
    """What the sender calls the step, short enough to be looked for; whether it is an id, is judged with the rest."""
    return str(step.get("step_id"))[:STEP_ID_LENGTH_MAX].replace("\x00", "")


def _check_standing(seen: _Locked, *, is_repeat: bool) -> None:
    """Refuse where nothing is taken any more; a repeat is answered as long as its intent is open at all."""
    standing, intent_id = seen.standing, seen.plan.intent_id
    if standing.parked is not None:
        raise SagaError(Reason.INTENT_PARKED, f"Intent {intent_id} is parked: {standing.parked}.")
    if standing.phase is not IntentPhase.ADMITTED:
        raise SagaError(Reason.TOO_LATE, f"Intent {intent_id} is {standing.phase}; no step is added any more.")
    if is_repeat:
        return
    if seen.plan.sealed:
        raise SagaError(Reason.TOO_LATE, f"Intent {intent_id} was committed; no step is added any more.")
    if seen.asked["overdue"]:
        raise SagaError(Reason.DEADLINE_EXCEEDED, f"The deadline of intent {intent_id} has passed.")


def _not_open(standing: Standing) -> SagaError:
    return SagaError(
        Reason.TOO_LATE,
        f"Intent {standing.intent_id} is no open one: its steps were all posted with it.",
        details={"intent_id": standing.intent_id},
        suggestion="Post another intent, or open one.",
    )


def _reused(plan: Plan, step: JsonObject) -> SagaError:
    return SagaError(
        Reason.KEY_REUSED,
        f"Intent {plan.intent_id} has a step {_id_of(step)!r} with another tool or other arguments.",
        details={"step_id": _id_of(step)},
        phase=Phase.VALIDATION,
        suggestion="Give the step an id of its own.",
    )


def _asks_people(planned: PlannedStep, earlier: str | None) -> SagaError:
    because = "; ".join(planned.because)
    return SagaError(
        Reason.DUTY_NOT_AVAILABLE if earlier is None else Reason.POSSIBLE_DUPLICATE,
        f"Step {planned.step_id!r} needs a person's decision ({because}); what landed before it would be held"
        " while people decide, so an open intent does not ask.",
        details={"step_id": planned.step_id, "because": list(planned.because), "duplicate_of": earlier},
        phase=Phase.APPROVAL,
        suggestion="Post it as an intent of its own, which asks before anything is written.",
    )
