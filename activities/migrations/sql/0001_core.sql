-- The engine's own tables. The database is the commit point: everything that decides about money is here.
-- Roles: owner owns, app works (and can neither edit nor delete what must stay), readonly looks.

do $$
declare wanted text;
begin
    foreach wanted in array array['backstay_owner', 'backstay_app', 'backstay_readonly'] loop
        begin
            execute format('create role %I nologin', wanted);
        exception when duplicate_object or unique_violation then null;
        end;
        begin
            execute format('grant %I to current_user', wanted);
        exception when others then
            raise notice 'could not grant % to %: %', wanted, current_user, sqlerrm;
        end;
    end loop;
end $$;

create schema backstay authorization backstay_owner;
grant usage on schema backstay to backstay_app, backstay_readonly;
set local role backstay_owner;
set local search_path to backstay;

-- One row per intent: the claim, the plan and the phase (changed only by compare-and-set).
create table intents (
    intent_key      text primary key check (intent_key ~ '^[0-9a-f]{64}$'),
    intent_id       text not null unique check (intent_id ~ '^int_[a-z2-7]{26}$'),
    tenant          text not null,
    principal       text not null,
    agent           text not null,
    session_id      text not null,
    request         text not null,              -- the workflow's input, so that sweep can start a run again
    body_digest     text not null,              -- over the full canonical arguments
    lineage_digest  text not null,              -- the same for every occurrence and attempt of one wish
    plan            text,                       -- null for a final rejection
    plan_digest     text,
    tools           text[] not null default '{}',
    risk_level      text not null default 'L0',
    occurrence      integer not null,
    attempt         integer not null,
    workflow_id     text not null,
    run_id          text not null,
    former_run_ids  text[] not null default '{}',
    epoch           integer not null default 1,
    phase           text not null check (phase in ('ADMITTED', 'CLOSING', 'COMMITTED', 'COMPENSATED', 'NOT_APPLIED')),
    cause           text not null default 'none',
    error           text,                       -- the first error, as JSON
    parked_reason   text,
    parked_since    timestamptz,
    parked_detail   text,
    report          text,                       -- the final report, as JSON
    duplicate_window_seconds integer not null default 86400,
    admitted_at     timestamptz not null default now(),
    deadline_at     timestamptz not null,
    final_at        timestamptz,
    check ((final_at is null) = (phase in ('ADMITTED', 'CLOSING'))),
    check ((parked_reason is null) = (parked_since is null))
) with (fillfactor = 70);
create index intents_open on intents (admitted_at) where final_at is null;
create index intents_recent on intents (tenant, admitted_at desc);
create index intents_lineage on intents (lineage_digest);
-- What a workflow claimed it finds again by its own input, also when its contracts have changed since.
create unique index intents_workflow on intents (workflow_id, md5(request));

-- An explicit Idempotency-Key is an alias of an intent, for ever.
create table intent_aliases (
    tenant          text not null,
    principal       text not null,
    idempotency_key text not null,
    intent_key      text not null references intents,
    created_at      timestamptz not null default now(),
    primary key (tenant, principal, idempotency_key)
);

-- The barrier: one row per step key, inserted first in the business transaction.
--   execute:    LANDED, then COMPENSATED; or TOMBSTONE (fenced before it ever landed)
--   compensate: LANDED
create table effects (
    step_key        text primary key,
    transaction_id  bigint generated always as identity unique,
    intent_key      text not null references intents,
    step_id         text not null,
    tool            text not null,
    direction       text not null check (direction in ('execute', 'compensate')),
    ordinal         integer not null default 1,
    state           text not null check (state in ('LANDED', 'COMPENSATED', 'TOMBSTONE')),
    is_pivot        boolean not null default false,
    argument_digest text not null,
    arguments       text not null,
    response        text,
    residue         text,
    source          text not null default 'saga' check (source in ('saga', 'operator')),
    epoch           integer not null,
    landed_at       timestamptz not null default now(),
    compensated_at  timestamptz
) with (fillfactor = 80);
create index effects_intent on effects (intent_key);

-- What a step that only reads was told: later steps bound from it must find the same, whatever the world says now.
create table readings (
    step_key        text primary key,
    intent_key      text not null references intents,
    response        text not null,
    read_at         timestamptz not null default now()
);

-- What a person must decide, written with the admission; expiry is judged by this row's clock.
create table approval_requests (
    intent_key      text not null references intents,
    step_id         text not null,
    duty            text not null check (duty in ('ONE', 'TWO')),
    plan_digest     text not null,
    reason          text not null,
    requested_at    timestamptz not null default now(),
    expires_at      timestamptz not null,
    primary key (intent_key, step_id)
);

create table decisions (
    decision_id     text not null,
    intent_key      text not null references intents,
    step_id         text not null,
    verdict         text not null check (verdict in ('approve', 'deny')),
    plan_digest     text not null,
    approver        text not null,
    reason          text not null default '',
    door            text not null,
    decided_at      timestamptz not null default now(),
    primary key (intent_key, step_id, decision_id)
);
-- A denial may follow an approval that is not spent yet; nothing else may follow anything.
create unique index decisions_one_counts on decisions (intent_key, step_id, verdict);

-- An approval is spent once, in the transaction of the effect that it allows.
create table approval_consumptions (
    step_key        text primary key,
    intent_key      text not null,
    step_id         text not null,
    decision_id     text not null,
    consumed_at     timestamptz not null default now(),
    foreign key (intent_key, step_id, decision_id) references decisions (intent_key, step_id, decision_id),
    unique (intent_key, step_id, decision_id)
);

