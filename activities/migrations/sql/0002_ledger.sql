-- The ledger: customer accounts with stored balances, system accounts that are summed, one row per movement.
-- A balance only ever changes together with the movement or hold that explains it, in one transaction; the rules
-- below also hold against a wrong handler. Nothing here refers to the engine's tables by foreign key: what they
-- share is the effect's serial number, `transaction_id`.

create schema ledger authorization backstay_owner;
grant usage on schema ledger to backstay_app, backstay_readonly;
set local role backstay_owner;
set local search_path to ledger;

-- Words, ids and bounds are domains: unlike a table's checks, a domain's are prepared once per session, not once per
-- statement, and only assigned columns are checked (measured: a list of 26 words costs 30 us as a check, none here).
create domain account_id as text check (value ~ '^[AS][0-9]{8}$');
create domain customer_account_id as text check (value ~ '^A[0-9]{8}$');
create domain account_kind as text check (value in ('CURRENT', 'SAVINGS', 'CASH', 'MERCHANT', 'FEES', 'SUSPENSE'));
create domain account_state as text check (value in ('ACTIVE', 'FROZEN', 'CLOSED'));
create domain hold_state as text check (value in ('OPEN', 'CAPTURED', 'RELEASED', 'EXPIRED'));
create domain currency as text check (value in ('EUR', 'USD', 'GBP', 'CNY'));
create domain amount as bigint check (value > 0);
create domain balance as bigint check (value between 0 and 9007199254740991);    -- 2^53 - 1: a JSON number keeps it
create domain memo as text check (char_length(value) <= 140);
create domain hold_reason as text check (value in ('PURCHASE', 'BOOKING', 'DEPOSIT', 'RISK_REVIEW'));
create domain lock_reason as text check (value in
    ('SUSPECTED_FRAUD', 'CUSTOMER_REQUEST', 'LEGAL_ORDER', 'COMPLIANCE_REVIEW'));
create domain operation_type as text check (value in
    ('OPENING', 'CAPTURE', 'CREDIT', 'TRANSFER', 'REFUND', 'REVERSAL', 'ADJUSTMENT'));
create domain movement_reason as text check (value in (
    'OPENING', 'SAGA_COMPENSATION',
    'PURCHASE', 'BOOKING', 'FEE', 'PENALTY',
    'TOP_UP', 'CASHBACK', 'GOODWILL', 'INTEREST',
    'OWN_ACCOUNTS', 'PAYMENT', 'GIFT', 'LOAN_REPAYMENT',
    'CUSTOMER_REQUEST', 'GOODS_RETURNED', 'SERVICE_NOT_PROVIDED', 'DUPLICATE_CHARGE', 'FRAUD',
    'WRONG_ACCOUNT', 'WRONG_AMOUNT', 'DUPLICATE_MOVEMENT',
    'ROUNDING', 'MISPOSTING', 'WRITE_OFF', 'FEE_CORRECTION'));

-- A... belongs to a customer and stores its balance. S... belongs to the tenant and stores none: it would be hot.
create table accounts (
    account_id      account_id primary key,
    tenant          text not null,
    principal       text,
    kind            account_kind not null,
    state           account_state not null default 'ACTIVE',
    currency        currency not null,
    balance_cents   balance,
    held_cents      balance,
    limit_cents     balance,                            -- of a single hold or transfer; null: none
    locked_by       bigint,                             -- transaction_id of the effect that made it FROZEN
    opened_at       timestamptz not null default now(),
    closed_at       timestamptz,
    constraint accounts_available check (balance_cents >= held_cents),
    constraint accounts_stored_balance check (num_nulls(principal, balance_cents, held_cents) in (0, 3)),
    constraint accounts_closed_holds_nothing check (state <> 'CLOSED' or held_cents = 0)
) with (fillfactor = 70);                               -- room for updates in place: no index holds a balance

-- Locks of accounts, by the effect that set them. A revoked one (its effect was compensated) is never set again, also
-- not by the compensation of the unlock that had lifted it.
create table locks (
    transaction_id  bigint primary key,
    tenant          text not null,
    account_id      customer_account_id not null references accounts,
    reason_code     lock_reason not null,
    set_at          timestamptz not null default now(),
    lifted_at       timestamptz,
    revoked_at      timestamptz
);

-- Money that is set aside: captured once (the rest is released), released or expired. Never opened again.
create sequence hold_serial as bigint maxvalue 9999999999;
create table holds (
    hold_id         text primary key default 'H' || to_char(nextval('ledger.hold_serial'), 'FM0000000000'),
    tenant          text not null,
    account_id      customer_account_id not null references accounts,
    amount_cents    amount not null,
    captured_cents  bigint not null default 0 check (captured_cents between 0 and amount_cents),
    currency        currency not null,
    state           hold_state not null default 'OPEN',
    reason_code     hold_reason not null,
    memo            memo,
    opened_at       timestamptz not null default now(),
    expires_at      timestamptz not null,
    closed_at       timestamptz,
    transaction_id  bigint not null unique,
    step_key        text not null,
    intent_id       text not null,
    constraint holds_closed_at check ((closed_at is null) = (state = 'OPEN')),
    constraint holds_captured_cents check ((captured_cents > 0) = (state = 'CAPTURED'))
) with (fillfactor = 80);
create index holds_account on holds (account_id, hold_id);
-- By closed_at, not by state: so no plan can take it for finding one hold while the table is young and unanalysed.
create index holds_overdue on holds (expires_at) where closed_at is null;

