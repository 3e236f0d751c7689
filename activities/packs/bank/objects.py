"""Whose the bank's objects are: our own register of accounts, payees and cards, and the charges that sagas made.

The bank knows nobody of ours by name, so who may name what is decided here, before anything is sent.
"""

from typing import Final, LiteralString

OPEN: Final = frozenset({"ACTIVE"})
CHARGED: Final = frozenset({"CHARGED"})

_REGISTERED: Final[LiteralString] = """
select object_id, tenant, principal, state, currency, null::bigint as available_cents, null::bigint as limit_cents
from bank.objects where object_id = any(%s)
"""

_CHARGE: Final[LiteralString] = """
select e.response::jsonb ->> 'charge_id' as object_id, i.tenant, i.principal,
    case e.state when 'LANDED' then 'CHARGED' else 'REFUNDED' end as state,
    e.response::jsonb ->> 'currency' as currency, null::bigint as available_cents, null::bigint as limit_cents,
    true as draws_on_tenant
from backstay.effects e join backstay.intents i using (intent_key)
where e.tool = 'charge_bank_card' and e.direction = 'execute' and e.response is not null
  and e.response::jsonb ->> 'charge_id' = any(%s)
"""
"""What a refund gives is the tenant's money. How much is left of a charge only the bank knows: it refuses more."""

RESOURCES: Final[dict[str, LiteralString]] = {
    "bank_account": _REGISTERED,
    "bank_payee": _REGISTERED,
    "bank_card": _REGISTERED,
    "bank_charge": _CHARGE,
}
