-- Open intents: plans that grow by one step at a time until they are sealed. The app's role cannot edit a plan; it can
-- only make one longer, by the function below.

set local role backstay_owner;
set local search_path to backstay;

-- What was asked for under a step's id: the same again gets the same answer, something else is refused.
create table added_steps (
    intent_key      text not null references intents,
    step_id         text not null,
    position        integer not null check (position between 1 and 50),
    request_digest  text not null check (request_digest ~ '^[0-9a-f]{64}$'),  -- over tool and arguments as sent
    added_at        timestamptz not null default now(),
    primary key (intent_key, step_id),
    unique (intent_key, position)
);

-- Put a plan in the place of one that it continues: an open one, of an intent that steps may still land for. False when
-- it is not so, and then nothing is written. Without `step_id_` the plan is only sealed.
create function grow_plan(
    intent_key_ text, step_id_ text, request_digest_ text, plan_ text, plan_digest_ text, proof_ text,
    proof_digest_ text, tools_ text[], risk_level_ text, window_ integer
) returns boolean language plpgsql security definer set search_path = pg_catalog as $$
declare
    grown jsonb := plan_::jsonb;
    known jsonb;
    added integer := case when step_id_ is null then 0 else 1 end;
begin
    select i.plan::jsonb into known from backstay.intents i
    where i.intent_key = intent_key_ and i.phase = 'ADMITTED' and i.parked_reason is null for update;
    if known is null or not known @> '{"opened": true, "sealed": false}'
        or jsonb_array_length(grown -> 'steps') <> jsonb_array_length(known -> 'steps') + added
        or (grown - 'steps' - 'sealed' - 'proof_digest') <> (known - 'steps' - 'sealed' - 'proof_digest')
        or exists (select from jsonb_array_elements(known -> 'steps') with ordinality as before(step, place)
            where before.step <> grown -> 'steps' -> (place::integer - 1))
        or added = 1 and grown -> 'steps' -> -1 ->> 'step_id' is distinct from step_id_
    then
        return false;
    end if;
    update backstay.intents set plan = plan_, plan_digest = plan_digest_, proof = proof_, proof_digest = proof_digest_,
        tools = tools_, risk_level = risk_level_, duplicate_window_seconds = greatest(duplicate_window_seconds, window_)
    where intent_key = intent_key_;
    if added = 1 then
        insert into backstay.added_steps (intent_key, step_id, position, request_digest)
        values (intent_key_, step_id_, jsonb_array_length(grown -> 'steps'), request_digest_);
    end if;
    return true;
end $$;
revoke execute on function grow_plan from public;
grant execute on function grow_plan to backstay_app;
grant select on added_steps to backstay_app, backstay_readonly;
