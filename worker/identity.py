"""Guard: `contracts`, `workflows`, `activities` and `worker` are really ours.

Import names are folder names, because Backstay is an application with an environment of its own. In a shared
environment another distribution may own one of these common names, and half an engine would run with a stranger's
other half. So every process asks first.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

PACKAGES = ("contracts", "workflows", "activities", "worker")


class IdentityError(RuntimeError):
    """A package of ours is shadowed or missing; the text names the stranger and what to do."""


def check_identity() -> None:
    """Make sure that all four packages come from the place that this very file comes from.

    One distribution puts all its packages side by side: in site-packages (wheel) or in the checkout (editable).
    Nothing is imported that was not yet. Raises: IdentityError.
    """
    home = Path(__file__).resolve().parents[1]
    strangers = {name: found for name in PACKAGES if (found := _location(name)) != home / name}
    if not strangers:
        return
    details = "; ".join(f"{name} is {found or 'missing'}, not {home / name}" for name, found in strangers.items())
    raise IdentityError(
        f"Backstay would run with packages that are not its own: {details}. Another distribution or a folder on "
        "PYTHONPATH has the same import name. Install Backstay into an environment of its own, and start it there.",
    )


def _location(name: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):  # ValueError: a module in sys.modules without a spec
        return None
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).resolve().parent
