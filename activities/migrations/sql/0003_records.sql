-- Customers' records, deleted in two steps: marked, which can be taken back, and purged, which cannot. And notices to
-- customers, in an outbox. Nothing here refers to the engine's tables by foreign key: what they share is the effect's
-- serial number, `transaction_id`.

create schema records authorization backstay_owner;
grant usage on schema records to backstay_app, backstay_readonly;
set local role backstay_owner;
set local search_path to records;

create domain file_state as text check (value in ('OPEN', 'LEGAL_HOLD', 'CLOSED'));
create domain category as text check (value in ('CONTACT', 'CORRESPONDENCE', 'PREFERENCE', 'DOCUMENT'));
create domain deletion_state as text check (value in ('DELETED', 'RESTORED', 'PURGED'));
create domain deletion_reason as text check (value in
    ('CUSTOMER_REQUEST', 'RETENTION_OVER', 'DUPLICATE', 'COLLECTED_WRONGLY'));

-- Everything kept about one customer. Under a legal hold nothing of it is deleted or purged.
create table files (
    file_id         text primary key check (file_id ~ '^F[0-9]{8}$'),
    tenant          text not null,
    principal       text not null,
    state           file_state not null default 'OPEN'
);

-- One deletion, and what became of it. Its items are listed once and for ever: a restored deletion can be done again.
create sequence deletion_serial as bigint maxvalue 9999999999;
create table deletions (
    deletion_id     text primary key default 'D' || to_char(nextval('records.deletion_serial'), 'FM0000000000'),
    tenant          text not null,
    file_id         text not null references files,
    category        category,                           -- null: of every category
    record_count    bigint not null check (record_count >= 0),
    reason_code     deletion_reason not null,
    state           deletion_state not null default 'DELETED',
    deleted_at      timestamptz not null default now(),
    closed_at       timestamptz,
    transaction_id  bigint not null unique,
    step_key        text not null,
    intent_id       text not null,
    constraint deletions_closed_at check ((closed_at is null) = (state = 'DELETED'))
);

create sequence record_serial as bigint maxvalue 9999999999;
create table records (
    record_id       text primary key default 'R' || to_char(nextval('records.record_serial'), 'FM0000000000'),
    file_id         text not null references files,
    category        category not null,
    content         text not null,
    written_at      timestamptz not null default now(),
    deletion_id     text references deletions           -- null: not deleted
) with (fillfactor = 80);
create index records_file on records (file_id, category);
create index records_deletion on records (deletion_id) where deletion_id is not null;

create table deletion_items (
    deletion_id     text not null references deletions,
    record_id       text not null,                      -- outlives the record
    primary key (deletion_id, record_id)
);

-- Whatever a handler does: only what is marked can go, and a purged deletion stays purged.
create function refuse_purging_the_living() returns trigger language plpgsql as $$
begin
    if old.deletion_id is null then
        raise check_violation using message = format('record %s is not deleted; only deleted records are purged', old.record_id);
    end if;
    return old;
end $$;
create trigger records_purged_only_when_deleted before delete on records
    for each row execute function refuse_purging_the_living();

create function keep_purged() returns trigger language plpgsql as $$
begin
    raise check_violation using message = format('deletion %s is purged; nothing changes that', old.deletion_id);
end $$;
create trigger deletions_stay_purged before update on deletions
    for each row when (old.state = 'PURGED') execute function keep_purged();

grant select on all tables in schema records to backstay_app, backstay_readonly;
grant update (deletion_id), delete on records to backstay_app;
grant insert (tenant, file_id, category, record_count, reason_code, transaction_id, step_key, intent_id),
    update (state, closed_at) on deletions to backstay_app;
grant insert on deletion_items to backstay_app;
grant update (state) on files to backstay_app;           -- needed for locking a row, which no tool changes
grant usage on all sequences in schema records to backstay_app;

-- Notices: written with the effect, sent by a relay that reads `notices.outbox` (docs/operations.md).
reset role;
create schema notices authorization backstay_owner;
grant usage on schema notices to backstay_app, backstay_readonly;
set local role backstay_owner;
set local search_path to notices;

create domain channel as text check (value in ('EMAIL', 'SMS', 'POST'));
create domain template as text check (value in
    ('RECORDS_DELETED', 'PAYMENT_SENT', 'PAYMENT_RETURNED', 'ACCOUNT_LOCKED', 'ACCOUNT_UNLOCKED'));

-- Where a customer is reached. Retired, never removed: what was promised to be sent there still has an address.
create table contacts (
    contact_id      text primary key check (contact_id ~ '^N[0-9]{8}$'),
    tenant          text not null,
    principal       text not null,
    channel         channel not null,
    address         text not null,
    state           text not null default 'ACTIVE' check (state in ('ACTIVE', 'RETIRED'))
);

create sequence notice_serial as bigint maxvalue 9999999999;
create table outbox (
    notice_id       text primary key default 'T' || to_char(nextval('notices.notice_serial'), 'FM0000000000'),
    tenant          text not null,
    contact_id      text not null references contacts,
    template        template not null,
    reference       text not null check (reference ~ '^[A-Z0-9-]{1,40}$'),
    queued_at       timestamptz not null default now(),
    sent_at         timestamptz,
    transaction_id  bigint not null unique,
    step_key        text not null,
    intent_id       text not null
);
create index outbox_unsent on outbox (queued_at) where sent_at is null;

grant select on all tables in schema notices to backstay_app, backstay_readonly;
grant insert (tenant, contact_id, template, reference, transaction_id, step_key, intent_id) on outbox to backstay_app;
grant usage on all sequences in schema notices to backstay_app;
