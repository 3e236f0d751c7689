-- The accounts that examples/intents name, and a customer's file with five records. All of it is the owner's: no agent and
-- no tool can open or fund an account.
--
--     psql -X -v ON_ERROR_STOP=1 -f examples/accounts.sql "$DATABASE_URL"

begin;
set local role backstay_owner;

--                        account      tenant       principal        kind        currency
select ledger.open_account('S00000001', 'demo-bank', null,            'MERCHANT', 'EUR');  -- the bicycle shop
select ledger.open_account('S00000002', 'demo-bank', null,            'CASH',     'EUR');  -- where first balances are from
select ledger.open_account('A00000001', 'demo-bank', 'demo-customer', 'CURRENT',  'EUR');
select ledger.open_account('A00000002', 'demo-bank', 'demo-customer', 'SAVINGS',  'EUR');
select ledger.open_account('A00000003', 'demo-bank', 'demo-friend',   'CURRENT',  'EUR');
select ledger.open_account('A00000004', 'demo-bank', 'demo-customer', 'CURRENT',  'EUR');

select ledger.fund_account('A00000001', 'S00000002', 4000000);
select ledger.fund_account('A00000002', 'S00000002', 50000);
select ledger.fund_account('A00000003', 'S00000002', 10000);
select ledger.fund_account('A00000004', 'S00000002', 20000);

--                               object       tenant       principal
insert into bank.objects values ('B00000001', 'demo-bank', 'demo-customer'),  -- pays out
                                ('P00000001', 'demo-bank', 'demo-customer'),  -- is paid
                                ('K00000001', 'demo-bank', 'demo-customer'),  -- a card
                                ('K90000001', 'demo-bank', 'demo-customer');  -- a card that the bank declines

insert into records.files (file_id, tenant, principal) values ('F00000017', 'demo-bank', 'demo-customer');
insert into records.records (file_id, category, content)
    select 'F00000017', 'CORRESPONDENCE', 'letter ' || n from generate_series(1, 5) n;

commit;
