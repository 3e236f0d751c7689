-- The invariants of DESIGN.md section 9, as queries. Each one returns the rows that break it: no row means it holds.
-- `backstay check` runs this file; an auditor needs only psql and the role backstay_readonly:
--
--     psql -X -a -v ON_ERROR_STOP=1 -c 'set role backstay_readonly' -f activities/invariants.sql "$DATABASE_URL"
--
-- Every "(0 rows)" is an invariant that holds. The format is fixed: a line `-- name: NUMBER WORD`, comment lines, one
-- statement with the columns subject and detail, ended by a semicolon at the end of a line. `-- not yet: ...` names
-- what this release cannot check. "At quiet" means: rows of open intents are judged only where that makes sense.

-- name: 1a money_conserved
-- All balances of a currency sum up to zero: what customers have, system accounts lack.
select currency as subject, format('balances sum up to %s cents', sum(balance_cents)) as detail
from ledger.account_balances group by currency having sum(balance_cents) <> 0;

-- name: 1b balances_equal_movements
-- The stored balance of a customer is what the movements say, to the cent.
select a.account_id as subject, format('stored %s, movements say %s', a.balance_cents, coalesce(sum(m.change_cents), 0)) as detail
from ledger.accounts a left join ledger.account_movements m on m.account_id = a.account_id
where a.balance_cents is not null
group by a.account_id, a.balance_cents having a.balance_cents <> coalesce(sum(m.change_cents), 0);

-- name: 1c available_not_negative
select account_id as subject, format('balance %s, held %s', balance_cents, held_cents) as detail
from ledger.accounts where principal is not null
    and (balance_cents is null or held_cents is null or held_cents < 0 or balance_cents - held_cents < 0);

-- name: 1d held_equals_open_holds
select a.account_id as subject, format('held %s, open holds say %s', a.held_cents, coalesce(sum(h.amount_cents), 0)) as detail
from ledger.accounts a left join ledger.holds h on h.account_id = a.account_id and h.state = 'OPEN'
where a.held_cents is not null
group by a.account_id, a.held_cents having a.held_cents <> coalesce(sum(h.amount_cents), 0);

-- name: 1e movements_between_matching_accounts
-- Both accounts exist, are two, of the movement's tenant and currency, and the amount is positive.
select m.movement_id as subject, format('%s to %s, %s cents %s', m.debit_account, m.credit_account, m.amount_cents, m.currency) as detail
from ledger.movements m
left join ledger.accounts payer on payer.account_id = m.debit_account and payer.tenant = m.tenant and payer.currency = m.currency
left join ledger.accounts payee on payee.account_id = m.credit_account and payee.tenant = m.tenant and payee.currency = m.currency
where payer.account_id is null or payee.account_id is null or m.debit_account = m.credit_account or m.amount_cents <= 0;

-- name: 1f closed_accounts_rest
-- A closed account holds nothing and took no movement that began after its closing.
select a.account_id as subject, format('closed, held %s, last movement %s', a.held_cents, max(m.movement_id)) as detail
from ledger.accounts a left join ledger.account_movements m on m.account_id = a.account_id and m.booked_at > a.closed_at
where a.state = 'CLOSED'
group by a.account_id, a.held_cents having coalesce(a.held_cents, 0) <> 0 or count(m.movement_id) > 0;

-- name: 1g reversed_once_exactly
-- A reversal is the exact opposite of a credit or transfer, and the only one.
select r.movement_id as subject, format('reverses %s', r.reverses) as detail
from ledger.movements r left join ledger.movements m on m.movement_id = r.reverses
where r.operation_type = 'REVERSAL' and (
    m.movement_id is null or m.operation_type not in ('CREDIT', 'TRANSFER')
    or (m.debit_account, m.credit_account, m.amount_cents, m.currency)
        is distinct from (r.credit_account, r.debit_account, r.amount_cents, r.currency)
    or exists (select from ledger.movements o where o.reverses = r.reverses and o.movement_id <> r.movement_id));

-- name: 2a captures_have_their_hold
-- A hold is CAPTURED if and only if one capture of exactly the captured amount says so; never more than was held.
select coalesce(c.capture_id, h.hold_id) as subject,
    format('hold %s is %s over %s, captured %s; capture of %s', h.hold_id, h.state, h.amount_cents, h.captured_cents, c.amount_cents) as detail
