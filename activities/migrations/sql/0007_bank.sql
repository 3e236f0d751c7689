-- Whose the bank's objects are. The bank keeps the money and its own book; what may be named by whom is ours to know,
-- and admission reads it from here. Rows come from onboarding, as the owner: no tool writes them.

create schema bank authorization backstay_owner;
grant usage on schema bank to backstay_app, backstay_readonly;
set local role backstay_owner;

create domain bank.object_id as text check (value ~ '^[BPK][0-9]{8}$');
create domain bank.object_state as text check (value in ('ACTIVE', 'BLOCKED', 'CLOSED'));
create domain bank.currency as text check (value in ('EUR', 'USD', 'GBP', 'CNY'));

-- B: an account at the bank. P: a payee. K: a card. Without a principal it is the tenant's own.
create table bank.objects (
    object_id   bank.object_id primary key,
    tenant      text not null,
    principal   text,
    state       bank.object_state not null default 'ACTIVE',
    currency    bank.currency,                          -- null: any
    constraint objects_cards_have_principals check (object_id !~ '^K' or principal is not null)
);
grant select on bank.objects to backstay_app, backstay_readonly;

-- A charge is found by the number that the bank gave it; only effects of that one tool are in the index.
create index effects_bank_charges on backstay.effects ((response::jsonb ->> 'charge_id'))
    where tool = 'charge_bank_card' and direction = 'execute' and response is not null;
