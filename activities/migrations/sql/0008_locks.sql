-- Semantic locks: an object that an open intent has for itself, or shares, from before its first write to its end.
-- A row counts while its intent is open and it carries that intent's epoch, so nothing has to be freed and nothing leaks.

set local role backstay_owner;
set local search_path to backstay;

create sequence lock_tickets as bigint;

create table locks (
    resource    text not null,                  -- kind:id
    intent_key  text not null references intents,
    mode        text not null check (mode in ('SHARED', 'EXCLUSIVE')),
    is_held     boolean not null default false, -- false: it waits for it
    epoch       integer not null,               -- of the intent; a lock that was left behind was taken away
    ticket      bigint not null,                -- drawn once for each intent, when it first asks: the lower one is older
    step_ids    text[] not null,                -- of the plan, those that need it
    waits_until timestamptz,                    -- whoever waits longer has lost its place
    primary key (resource, intent_key, mode),
    constraint locks_waiting check (is_held or waits_until is not null)
) with (fillfactor = 70);
create index locks_intent on locks (intent_key);

-- The locks that count, and the places in the queue that do.
create view counting_locks as
select l.*, i.intent_id, i.tenant, i.agent, i.principal, i.phase, i.parked_reason
from locks l join intents i using (intent_key)
where i.final_at is null and l.epoch = i.epoch
    and (l.is_held or l.waits_until > now() and i.phase = 'ADMITTED' and i.parked_reason is null);

-- Who is in the way of whom: whoever holds it in a mode that does not go together, and whoever asked for it before.
create view lock_conflicts as
select w.intent_key as waiting_key, w.mode as wanted, w.ticket as waiting_ticket, c.*
from locks w
join counting_locks c on c.resource = w.resource and c.intent_key <> w.intent_key
    and 'EXCLUSIVE' in (c.mode, w.mode) and (c.is_held or c.ticket < w.ticket)
where not w.is_held;

-- Take all of these locks, or none and a place in the queue. `wanted`: [{resource, mode, step_ids}].
--   HELD        all are held
--   WAIT        somebody is in the way; ask again after so many seconds
--   REFUSED     it waited as long as it may; or it holds locks, and whoever is in the way is older: so no two wait for
--               each other (wait-die: Rosenkrantz, Stearns, Lewis, System level concurrency control, 1978)
--   TAKEN_AWAY  an operator took one that it held
-- No row at all: the intent is not open for steps of this epoch, which the barrier will say.
create function take_locks(intent_key_ text, epoch_ integer, wanted_ jsonb, wait_seconds_ double precision)
returns table (verdict text, resource text, mode text, held_by text, after_seconds double precision)
language plpgsql security definer set search_path = pg_catalog as $$
#variable_conflict use_column
declare
    ticket_ bigint;
    waits_until_ timestamptz;
    left_ double precision;
    other_ record;
    hash_ bigint;
begin
    perform from backstay.intents
    where intent_key = intent_key_ and epoch = epoch_ and phase = 'ADMITTED' and parked_reason is null for share;
    if not found then
        return;
    end if;
    select l.resource, l.mode into other_ from backstay.locks l where l.intent_key = intent_key_ and l.epoch <> epoch_;
    if found then
        return query select 'TAKEN_AWAY', other_.resource, other_.mode, null::text, null::double precision;
        return;
    end if;
    if not exists (
        select from jsonb_to_recordset(wanted_) as w(resource text, mode text, step_ids text[])
        where not exists (
            select from backstay.locks l
            where l.intent_key = intent_key_ and l.resource = w.resource and l.is_held
                and l.mode in (w.mode, 'EXCLUSIVE') and l.step_ids @> w.step_ids))
    then
        return query select 'HELD', null::text, null::text, null::text, null::double precision;
        return;
    end if;

    for hash_ in
        select distinct hashtextextended(w ->> 'resource', 8) from jsonb_array_elements(wanted_) as w order by 1
    loop
        perform pg_advisory_xact_lock(hash_);
    end loop;
    delete from backstay.locks l using backstay.intents i
    where l.resource in (select w ->> 'resource' from jsonb_array_elements(wanted_) as w)
        and i.intent_key = l.intent_key and i.final_at is not null;
    select coalesce((select max(l.ticket) from backstay.locks l where l.intent_key = intent_key_),
        nextval('backstay.lock_tickets')) into ticket_;
    insert into backstay.locks as mine (resource, intent_key, mode, epoch, ticket, step_ids, waits_until)
    select w.resource, intent_key_, case when exists (
            select from backstay.locks l where l.intent_key = intent_key_ and l.resource = w.resource and l.is_held
                and l.mode = 'EXCLUSIVE') then 'EXCLUSIVE' else w.mode end,
        epoch_, ticket_, w.step_ids, now() + make_interval(secs => wait_seconds_)
    from jsonb_to_recordset(wanted_) as w(resource text, mode text, step_ids text[])
    on conflict (resource, intent_key, mode) do update
    set step_ids = array(select distinct step_id from unnest(mine.step_ids || excluded.step_ids) as step_id order by 1);

    select c.resource, c.mode, c.intent_id, c.ticket into other_ from backstay.lock_conflicts c
    where c.waiting_key = intent_key_
        and c.resource in (select w ->> 'resource' from jsonb_array_elements(wanted_) as w)
    order by c.ticket limit 1;
    if not found then
        update backstay.locks l set is_held = true, waits_until = null
        where l.intent_key = intent_key_ and not l.is_held
            and l.resource in (select w ->> 'resource' from jsonb_array_elements(wanted_) as w);
        return query select 'HELD', null::text, null::text, null::text, null::double precision;
        return;
    end if;
    select min(l.waits_until) into waits_until_ from backstay.locks l
    where l.intent_key = intent_key_ and not l.is_held
        and l.resource in (select w ->> 'resource' from jsonb_array_elements(wanted_) as w);
    left_ := extract(epoch from waits_until_ - now());
    if left_ <= 0 or other_.ticket < ticket_
        and exists (select from backstay.locks l where l.intent_key = intent_key_ and l.is_held)
    then
        delete from backstay.locks l
        where l.intent_key = intent_key_ and not l.is_held
            and l.resource in (select w ->> 'resource' from jsonb_array_elements(wanted_) as w);
        return query select 'REFUSED', other_.resource, other_.mode, other_.intent_id, null::double precision;
        return;
    end if;
    return query select 'WAIT', other_.resource, other_.mode, other_.intent_id,
        least(left_ + 0.05, 2.0, greatest(0.5, (wait_seconds_ - left_) / 2));