from ledger.holds h full join ledger.captures c on c.hold_id = h.hold_id
where (h.state is not distinct from 'CAPTURED') <> (c.capture_id is not null)
    or c.amount_cents <> h.captured_cents or h.captured_cents > h.amount_cents
    or c.account_id <> h.account_id or c.currency <> h.currency or c.tenant <> h.tenant;

-- name: 2b captures_equal_movements
-- One CAPTURE movement per capture, and its refunds are its REFUND movements, the opposite way.
select c.capture_id as subject, format('captured %s, refunded %s; movements say %s and %s', c.amount_cents, c.refunded_cents,
    coalesce(sum(m.amount_cents) filter (where m.operation_type = 'CAPTURE'), 0),
    coalesce(sum(m.amount_cents) filter (where m.operation_type = 'REFUND'), 0)) as detail
from ledger.captures c left join ledger.movements m on m.capture_id = c.capture_id
group by c.capture_id, c.amount_cents, c.refunded_cents, c.account_id, c.credit_account, c.transaction_id
having count(*) filter (where m.operation_type = 'CAPTURE' and m.debit_account = c.account_id
        and m.credit_account = c.credit_account and m.transaction_id = c.transaction_id) <> 1
    or coalesce(sum(m.amount_cents) filter (where m.operation_type = 'CAPTURE'), 0) <> c.amount_cents
    or coalesce(sum(m.amount_cents) filter (where m.operation_type = 'REFUND'), 0) <> c.refunded_cents
    or count(*) filter (where m.operation_type = 'REFUND'
        and (m.debit_account, m.credit_account) is distinct from (c.credit_account, c.account_id)) > 0
    or c.refunded_cents > c.amount_cents;

-- name: 2c no_open_hold_past_its_saga
-- An open hold whose freeze is undone or fenced, whose intent ended otherwise than committed, or whose intent
-- committed although a later step of it was to capture the hold. A freeze alone legitimately leaves its hold, and so
-- does a compensation that an operator skipped or did by other means.
select h.hold_id as subject, format('open; freeze %s of intent %s is %s, phase %s', e.step_id, i.intent_id, e.state, i.phase) as detail
from ledger.holds h
left join backstay.effects e on e.transaction_id = h.transaction_id and e.direction = 'execute'
left join backstay.intents i on i.intent_key = e.intent_key
where h.state = 'OPEN' and (
    i.intent_key is null
    or e.state <> 'LANDED' and not exists (
        select from backstay.resolutions r
        where r.intent_key = e.intent_key and r.step_id = e.step_id and r.verb in ('skip', 'done'))
    or e.state = 'LANDED' and i.phase in ('NOT_APPLIED', 'COMPENSATED')
    or i.phase = 'COMMITTED' and exists (
        select from jsonb_array_elements(i.plan::jsonb -> 'steps') as step
        where step -> 'arguments' -> 'hold_id'
            in (to_jsonb(h.hold_id), jsonb_build_object('$from', e.step_id || '.hold_id'))));

-- name: 2d no_hold_open_long_past_expiry
-- The sweep has an hour; until it comes by, an overdue hold cannot be captured anyway.
select hold_id as subject, format('open, expired at %s', expires_at) as detail
from ledger.holds where state = 'OPEN' and expires_at < now() - interval '1 hour';

-- name: 3a committed_intents_live_whole
-- A committed intent has every writing step of its plan landed, once, and nothing else; a used fallback stands for its
-- step.
select i.intent_id as subject, format('step %s is planned, %s live', p.step_id, coalesce(e.live, 0)) as detail
from backstay.intents i
cross join lateral (
    select step ->> 'step_id' as step_id from jsonb_array_elements(i.plan::jsonb -> 'steps') as step
    where step ->> 'side_effect' <> 'READ_ONLY' and step ->> 'stands_for' is null
) p
left join (
    select intent_key, regexp_replace(step_id, '[.]fallback$', '') as step_id,
        count(*) filter (where state = 'LANDED') as live
    from backstay.effects where direction = 'execute' group by 1, 2
) e on e.intent_key = i.intent_key and e.step_id = p.step_id
where i.phase = 'COMMITTED' and e.live is distinct from 1;

