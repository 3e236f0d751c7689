-- Writes that happen elsewhere: an attempt is committed before the call, so that a crash between the two leaves a
-- question and never a gap. Its serial number is drawn from the effects' sequence and goes downstream with the call.

set local role backstay_owner;
set local search_path to backstay;

--   SENT        may be on its way, or the process died before it knew
--   UNKNOWN     the downstream did not say
--   LANDED      its effect row was written in the same transaction
--   NOT_LANDED  certainly nothing was carried out; it may be sent again
--   REFUSED     the downstream said no
--   FENCED      certainly nothing was carried out, and a tombstone forbids that it ever counts
create table attempts (
    step_key        text primary key,
    intent_key      text not null references intents,
    step_id         text not null,
    tool            text not null,
    direction       text not null check (direction in ('execute', 'compensate')),
    is_pivot        boolean not null default false,
    remote_key      text not null unique,
    downstream      text not null,
    transaction_id  bigint not null unique default nextval('backstay.effects_transaction_id_seq'),
    state           text not null default 'SENT'
        check (state in ('SENT', 'UNKNOWN', 'LANDED', 'NOT_LANDED', 'REFUSED', 'FENCED')),
    argument_digest text not null,
    arguments       text not null,
    sends           integer not null default 1 check (sends >= 0),  -- sendings that may have got through
    epoch           integer not null,
    first_sent_at   timestamptz not null default now(),
    in_flight_until timestamptz not null,       -- until then a request that was sent may still land
    key_valid_until timestamptz not null,       -- from then on nothing is sent again
    patience_until  timestamptz not null,       -- from then on a person is called
    known           text not null default '{}'  -- what was seen last, as JSON
) with (fillfactor = 80);
create index attempts_intent on attempts (intent_key);

-- One row for each downstream: how many compensations it was sent in its latest minute, by all intents together.
create table compensation_rates (
    downstream      text primary key,
    minute          timestamptz not null,
    sent            integer not null
) with (fillfactor = 50);

grant select on attempts, compensation_rates to backstay_readonly, backstay_app;
grant insert on attempts, compensation_rates to backstay_app;
grant update (state, sends, epoch, in_flight_until, key_valid_until, patience_until, known) on attempts to backstay_app;
grant update (minute, sent) on compensation_rates to backstay_app;
grant update (landed_at) on effects to backstay_app;    -- a tombstone that a late landing turned out to contradict
