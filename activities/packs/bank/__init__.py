"""The bank pack: payouts, card charges and refunds at a payment provider, over HTTP.

Its tools write where no transaction of ours reaches, so each order has a key, a lookup and a fence.
"""

from typing import Final

from activities.packs.bank.charges import charge_bank_card
from activities.packs.bank.client import Bank
from activities.packs.bank.fields import DOWNSTREAM
from activities.packs.bank.objects import RESOURCES
from activities.packs.bank.payouts import send_bank_payout
from activities.packs.bank.refunds import refund_bank_charge
from activities.packs.bank.terms import DEFAULT_TERMS, Terms
from activities.tool import DownstreamPack, Pack

__all__ = ["DOWNSTREAM", "PACK", "Terms", "make_pack"]

_SHARE_OF_TIMEOUT: Final = 0.8
"""The client gives up before the engine does, so that it can still say what it saw."""


def make_pack(url: str, terms: Terms = DEFAULT_TERMS) -> Pack:
    """Make the pack for the bank at `url`."""
    bank = Bank(url, timeout_seconds=terms.timeout_seconds * _SHARE_OF_TIMEOUT)
    return Pack(
        name=DOWNSTREAM,
        tools=(send_bank_payout(bank, terms), charge_bank_card(bank, terms), refund_bank_charge(bank, terms)),
        resources=RESOURCES,
    )


PACK: Final = DownstreamPack(downstream=DOWNSTREAM, make=make_pack)