-- name: 3b committed_intents_have_no_other_effects
-- The tombstone of a step whose fallback was used, or tried, is none.
select i.intent_id as subject, format('%s %s is %s', e.direction, e.step_id, e.state) as detail
from backstay.intents i join backstay.effects e on e.intent_key = i.intent_key
where i.phase = 'COMMITTED' and (e.direction <> 'execute' or (e.state <> 'LANDED' and not (
    e.state = 'TOMBSTONE' and exists (
        select from backstay.effects f
        where f.step_key = e.intent_key || '/' || e.step_id || '.fallback/execute' and f.state = 'LANDED'))) or not exists (
    select from jsonb_array_elements(i.plan::jsonb -> 'steps') as step
    where step ->> 'step_id' = e.step_id and step ->> 'side_effect' <> 'READ_ONLY'));

-- name: 3c ended_intents_live_in_nothing
-- Nothing of a compensated or not applied intent is live, and "not applied" never had an effect at all.
select i.intent_id as subject, format('%s, but step %s is %s', i.phase, e.step_id, e.state) as detail
from backstay.intents i join backstay.effects e on e.intent_key = i.intent_key and e.direction = 'execute'
where i.phase = 'COMPENSATED' and e.state = 'LANDED' or i.phase = 'NOT_APPLIED' and e.state <> 'TOMBSTONE';

-- name: 3d parked_or_under_way
-- An open intent that is not parked is within its deadline, and an hour to be closed.
select intent_id as subject, format('%s since %s, deadline %s, not parked', phase, admitted_at, deadline_at) as detail
from backstay.intents where final_at is null and parked_reason is null and deadline_at < now() - interval '1 hour';

-- name: 3e forward_minus_compensated
-- A step executes under one key. While it is live nothing has undone it; when it is compensated, one compensation has,
-- or an operator said that it was done or skipped.
select e.step_key as subject, format('%s, undone %s times', e.state, c.undone) as detail
from backstay.effects e
cross join lateral (
    select count(*) as undone from backstay.effects c where c.intent_key = e.intent_key and c.step_id = e.step_id
        and c.direction = 'compensate' and c.response::jsonb ->> 'undone' = 'true'
) c
where e.direction = 'execute' and (
    e.step_key <> e.intent_key || '/' || e.step_id || '/execute'
    or e.state <> 'COMPENSATED' and c.undone <> 0
    or e.state = 'COMPENSATED' and c.undone <> 1 and not (c.undone = 0 and exists (
        select from backstay.resolutions r
        where r.intent_key = e.intent_key and r.step_id = e.step_id and r.verb in ('skip', 'done'))));

-- name: 3f movements_have_their_effect
-- Every movement but an opening is the work of one effect, of the tool that books such movements.
with books (tool, direction, operation_type) as (values
    ('debit_frozen_funds', 'execute', 'CAPTURE'), ('debit_frozen_funds', 'compensate', 'REFUND'),
    ('refund_captured_debit', 'execute', 'REFUND'),
    ('credit_customer_account', 'execute', 'CREDIT'), ('credit_customer_account', 'compensate', 'REVERSAL'),
    ('transfer_customer_funds', 'execute', 'TRANSFER'), ('transfer_customer_funds', 'compensate', 'REVERSAL'),
    ('reverse_ledger_movement', 'execute', 'REVERSAL'),
    ('adjust_account_balance', 'execute', 'ADJUSTMENT'))
select m.movement_id as subject, format('%s, effect %s is %s of %s, %s', m.operation_type, m.transaction_id, e.direction, e.tool, e.state) as detail
from ledger.movements m
left join backstay.effects e on e.transaction_id = m.transaction_id and e.step_key = m.step_key and e.state <> 'TOMBSTONE'
left join backstay.intents i on i.intent_key = e.intent_key and i.intent_id = m.intent_id
left join books b on b.tool = split_part(e.tool, '@', 1) and b.direction = e.direction and b.operation_type = m.operation_type
where m.operation_type <> 'OPENING' and (i.intent_key is null or b.tool is null);

