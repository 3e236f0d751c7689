"""The arguments and options that commands share."""

import re
from typing import Annotated

import typer

_INTENT_ID = re.compile(r"int_[a-z2-7]{4,26}")


def _intent_id(value: str) -> str:
    if not _INTENT_ID.fullmatch(value):
        raise typer.BadParameter(
            "an intent id begins with int_ and goes on with letters a-z and digits 2-7; give at least 8 characters."
            " `backstay intent list` shows them."
        )
    return value


IntentId = Annotated[
    str,
    typer.Argument(
        metavar="ID", callback=_intent_id, help="The intent's id, or a unique beginning of at least 8 characters."
    ),
]
IntentFile = Annotated[str, typer.Argument(metavar="FILE", help="The intent as JSON; - reads standard input.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the envelope as JSON on standard output, nothing else.")]
Tenant = Annotated[str | None, typer.Option(help="Instead of BACKSTAY_TENANT.")]
Principal = Annotated[str | None, typer.Option(help="On whose behalf, instead of BACKSTAY_PRINCIPAL.")]
Agent = Annotated[str | None, typer.Option(help="Who posts, instead of BACKSTAY_AGENT.")]
SessionId = Annotated[str | None, typer.Option("--session", help="The conversation's id, instead of the file's.")]
Reference = Annotated[
    str | None, typer.Option(help="What the business calls it; part of the key, unlike the file's own.")
]
Limit = Annotated[int, typer.Option(min=1, max=200, help="How many at most.")]
