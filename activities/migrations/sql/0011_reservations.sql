-- Holds that are reserved for a payee: only the confirmation of the step that opened one captures it, for that payee.

set local role backstay_owner;
set local search_path to ledger;

alter table holds add column payee account_id;          -- null: whoever has the hold says who gets the money
grant insert (payee) on holds to backstay_app;