end $$;
revoke execute on function take_locks from public;
grant execute on function take_locks to backstay_app;

-- Take an object away from whoever holds it. Where a step may be on its way the intent's epoch moves on, and this lock
-- stays behind: whatever the saga is about to write is refused from here on, its other locks go with it. Where none
-- lands anyway (it closes, or rests) only the lock goes back behind the epoch. Either way the next step is refused.
create function take_away(resource_ text, tenant_ text, operator_ text, reason_ text)
returns table (intent_id text, mode text, phase text, parked text, epoch integer)
language plpgsql security definer set search_path = pg_catalog as $$
#variable_conflict use_column
declare
    held_ record;
    intent_ record;
begin
    for held_ in
        select c.intent_key, c.epoch, min(c.mode) as mode from backstay.counting_locks c
        where c.resource = resource_ and c.tenant = tenant_ and c.is_held
        group by c.intent_key, c.epoch order by c.intent_key
    loop
        update backstay.intents i
        set epoch = i.epoch + case when i.phase = 'ADMITTED' and i.parked_reason is null then 1 else 0 end
        where i.intent_key = held_.intent_key and i.epoch = held_.epoch and i.final_at is null
        returning i.* into intent_;
        continue when not found;
        update backstay.locks l
        set epoch = case when l.resource = resource_ then intent_.epoch - 1 else intent_.epoch end
        where l.intent_key = held_.intent_key and l.epoch = held_.epoch;
        perform backstay.append_audit('unlocked', tenant_, held_.intent_key, null, null, intent_.agent,
            intent_.principal, operator_, null, null, null, null, jsonb_build_object(
                'resource', resource_, 'mode', held_.mode, 'epoch', intent_.epoch, 'reason', reason_)::text);
        return query select intent_.intent_id, held_.mode, intent_.phase, intent_.parked_reason, intent_.epoch;
    end loop;
end $$;
revoke execute on function take_away from public;
grant execute on function take_away to backstay_app;

-- Who rests keeps only what it has for itself and may have changed; its other locks, and its places, are given up.
create function give_up_locks() returns trigger language plpgsql security definer set search_path = pg_catalog as $$
begin
    delete from backstay.locks l
    where l.intent_key = new.intent_key and not (l.is_held and l.mode = 'EXCLUSIVE' and l.epoch = old.epoch and (
        exists (select from backstay.effects e
            where e.intent_key = l.intent_key and e.step_id = any(l.step_ids) and e.direction = 'execute'
                and e.state = 'LANDED')
        or exists (select from backstay.attempts a
            where a.intent_key = l.intent_key and a.step_id = any(l.step_ids) and a.direction = 'execute'
                and a.state in ('SENT', 'UNKNOWN'))));
    update backstay.locks set epoch = new.epoch where intent_key = new.intent_key;
    return null;
end $$;
create trigger intents_at_rest_give_up_locks after update of parked_reason, run_id on intents
    for each row when (new.parked_reason is not null and (old.parked_reason is null or old.run_id <> new.run_id))
    execute function give_up_locks();

grant select on locks, counting_locks, lock_conflicts to backstay_app, backstay_readonly;
