-- What was taken away stays known while an intent rests: it may go forward, and must not commit as if it still held it.
-- Only one that cannot turn back forgets it: its operator has seen it, and there is only forward.

set local role backstay_owner;
set local search_path to backstay;

create or replace function give_up_locks() returns trigger
language plpgsql security definer set search_path = pg_catalog as $$
begin
    delete from backstay.locks l
    where l.intent_key = new.intent_key and not (l.is_held and l.mode = 'EXCLUSIVE'
        and (l.epoch = old.epoch or new.parked_reason <> 'STUCK_AFTER_PIVOT') and (
        exists (select from backstay.effects e
            where e.intent_key = l.intent_key and e.step_id = any(l.step_ids) and e.direction = 'execute'
                and e.state = 'LANDED')
        or exists (select from backstay.attempts a
            where a.intent_key = l.intent_key and a.step_id = any(l.step_ids) and a.direction = 'execute'
                and a.state in ('SENT', 'UNKNOWN'))));
    update backstay.locks set epoch = new.epoch where intent_key = new.intent_key and epoch = old.epoch;
    return null;
end $$;