-- name: 3g effects_have_their_rows
-- Every landed effect of a ledger tool wrote its one movement, hold, capture or lock: none is missing.
select e.step_key as subject, format('%s of %s is %s without its ledger row', e.direction, e.tool, e.state) as detail
from backstay.effects e
cross join lateral (select split_part(e.tool, '@', 1) as name) t
where e.direction = 'execute' and e.state <> 'TOMBSTONE' and (
    t.name = 'freeze_account_funds'
        and not exists (select from ledger.holds h where h.transaction_id = e.transaction_id)
    or t.name = 'debit_frozen_funds'
        and not exists (select from ledger.captures c where c.transaction_id = e.transaction_id)
    or t.name = 'lock_customer_account'
        and not exists (select from ledger.locks l where l.transaction_id = e.transaction_id)
    or t.name in ('debit_frozen_funds', 'refund_captured_debit', 'credit_customer_account', 'transfer_customer_funds',
            'reverse_ledger_movement', 'adjust_account_balance')
        and not exists (select from ledger.movements m where m.transaction_id = e.transaction_id));

-- name: 3h holds_captures_and_locks_have_their_effect
select r.name as subject, format('effect %s is %s of %s, %s', r.transaction_id, e.direction, e.tool, e.state) as detail
from (
    select hold_id as name, transaction_id, 'freeze_account_funds' as tool from ledger.holds
    union all select capture_id, transaction_id, 'debit_frozen_funds' from ledger.captures
    union all select 'lock of ' || account_id, transaction_id, 'lock_customer_account' from ledger.locks
) r
left join backstay.effects e on e.transaction_id = r.transaction_id and e.direction = 'execute'
    and e.state <> 'TOMBSTONE' and split_part(e.tool, '@', 1) = r.tool
where e.step_key is null;

-- name: 3i compensated_effects_are_undone
-- What is called compensated is undone in the books, unless an operator said otherwise: the hold is no longer open,
-- the capture is given back whole, the movement is reversed, the lock is lifted.
select e.step_key as subject, format('compensated, but the work of %s stands', e.tool) as detail
from backstay.effects e
left join ledger.holds h on h.transaction_id = e.transaction_id
left join ledger.captures c on c.transaction_id = e.transaction_id
left join ledger.movements m on m.transaction_id = e.transaction_id
left join ledger.accounts a on a.locked_by = e.transaction_id
where e.direction = 'execute' and e.state = 'COMPENSATED'
    and not exists (select from backstay.resolutions r
        where r.intent_key = e.intent_key and r.step_id = e.step_id and r.verb in ('skip', 'done'))
    and (h.state = 'OPEN' or c.refunded_cents < c.amount_cents or a.state = 'FROZEN'
        or m.operation_type in ('CREDIT', 'TRANSFER', 'REFUND', 'REVERSAL', 'ADJUSTMENT')
            and not exists (select from ledger.movements r where r.reverses = m.movement_id));

-- name: 3j attempts_agree_with_effects
-- What was sent somewhere and landed is an effect, unless it landed when its intent was over already, which somebody
-- has to mend; what is an effect has landed; and no intent ends while it is not known whether a step of it landed.
select a.step_key as subject, format('the attempt is %s, the effect %s, the intent %s', a.state, coalesce(e.state, 'absent'), i.phase) as detail
from backstay.attempts a
join backstay.intents i on i.intent_key = a.intent_key
left join backstay.effects e on e.step_key = a.step_key
where (a.state = 'LANDED') <> coalesce(e.state <> 'TOMBSTONE', false)
    or a.state = 'FENCED' and e.state is distinct from 'TOMBSTONE'
    or i.final_at is not null and a.direction = 'execute' and a.state in ('SENT', 'UNKNOWN');

-- name: 3k remote_effects_were_sent_first
-- Every effect of a tool that writes elsewhere has its attempt, with the same serial number.
select e.step_key as subject, format('effect %s, attempt %s', e.transaction_id, a.transaction_id) as detail
from backstay.effects e
join backstay.intents i on i.intent_key = e.intent_key
cross join lateral jsonb_array_elements(i.plan::jsonb -> 'steps') as step
left join backstay.attempts a on a.step_key = e.step_key
where step ->> 'step_id' = e.step_id and step ->> 'dispatch' = 'REMOTE' and e.state <> 'TOMBSTONE'
    and a.transaction_id is distinct from e.transaction_id;