-- What an operator decided about a parked intent.
create table resolutions (
    resolution_id   text primary key,
    intent_key      text not null references intents,
    step_id         text,
    verb            text not null check (verb in ('retry', 'skip', 'done', 'close', 'forward')),
    evidence        text not null default '',
    operator        text not null,
    resolved_at     timestamptz not null default now()
);

-- New effects stop at once where a row matches: all, a tenant, an agent, a tool.
create table kill_switches (
    scope           text not null check (scope in ('all', 'tenant', 'agent', 'tool')),
    subject         text not null,
    reason          text not null,
    set_by          text not null,
    set_at          timestamptz not null default now(),
    primary key (scope, subject)
);

-- Append-only: one row per admission, effect, refusal, decision, close and settlement, in the same transaction.
create table audit_log (
    audit_id        bigint generated always as identity primary key,
    at              timestamptz not null default now(),
    kind            text not null,
    tenant          text not null,
    intent_key      text,
    step_id         text,
    tool            text,
    agent           text,
    principal       text,
    actor           text,
    transaction_id  bigint,
    arguments       text,
    policy_digest   text,
    decisions       text,
    result          text not null,
    previous_digest text,
    digest          text not null
);
create index audit_intent on audit_log (intent_key, step_id, audit_id);
create index audit_refused on audit_log (agent, at) where kind in ('door_refused', 'admission_refused');

-- The digest of a row binds every column and its predecessor; an auditor recomputes it with this function alone.
create function audit_digest(row_ audit_log) returns text language sql stable as $$
    select encode(sha256(convert_to(jsonb_build_array(
        (row_).previous_digest, extract(epoch from (row_).at)::text, (row_).kind, (row_).tenant, (row_).intent_key,
        (row_).step_id, (row_).tool, (row_).agent, (row_).principal, (row_).actor, (row_).transaction_id,
        (row_).arguments, (row_).policy_digest, (row_).decisions, (row_).result)::text, 'UTF8')), 'hex')
$$;

create function append_audit(
    kind_ text, tenant_ text, intent_key_ text, step_id_ text, tool_ text, agent_ text, principal_ text, actor_ text,
    transaction_id_ bigint, arguments_ text, policy_digest_ text, decisions_ text, result_ text
) returns void language plpgsql security definer set search_path = pg_catalog as $$
declare row_ backstay.audit_log;
begin
    row_.at := now();
    row_.kind := kind_;
    row_.tenant := tenant_;
    row_.intent_key := intent_key_;
    row_.step_id := step_id_;
    row_.tool := tool_;
    row_.agent := agent_;
    row_.principal := principal_;
    row_.actor := actor_;
    row_.transaction_id := transaction_id_;
    row_.arguments := arguments_;
    row_.policy_digest := policy_digest_;
    row_.decisions := decisions_;
    row_.result := result_;
    if intent_key_ is not null then
        -- one writer at a time for each chain: two rows never follow the same one
        perform pg_advisory_xact_lock(hashtextextended(intent_key_ || '/' || coalesce(step_id_, ''), 7));
        select digest into row_.previous_digest from backstay.audit_log
        where intent_key = intent_key_ and step_id is not distinct from step_id_ order by audit_id desc limit 1;
    end if;
    row_.digest := backstay.audit_digest(row_);
    insert into backstay.audit_log (at, kind, tenant, intent_key, step_id, tool, agent, principal, actor,
        transaction_id, arguments, policy_digest, decisions, result, previous_digest, digest)
    values (row_.at, row_.kind, row_.tenant, row_.intent_key, row_.step_id, row_.tool, row_.agent, row_.principal,
        row_.actor, row_.transaction_id, row_.arguments, row_.policy_digest, row_.decisions, row_.result,
        row_.previous_digest, row_.digest);
end $$;
revoke execute on function append_audit from public;
grant execute on function append_audit to backstay_app;

-- The one way to write a decision: only about what is asked, only for the plan that was asked about, only in time.
create function record_decision(
    decision_id_ text, intent_key_ text, step_ids_ text[], verdict_ text, plan_digest_ text, approver_ text,
    reason_ text, door_ text
) returns setof text language sql security definer set search_path = pg_catalog as $$
    insert into backstay.decisions (decision_id, intent_key, step_id, verdict, plan_digest, approver, reason, door)
    select decision_id_, r.intent_key, r.step_id, verdict_, r.plan_digest, approver_, reason_, door_
    from backstay.approval_requests r
    where r.intent_key = intent_key_ and r.step_id = any(step_ids_) and r.plan_digest = plan_digest_
        and r.expires_at > now()
    on conflict do nothing
    returning step_id
$$;
revoke execute on function record_decision from public;
grant execute on function record_decision to backstay_app;

grant select on all tables in schema backstay to backstay_readonly, backstay_app;
grant insert on intents, intent_aliases, effects, readings, approval_requests, approval_consumptions, resolutions
    to backstay_app;
grant update (run_id, former_run_ids, epoch, phase, cause, error, parked_reason, parked_since, parked_detail,
    report, final_at, deadline_at) on intents to backstay_app;
grant update (state, response, residue, compensated_at) on effects to backstay_app;
grant usage on all sequences in schema backstay to backstay_app;
