"""Refusals: why a statement changed nothing, in a fixed order, so that one cause has one reason.

The statements of the tools carry all their conditions and either do everything or nothing. Only after nothing the
state is read again and explained. The order is: absent (or another tenant's), not the owner's, wrong state, wrong
currency, then amounts and times.
"""

from collections.abc import Collection, Mapping
from typing import Final, LiteralString

from activities.database import Row, Transaction
from activities.packs.ledger.fields import BALANCE_CENTS_MAX, Currency
from activities.tool import StepContext
from contracts.errors import FieldProblem, SagaError
from contracts.reasons import Reason

OPEN_TO_DEBITS: Final = frozenset({"ACTIVE"})
OPEN_TO_CREDITS: Final = frozenset({"ACTIVE", "FROZEN"})

_READ_ACCOUNTS: Final[LiteralString] = """
select account_id, tenant, principal, state, currency, limit_cents, balance_cents,
    balance_cents - held_cents as available_cents
from ledger.accounts where account_id = any(%(account_ids)s)
"""


async def read_accounts(transaction: Transaction, *account_ids: str) -> dict[str, Row]:
    """Read accounts by id; absent ones are missing from the result."""
    rows = await transaction.all(_READ_ACCOUNTS, {"account_ids": list(account_ids)})
    return {row["account_id"]: row for row in rows}


def require_object(
    row: Row | None, kind: str, object_id: str, context: StepContext, *, owned: bool = True, tenant_may: bool = False
) -> Row:
    """Refuse what is absent, of another tenant, or (if `owned`) of another principal.

    `tenant_may`: an object without a principal belongs to the tenant and is anybody's in it.
    """
    if row is None or row["tenant"] != context.tenant:
        raise SagaError(
            Reason.OBJECT_NOT_FOUND,
            f"There is no {kind} {object_id}; look it up, never invent an id.",
            details={f"{kind}_id": object_id},
        )
    if owned and row["principal"] != context.principal and not (tenant_may and row["principal"] is None):
        raise SagaError(
            Reason.NOT_OWNER,
            f"The {kind} {object_id} does not belong to {context.principal}; use one that does.",
            details={f"{kind}_id": object_id, "principal": context.principal},
        )
    return row


def require_state(row: Row, kind: str, object_id: str, allowed: Collection[str], **details: str) -> None:
    """Refuse an object whose state does not allow the operation."""
    if row["state"] not in allowed:
        wanted = " or ".join(sorted(allowed))
        raise SagaError(
            Reason.WRONG_STATE,
            f"The {kind} {object_id} is {row['state']}; this needs {wanted}.",
            details={f"{kind}_id": object_id, "state": row["state"], "allowed_states": sorted(allowed), **details},
        )


def require_currency(row: Row, kind: str, object_id: str, currency: Currency) -> None:
    """Refuse an amount in another currency than the object's."""
    if row["currency"] != currency:
        raise SagaError(
            Reason.CURRENCY_MISMATCH,
            f"The {kind} {object_id} is in {row['currency']}, the amount in {currency}; use {row['currency']}.",
            details={f"{kind}_id": object_id, "object_currency": row["currency"], "currency": str(currency)},
        )


def require_account(
    accounts: Mapping[str, Row],
    account_id: str,
    context: StepContext,
    *,
    states: Collection[str],
    currency: Currency,
    owned: bool,
) -> Row:
    """Return the account; refuse one that is absent, not owned, in a wrong state or in another currency.

    `owned`: it must be the principal's, or a system account of the tenant.
    """
    account = require_object(accounts.get(account_id), "account", account_id, context, owned=owned, tenant_may=True)
    require_state(account, "account", account_id, states)
    require_currency(account, "account", account_id, currency)
    return account


def require_limit(row: Row, amount_cents: int) -> None:
    """Refuse more than the account allows in a single hold or transfer."""
    limit_cents = row["limit_cents"]
    if limit_cents is not None and amount_cents > limit_cents:
        raise SagaError(
            Reason.LIMIT_EXCEEDED,
            f"Account {row['account_id']} allows {limit_cents} cents at a time, {amount_cents} were asked for; "
            "lower the amount or have the limit raised.",
            details={"account_id": row["account_id"], "limit_cents": limit_cents, "amount_cents": amount_cents},
        )


def require_funds(row: Row, amount_cents: int, context: StepContext) -> None:
    """Refuse more than is available; a system account always has enough. Another principal's balance stays untold."""
    available_cents = row["available_cents"]
    if available_cents is None or available_cents >= amount_cents:
        return
    details = {"account_id": row["account_id"], "amount_cents": amount_cents}
    known = "too little"
    if row["principal"] == context.principal:
        details["available_cents"] = available_cents
        known = f"{available_cents} cents"
    raise SagaError(
        Reason.FUNDS_INSUFFICIENT,
        f"Account {row['account_id']} has {known} available, {amount_cents} cents are needed; "
        "lower the amount or wait for funds.",
        details=details,
    )


def require_room(row: Row, amount_cents: int) -> None:
    """Refuse a credit after which the balance would not fit a JSON number."""
    if row["balance_cents"] is not None and row["balance_cents"] + amount_cents > BALANCE_CENTS_MAX:
        raise SagaError(
            Reason.LIMIT_EXCEEDED,
            f"Account {row['account_id']} cannot take {amount_cents} cents more: no balance exceeds 2^53 - 1 cents.",
            details={"account_id": row["account_id"], "amount_cents": amount_cents},
        )


def contradiction(path: str, message: str, details: Mapping[str, str]) -> SagaError:
    """Make the refusal of an argument that contradicts the object which another argument names."""
    return SagaError(
        Reason.ARGUMENTS_INVALID,
        message,
        details=details,
        fields=(FieldProblem(path=f"arguments.{path}", code="contradiction", message=message),),
    )


def race(object_id: str) -> SagaError:
    """Make the refusal when nothing is wrong any more: the object changed in between. The same call may be repeated."""
    return SagaError(
        Reason.IN_PROGRESS,
        f"{object_id} was changed by another transaction at the same moment; the same call is tried again.",
        details={"object_id": object_id},
    )