-- name: 3l reports_agree_with_phases
-- What an ended intent answers is what became of it.
select intent_id as subject, format('answers %s, but its phase is %s', report::jsonb ->> 'outcome', phase) as detail
from backstay.intents where report is not null and report::jsonb ->> 'outcome' is distinct from phase;

-- name: 3m locks_do_not_conflict
-- No two open intents hold one object in modes that do not go together.
select a.resource as subject, format('%s by %s, %s by %s', a.mode, a.intent_id, b.mode, b.intent_id) as detail
from backstay.counting_locks a
join backstay.counting_locks b on b.resource = a.resource and b.intent_key > a.intent_key
where a.is_held and b.is_held and 'EXCLUSIVE' in (a.mode, b.mode);

-- name: 3n a_fallback_only_where_its_step_never_lands
-- Whoever looks for the key of a step whose fallback landed, or was sent, finds a tombstone.
select f.step_key as subject, format('its step is %s', coalesce(e.state, 'not fenced')) as detail
from (
    select step_key, intent_key, step_id from backstay.effects where direction = 'execute' and state <> 'TOMBSTONE'
    union select step_key, intent_key, step_id from backstay.attempts where direction = 'execute'
) f
left join backstay.effects e
    on e.step_key = f.intent_key || '/' || regexp_replace(f.step_id, '[.]fallback$', '') || '/execute'
where f.step_id like '%.fallback' and e.state is distinct from 'TOMBSTONE';

-- name: 4a compensated_steps_stay_down
-- Where a compensation landed, its step is compensated or fenced: it is not live and can never land.
select c.step_key as subject, format('compensated, but its step is %s', coalesce(e.state, 'absent')) as detail
from backstay.effects c
left join backstay.effects e on e.intent_key = c.intent_key and e.step_id = c.step_id and e.direction = 'execute'
where c.direction = 'compensate' and (e.state is null or e.state = 'LANDED' or c.state <> 'LANDED'
    or e.state = 'COMPENSATED' and c.landed_at < e.landed_at);

-- name: 4b fenced_steps_left_nothing
select e.step_key as subject, 'fenced, but it has a row in the ledger' as detail
from backstay.effects e
where e.state = 'TOMBSTONE' and (
    exists (select from ledger.movements m where m.transaction_id = e.transaction_id)
    or exists (select from ledger.holds h where h.transaction_id = e.transaction_id)
    or exists (select from ledger.captures c where c.transaction_id = e.transaction_id));

-- name: 5a gated_steps_were_asked_about
-- Every landed step whose plan says it has a duty has a request for a decision over that very plan.
select e.step_key as subject, format('duty %s, request over plan %s, plan is %s', step ->> 'duty', r.plan_digest, i.plan_digest) as detail
from backstay.effects e
join backstay.intents i on i.intent_key = e.intent_key
cross join lateral jsonb_array_elements(i.plan::jsonb -> 'steps') as step
left join backstay.approval_requests r on r.intent_key = e.intent_key and r.step_id = e.step_id
where e.direction = 'execute' and e.state <> 'TOMBSTONE' and step ->> 'step_id' = e.step_id
    and step ->> 'duty' <> 'NONE' and coalesce(step -> 'late', '[]') = '[]'
    and (r.plan_digest is distinct from i.plan_digest or r.duty is distinct from step ->> 'duty');

-- name: 5b gated_steps_spent_a_decision
-- Every landed step that was asked about spent, in its own transaction or in that of its attempt, an approval: given
-- in time, over the same plan (of a late step: over the plan and its late arguments), by somebody else than the agent,
-- and not denied before.
select e.step_key as subject, format('no valid decision was spent (decision %s, %s over plan %s)', c.decision_id, d.verdict, d.plan_digest) as detail
from backstay.effects e
join backstay.intents i on i.intent_key = e.intent_key
join backstay.approval_requests r on r.intent_key = e.intent_key and r.step_id = e.step_id
left join backstay.late_grades g on g.intent_key = e.intent_key and g.step_id = e.step_id
left join backstay.attempts t on t.step_key = e.step_key
left join backstay.approval_consumptions c on c.step_key = e.step_key and c.intent_key = e.intent_key
    and c.step_id = e.step_id and c.consumed_at = coalesce(t.first_sent_at, e.landed_at)
