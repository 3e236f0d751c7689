"""The courier's tools for workers in processes of their own; every book is open to them."""

from dataclasses import replace
from typing import Final

from tests.support.courier import PACK as COURIERS

PACK: Final = replace(
    COURIERS,
    resources={
        "book": "select unnest(%s::text[]) as object_id, 'demo-bank' as tenant, null as principal, 'OPEN' as state,"
        " null as currency, null::bigint as available_cents, null::bigint as limit_cents"
    },
)
