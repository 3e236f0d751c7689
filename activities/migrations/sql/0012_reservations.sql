-- Holds that are reserved for a payee: only the confirmation of the step that opened one captures it, for that payee.

set local role backstay_owner;
set local search_path to ledger;

alter table holds add column payee account_id;          -- null: whoever has the hold says who gets the money
grant insert (payee) on holds to backstay_app;

-- As before, but a plan that is sealed may end with the confirmations of its steps, which nobody asked for by a step id.
create or replace function backstay.grow_plan(
    intent_key_ text, step_id_ text, request_digest_ text, plan_ text, plan_digest_ text, proof_ text,
    proof_digest_ text, tools_ text[], risk_level_ text, window_ integer
) returns boolean language plpgsql security definer set search_path = pg_catalog as $$
declare
    grown jsonb := plan_::jsonb;
    known jsonb;
    asked integer;                                      -- how many steps there are with the one that is asked for
begin
    select i.plan::jsonb into known from backstay.intents i
    where i.intent_key = intent_key_ and i.phase = 'ADMITTED' and i.parked_reason is null for update;
    asked := jsonb_array_length(known -> 'steps') + case when step_id_ is null then 0 else 1 end;
    if known is null or not known @> '{"opened": true, "sealed": false}'
        or jsonb_array_length(grown -> 'steps') < asked
        or jsonb_array_length(grown -> 'steps') > asked and not grown @> '{"sealed": true}'
        or (grown - 'steps' - 'sealed' - 'proof_digest') <> (known - 'steps' - 'sealed' - 'proof_digest')
        or exists (select from jsonb_array_elements(known -> 'steps') with ordinality as before(step, place)
            where before.step <> grown -> 'steps' -> (place::integer - 1))
        or exists (select from jsonb_array_elements(grown -> 'steps') with ordinality as after(step, place)
            where place > asked and after.step ->> 'step_id' not like '%.confirm')
        or step_id_ is not null and grown -> 'steps' -> (asked - 1) ->> 'step_id' is distinct from step_id_
    then
        return false;
    end if;
    update backstay.intents set plan = plan_, plan_digest = plan_digest_, proof = proof_, proof_digest = proof_digest_,
        tools = tools_, risk_level = risk_level_, duplicate_window_seconds = greatest(duplicate_window_seconds, window_)
    where intent_key = intent_key_;
    if step_id_ is not null then
        insert into backstay.added_steps (intent_key, step_id, position, request_digest)
        values (intent_key_, step_id_, asked, request_digest_);
    end if;
    return true;
end $$;