left join backstay.decisions d on d.intent_key = c.intent_key and d.step_id = c.step_id and d.decision_id = c.decision_id
where e.direction = 'execute' and e.state <> 'TOMBSTONE'
    and (d.decision_id is null or d.verdict <> 'approve' or d.approver = i.agent
        or d.plan_digest <> r.plan_digest or d.plan_digest is distinct from coalesce(g.digest, i.plan_digest)
        or d.decided_at < r.requested_at or d.decided_at > r.expires_at or d.decided_at > c.consumed_at
        or exists (select from backstay.decisions n where n.intent_key = d.intent_key and n.step_id = d.step_id
            and n.verdict = 'deny' and n.decided_at < c.consumed_at));

-- name: 5c decisions_are_spent_on_effects
-- Nothing is spent without an effect or an attempt, and a step without a request spends nothing.
select c.step_key as subject, format('decision %s was spent on nothing', c.decision_id) as detail
from backstay.approval_consumptions c
left join backstay.effects e on e.step_key = c.step_key and e.intent_key = c.intent_key and e.step_id = c.step_id
    and e.direction = 'execute' and e.state <> 'TOMBSTONE'
left join backstay.attempts t on t.step_key = c.step_key
left join backstay.approval_requests r on r.intent_key = c.intent_key and r.step_id = c.step_id
where e.step_key is null and t.step_key is null or r.step_id is null;

-- not yet: 5 two different approvers (part C: a plan with duty TWO is rejected until then)

-- name: 5d plans_name_their_stored_proof
-- What was approved with the plan is the very proof that is stored; plans older than proofs name none.
select i.intent_id as subject, format('the plan names proof %s, stored is %s', i.plan::jsonb ->> 'proof_digest', i.proof_digest) as detail
from backstay.intents i
where i.plan is not null and (i.plan::jsonb ->> 'proof_digest' is distinct from i.proof_digest
    or i.proof_digest is distinct from encode(sha256(convert_to(i.proof, 'UTF8')), 'hex'));