-- A hold that became a debit, and how much of it was given back.
create sequence capture_serial as bigint maxvalue 9999999999;
create table captures (
    capture_id      text primary key default 'C' || to_char(nextval('ledger.capture_serial'), 'FM0000000000'),
    tenant          text not null,
    hold_id         text not null unique references holds,
    account_id      customer_account_id not null,
    credit_account  account_id not null,
    amount_cents    amount not null,
    refunded_cents  bigint not null default 0 check (refunded_cents between 0 and amount_cents),
    currency        currency not null,
    state           text not null generated always as (
        case refunded_cents when 0 then 'CAPTURED' when amount_cents then 'REFUNDED' else 'REFUNDING' end
    ) stored,
    captured_at     timestamptz not null default now(),
    transaction_id  bigint not null unique
) with (fillfactor = 80);

-- One row moves money: it cannot be unbalanced. Written once, never edited, never deleted.
create sequence movement_serial as bigint maxvalue 9999999999;
create table movements (
    movement_id     text primary key default 'M' || to_char(nextval('ledger.movement_serial'), 'FM0000000000'),
    tenant          text not null,
    debit_account   account_id not null,
    credit_account  account_id not null check (credit_account <> debit_account),
    amount_cents    amount not null,
    currency        currency not null,
    operation_type  operation_type not null,
    reason_code     movement_reason not null,
    memo            memo,
    reverses        text references movements,
    capture_id      text references captures,
    booked_at       timestamptz not null default now(),
    transaction_id  bigint unique,                      -- null: an opening, made by the owner and not by an effect
    step_key        text,
    intent_id       text,
    constraint movements_effect check (
        num_nulls(transaction_id, step_key, intent_id) = case operation_type when 'OPENING' then 3 else 0 end),
    constraint movements_reverses check ((reverses is not null) = (operation_type = 'REVERSAL')),
    constraint movements_capture check ((capture_id is not null) = (operation_type in ('CAPTURE', 'REFUND')))
);
-- An account's page is read newest first; a system account's balance is summed from the index alone.
create index movements_debit on movements (debit_account, movement_id) include (amount_cents);
create index movements_credit on movements (credit_account, movement_id) include (amount_cents);
create unique index movements_reversed_once on movements (reverses) where reverses is not null;
create index movements_capture on movements (capture_id) where capture_id is not null;

-- Both accounts exist, are the tenant's, have the currency and are not closed. In place of two foreign keys, which
-- would lock the row of a busy system account in every movement (and cost more: 28 us against 20). No lock is needed:
-- customers' rows are locked by whoever changes their balance, and close_account() lets no movement be under way
-- when it closes a system account.
create function check_movement() returns trigger language plpgsql as $$
begin
    if not exists (
        select from ledger.accounts payer, ledger.accounts payee
        where payer.account_id = new.debit_account and payee.account_id = new.credit_account
          and payer.tenant = new.tenant and payer.currency = new.currency and payer.state <> 'CLOSED'
          and payee.tenant = new.tenant and payee.currency = new.currency and payee.state <> 'CLOSED'
    ) then
        raise check_violation using message = format(
            'movement from %s to %s: an account is absent, closed, of another tenant or not in %s',
            new.debit_account, new.credit_account, new.currency);
    end if;
    return new;
end $$;
create trigger movements_check before insert on movements for each row execute function check_movement();

-- Who is told by the role that is at work, which a security definer does not change behind the owner's back.
create function require_owner() returns trigger language plpgsql as $$
begin
    if not pg_has_role(current_user, 'backstay_owner', 'usage') then
        raise insufficient_privilege using message = format('%s: %s', tg_table_name, tg_argv[0]);
    end if;
    return null;
end $$;
create trigger movements_opened_by_owner after insert on movements for each row
    when (new.operation_type = 'OPENING') execute function require_owner('only the owner opens balances');
create trigger accounts_closed_by_owner after update of state on accounts for each row
    when (new.state = 'CLOSED') execute function require_owner('only the owner closes accounts');

-- What is settled stays settled. AFTER triggers with WHEN: they cost a comparison, a BEFORE trigger a row lock.
create function refuse() returns trigger language plpgsql as $$
begin
    raise check_violation using message = format('%s: %s', tg_table_name, tg_argv[0]);
end $$;
create trigger accounts_customer_or_system after insert on accounts for each row
    when ((new.account_id like 'A%') <> (new.principal is not null)
        or (new.kind in ('CURRENT', 'SAVINGS')) <> (new.principal is not null)
        or (new.principal is null and new.limit_cents is not null))
    execute function refuse('A... is a customer''s (CURRENT, SAVINGS), S... the tenant''s and has no limit');
