-- Steps whose amount, payee, count or source was bound, as they were graded once it was known: one row, written once,
-- so that a repeat, a replay and a run that adopts the intent get the same answer. No such step lands without its row.

set local role backstay_owner;
set local search_path to backstay;

create table late_grades (
    intent_key      text not null references intents,
    step_id         text not null,
    level           integer not null check (level between 0 and 4),
    duty            text not null check (duty in ('NONE', 'ONE')),
    because         text[] not null,
    arguments       text not null,              -- as planned, with the late ones filled in
    digest          text not null check (digest ~ '^[0-9a-f]{64}$'),  -- over plan and arguments: what a decision names
    policy_digest   text not null,
    graded_at       timestamptz not null default now(),
    primary key (intent_key, step_id)
);

grant select on late_grades to backstay_app, backstay_readonly;
grant insert on late_grades to backstay_app;