-- name: 5e late_steps_were_graded
-- Every landed step whose plan leaves amount, payee, count or source to be known later was graded before it landed, with
-- at least the duty of the plan, with the arguments that it landed with; and it was asked about where that has a duty.
select e.step_key as subject, format('late %s, graded %s with duty %s, plan %s, asked %s', step -> 'late', g.graded_at, g.duty, step ->> 'duty', r.duty) as detail
from backstay.effects e
join backstay.intents i on i.intent_key = e.intent_key
cross join lateral jsonb_array_elements(i.plan::jsonb -> 'steps') as step
left join backstay.late_grades g on g.intent_key = e.intent_key and g.step_id = e.step_id
left join backstay.approval_requests r on r.intent_key = e.intent_key and r.step_id = e.step_id
where e.direction = 'execute' and e.state <> 'TOMBSTONE' and step ->> 'step_id' = e.step_id
    and coalesce(step -> 'late', '[]') <> '[]'
    and (g.graded_at is null or g.graded_at > e.landed_at
        or g.duty = 'NONE' and step ->> 'duty' <> 'NONE' or g.duty <> 'NONE' and r.plan_digest is distinct from g.digest
        or exists (select from jsonb_array_elements_text(step -> 'late') as late(name)
            where g.arguments::jsonb #> string_to_array(late.name, '.')
                is distinct from e.arguments::jsonb #> string_to_array(late.name, '.')));

-- name: 6a effects_have_one_audit_row
-- Exactly one, with the same serial number and the same instant: one transaction has one now().
select e.step_key as subject, format('%s audit rows, %s of its transaction', count(a.audit_id), count(a.audit_id) filter (where a.at = e.landed_at)) as detail
from backstay.effects e
left join backstay.audit_log a on a.kind = 'effect' and a.transaction_id = e.transaction_id
    and a.intent_key = e.intent_key and a.step_id = e.step_id
where e.state <> 'TOMBSTONE'
group by e.step_key, e.landed_at
having count(a.audit_id) <> 1 or count(a.audit_id) filter (where a.at = e.landed_at) <> 1;

-- name: 6b audit_rows_have_their_effect
select a.audit_id::text as subject, format('tells of effect %s of step %s, which is not there', a.transaction_id, a.step_id) as detail
from backstay.audit_log a
left join backstay.effects e on e.transaction_id = a.transaction_id and e.intent_key = a.intent_key
    and e.step_id = a.step_id and e.state <> 'TOMBSTONE'
where a.kind = 'effect' and e.step_key is null;

-- name: 6c audit_rows_tell_who
-- On whose behalf, through whom, with which arguments and result; a refusal tells its reason.
select audit_id::text as subject, format('%s by %s for %s lacks something', kind, agent, principal) as detail
from backstay.audit_log
where kind in ('effect', 'refusal')
    and (tenant is null or agent is null or principal is null or tool is null or step_id is null or arguments is null
        or policy_digest is null or result is null or kind = 'refusal' and result::jsonb ->> 'reason' is null);

-- name: 6d audit_rows_are_unaltered
-- Each row's digest is that of its columns, and it follows the row before it in its chain (one per intent and step).
-- What was cut off the end of a chain shows only against a head kept outside.
select audit_id::text as subject, case when altered then 'the row was altered' else 'it does not follow the row before it' end as detail
from (
    select audit_id, intent_key, digest <> backstay.audit_digest(a) as altered, previous_digest is distinct from
        lag(digest) over (partition by intent_key, step_id order by audit_id) as unchained
    from backstay.audit_log a
) a
where altered or unchained and intent_key is not null;

-- not yet: 6 the head of the audit log, kept outside the database (part C)

-- name: 6e append_only_for_the_app
-- The role that works can neither edit nor delete what must stay, writes audit rows, decisions and locks by their
-- functions only, and nobody else writes.
select format('%s on %s', privilege, name) as subject, format('granted to %s', grantee) as detail
from (values ('backstay_app'), ('backstay_readonly')) as r (grantee)
cross join (values ('backstay.audit_log'), ('backstay.decisions'), ('backstay.approval_consumptions'),
    ('backstay.resolutions'), ('backstay.effects'), ('backstay.intents'), ('ledger.movements'), ('ledger.holds'),
    ('ledger.captures'), ('ledger.accounts'), ('backstay.locks')) as t (name)
cross join (values ('UPDATE'), ('DELETE'), ('TRUNCATE'), ('INSERT')) as p (privilege)
where case privilege
    when 'UPDATE' then has_any_column_privilege(grantee, name, 'UPDATE') and (grantee = 'backstay_readonly' or name in
        ('backstay.audit_log', 'backstay.decisions', 'backstay.approval_consumptions', 'backstay.resolutions',
            'ledger.movements', 'backstay.locks'))
    when 'INSERT' then has_any_column_privilege(grantee, name, 'INSERT') and (grantee = 'backstay_readonly' or name in
        ('backstay.audit_log', 'backstay.decisions', 'ledger.accounts', 'backstay.locks'))
    else has_table_privilege(grantee, name, privilege) end;

-- name: 6f effects_are_as_they_were_noted
-- What an effect keeps of its arguments and its answer is what its audit row told, but for what is masked there.
select e.step_key as subject, format('%s is not what audit row %s tells', told.what, a.audit_id) as detail
from backstay.audit_log a
join backstay.effects e on e.transaction_id = a.transaction_id and e.step_id = a.step_id
cross join lateral (values ('the answer', a.result, e.response), ('an argument', a.arguments, e.arguments)) as told (what, noted, kept)
where a.kind = 'effect' and e.direction = 'execute' and e.state <> 'TOMBSTONE' and exists (
    select from jsonb_each(told.noted::jsonb) as noted (name, value)
    where noted.value <> '"***"' and noted.value is distinct from told.kept::jsonb -> noted.name);

-- not yet: 7 released histories replay (a test of the code, not a query)