create trigger accounts_closed_is_final after update on accounts for each row
    when (old.state = 'CLOSED') execute function refuse('a closed account never changes');
create trigger holds_closed_is_final after update on holds for each row
    when (old.state <> 'OPEN') execute function refuse('a hold is resolved once');
create trigger captures_refunds_grow after update on captures for each row
    when (new.refunded_cents <= old.refunded_cents) execute function refuse('refunds only grow');

-- Every account with its balance; a system account's is summed here and stored nowhere.
create view account_balances as
select a.account_id, a.tenant, a.principal, a.kind, a.state, a.currency, a.limit_cents, a.opened_at,
    coalesce(a.balance_cents, s.balance_cents) as balance_cents,
    coalesce(a.held_cents, 0) as held_cents,
    coalesce(a.balance_cents, s.balance_cents) - coalesce(a.held_cents, 0) as available_cents
from ledger.accounts a
left join lateral (
    select ((select coalesce(sum(amount_cents), 0) from ledger.movements where credit_account = a.account_id)
          - (select coalesce(sum(amount_cents), 0) from ledger.movements where debit_account = a.account_id))::bigint
        as balance_cents
) s on a.balance_cents is null;

-- Each movement once per account that it touches, signed: `where account_id = $1 order by movement_id desc limit n`.
create view account_movements as
select debit_account as account_id, movement_id, -amount_cents::bigint as change_cents,
    credit_account as other_account,
    currency, operation_type, reason_code, memo, reverses, capture_id, booked_at, transaction_id, step_key, intent_id,
    tenant
from ledger.movements
union all
select credit_account, movement_id, amount_cents::bigint, debit_account,
    currency, operation_type, reason_code, memo, reverses, capture_id, booked_at, transaction_id, step_key, intent_id,
    tenant
from ledger.movements;

-- The owner's verbs. Nobody else may call them.
create function open_account(
    account_id text, tenant text, principal text, kind text, currency text, limit_cents bigint default null
) returns text language sql as $$
    insert into ledger.accounts (account_id, tenant, principal, kind, currency, limit_cents, balance_cents, held_cents)
    values ($1, $2, $3, $4, $5, $6, case when $1 like 'A%' then 0 end, case when $1 like 'A%' then 0 end)
    returning account_id
$$;

-- Give a customer's account its first balance, out of a system account; no effect explains it, so it is an OPENING.
create function fund_account(account_id text, from_account text, amount_cents bigint) returns text
language plpgsql as $$
declare booked text;
begin
    update ledger.accounts a set balance_cents = a.balance_cents + $3 where a.account_id = $1 and a.principal is not null;
    insert into ledger.movements (tenant, debit_account, credit_account, amount_cents, currency, operation_type, reason_code)
    select a.tenant, $2, $1, $3, a.currency, 'OPENING', 'OPENING' from ledger.accounts a
    where a.account_id = $1 and a.principal is not null and $2 like 'S%'
    returning movement_id into strict booked;
    return booked;
end $$;

-- Nothing moves on the account afterwards, for ever; what it has, it keeps. Refused while money is held.
create function close_account(account_id text) returns void language plpgsql as $$
begin
    if $1 like 'S%' then
        lock table ledger.movements in share row exclusive mode;    -- waits for movements under way, bars new ones
    end if;
    update ledger.accounts a set state = 'CLOSED', locked_by = null, closed_at = clock_timestamp()
    where a.account_id = $1 and a.state <> 'CLOSED' and coalesce(a.held_cents, 0) = 0;
    if found then
        return;
    elsif exists (select from ledger.accounts a where a.account_id = $1 and a.state = 'CLOSED') then
        return;
    elsif exists (select from ledger.accounts a where a.account_id = $1) then
        raise object_not_in_prerequisite_state using message = format('account %s has money held; release it first', $1);
    end if;
    raise no_data_found using message = format('there is no account %s', $1);
end $$;

revoke execute on function open_account, fund_account, close_account from public;
grant select on all tables in schema ledger to backstay_app, backstay_readonly;
grant update (balance_cents, held_cents, state, locked_by) on accounts to backstay_app;
grant insert (transaction_id, tenant, account_id, reason_code), update (lifted_at, revoked_at) on locks to backstay_app;
grant insert (tenant, account_id, amount_cents, currency, reason_code, memo, expires_at, transaction_id, step_key,
    intent_id), update (state, captured_cents, closed_at) on holds to backstay_app;
grant insert (tenant, hold_id, account_id, credit_account, amount_cents, currency, transaction_id),
    update (refunded_cents) on captures to backstay_app;
grant insert (tenant, debit_account, credit_account, amount_cents, currency, operation_type, reason_code, memo,
    reverses, capture_id, transaction_id, step_key, intent_id) on movements to backstay_app;
grant usage on all sequences in schema ledger to backstay_app;
