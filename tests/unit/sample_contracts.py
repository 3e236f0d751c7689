"""A few small tools for tests of the contracts layer: every shape of field, none of the ledger's code."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from contracts.base import Contract
from contracts.reasons import Reason
from contracts.registry import Registry
from contracts.tool import (
    Access,
    AmountUse,
    AnyContract,
    Description,
    Duty,
    Example,
    ResourceUse,
    SideEffect,
    ToolContract,
)

AMOUNT_CENTS_MAX = 10_000_000_000


class Currency(StrEnum):
    """Currencies of the samples."""

    EUR = "EUR"
    USD = "USD"


AccountId = Annotated[
    str, Field(pattern=r"^ACC[0-9]{8}$", description="The account, as looked up.", examples=["ACC00000001"])
]
HoldId = Annotated[
    str, Field(pattern=r"^HLD[0-9]{10}$", description="The hold that a freeze opened.", examples=["HLD0000000001"])
]
AmountCents = Annotated[
    int, Field(ge=1, le=AMOUNT_CENTS_MAX, description="How much, in cents of the currency.", examples=[12_500])
]
CurrencyField = Annotated[Currency, Field(description="Currency of the account.", examples=["EUR"])]
Memo = Annotated[str, Field(max_length=200, description="Words for the statement.", examples=["Bicycle repair"])]


class FreezeInput(Contract):
    """Arguments of a freeze."""

    account_id: AccountId
    amount_cents: AmountCents
    currency: CurrencyField
    hold_ttl_seconds: Annotated[
        int, Field(ge=60, le=604_800, description="How long the hold lasts.", examples=[3_600])
    ] = 86_400
    memo: Memo | None = None


class FreezeOutput(Contract):
    """What a freeze gives."""

    hold_id: HoldId
    held_cents: AmountCents
    currency: CurrencyField
    memo: Memo | None = None


class DebitInput(Contract):
    """Arguments of a debit."""

    hold_id: HoldId
    amount_cents: AmountCents
    currency: CurrencyField
    memo: Memo = ""


class DebitOutput(Contract):
    """What a debit gives."""

    debited_cents: AmountCents
    hold_id: HoldId


class NoteInput(Contract):
    """Arguments of a note: free text, lists and a union."""

    class ByAccount(Contract):
        """About an account."""

        kind: Literal["account"] = Field(description="What it is about.", examples=["account"])
        account_id: AccountId

    class ByHold(Contract):
        """About a hold."""

        kind: Literal["hold"] = Field(description="What it is about.", examples=["hold"])
        hold_id: HoldId

    text: Annotated[str, Field(max_length=1_000, description="The note itself.", examples=["Called back."])]
    tags: Annotated[
        tuple[Annotated[str, Field(max_length=40, description="A tag.", examples=["vip"])], ...],
        Field(max_length=5, description="Tags, in order.", examples=[["vip"]]),
    ] = ()
    about: Annotated[ByAccount | ByHold, Field(discriminator="kind", description="What it is about.")]
    urgent: Annotated[bool, Field(description="Whether somebody has to look today.")] = False
    secret: Annotated[str, Field(max_length=40, description="A code word.", examples=["apple"])] = ""


class NoteOutput(Contract):
    """What a note gives."""

    note_number: Annotated[int, Field(ge=1, le=2**53 - 1, description="Number of the note.", examples=[7])]


class BalanceInput(Contract):
    """Arguments of a balance check."""

    account_id: AccountId


class BalanceOutput(Contract):
    """What a balance check gives."""

    account_id: AccountId
    available_cents: Annotated[int, Field(ge=0, le=2**53 - 1, description="What may be spent.", examples=[100_000])]
    currency: CurrencyField


def describe(does: str) -> Description:
    """Fill the five sentences."""
    return Description(
        does=does, use_when="a test needs it.", not_when="it does not.", needs="nothing else.", returns="what it did."
    )


FREEZE: AnyContract = ToolContract(
    name="freeze_sample_funds",
    title="Freeze funds",
    description=describe("Holds an amount on an account."),
    side_effect=SideEffect.REVERSIBLE,
    input=FreezeInput,
    output=FreezeOutput,
    reasons=(Reason.FUNDS_INSUFFICIENT, Reason.WRONG_STATE),
    resources=(ResourceUse(argument="account_id", kind="account", access=Access.HOLD, states=frozenset({"ACTIVE"})),),
    amount=AmountUse(argument="amount_cents", currency="currency", taken_from="account_id"),
    identity_fields=("account_id", "amount_cents", "currency"),
    compensates_by="The hold is released.",
    examples=(
        Example(
            utterance="Hold 125 euros.",
            arguments={"account_id": "ACC00000001", "amount_cents": 12_500, "currency": "EUR"},
        ),
    ),
)
DEBIT: AnyContract = ToolContract(
    name="debit_sample_funds",
    title="Debit funds",
    description=describe("Captures a hold."),
    side_effect=SideEffect.REVERSIBLE,
    input=DebitInput,
    output=DebitOutput,
    reasons=(Reason.WRONG_STATE,),
    resources=(ResourceUse(argument="hold_id", kind="hold", access=Access.TAKE, states=frozenset({"OPEN"})),),
    amount=AmountUse(argument="amount_cents", currency="currency"),
    compensates_by="The debit is refunded.",
    examples=(
        Example(
            utterance="Debit it.", arguments={"hold_id": "HLD0000000001", "amount_cents": 12_500, "currency": "EUR"}
        ),
    ),
)
REFUND: AnyContract = ToolContract(
    name="refund_sample_debit",
    title="Refund a debit",
    description=describe("Gives money back for good."),
    side_effect=SideEffect.IRREVERSIBLE,
    input=DebitInput,
    output=DebitOutput,
    reasons=(Reason.WRONG_STATE,),
    resources=(ResourceUse(argument="hold_id", kind="hold", access=Access.PAY_INTO, states=frozenset({"CAPTURED"})),),
    amount=AmountUse(argument="amount_cents", currency="currency"),
    duty=Duty.ONE,
    owner="samples",
    examples=DEBIT.examples,
)
NOTE: AnyContract = ToolContract(
    name="write_sample_note",
    title="Write a note",
    description=describe("Writes a note that cannot fail."),
    side_effect=SideEffect.REVERSIBLE,
    input=NoteInput,
    output=NoteOutput,
    may_refuse=False,
    compensates_by="The note is struck out.",
    sensitive_fields=frozenset({"secret"}),
    examples=(
        Example(
            utterance="Note it.",
            arguments={"text": "Called back.", "about": {"kind": "account", "account_id": "ACC00000001"}},
        ),
    ),
)
BALANCE: AnyContract = ToolContract(
    name="check_sample_balance",
    title="Check a balance",
    description=describe("Reads a balance."),
    side_effect=SideEffect.READ_ONLY,
    input=BalanceInput,
    output=BalanceOutput,
    reasons=(Reason.OBJECT_NOT_FOUND,),
    resources=(ResourceUse(argument="account_id", kind="account", access=Access.READ, states=frozenset()),),
    examples=(Example(utterance="What is left?", arguments={"account_id": "ACC00000001"}),),
)

CONTRACTS = (FREEZE, DEBIT, REFUND, NOTE, BALANCE)


def sample_registry() -> Registry:
    """Hold all samples."""
    return Registry.of(CONTRACTS)
