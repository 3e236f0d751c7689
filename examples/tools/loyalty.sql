-- The table of examples/tools/loyalty.py, with two cards. The engine's role gets the rights that the tool needs, no more.
--
--     psql -X -v ON_ERROR_STOP=1 -f examples/tools/loyalty.sql "$DATABASE_URL"

begin;

create schema loyalty;
create table loyalty.cards (
    card_id text primary key, tenant text not null, principal text not null, points bigint check (points >= 0)
);

insert into loyalty.cards values
    ('L000001', 'demo-bank', 'demo-customer', 500), ('L000002', 'other-bank', 'demo-customer', 500);

grant usage on schema loyalty to backstay_app;
grant select, update (points) on loyalty.cards to backstay_app;

commit;
