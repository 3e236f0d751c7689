"""The faults of the demo: points at which its worker can be stopped, each disarmed until a scene arms it.

The worker is started with all of them (`worker/faults.py`); a point whose marker file is there lets it pass, so that
arming means removing the marker, and the marker's return tells that the point is reached.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from worker.demo.claims import until

if TYPE_CHECKING:
    from pathlib import Path

BEFORE_DEBIT: Final = "pause-before:debit_frozen_funds@1"
AFTER_DEBIT: Final = "pause-after:debit_frozen_funds@1"
BEFORE_TRANSFER: Final = "pause-before:transfer_customer_funds@1"
POINTS: Final = (BEFORE_DEBIT, AFTER_DEBIT, BEFORE_TRANSFER)


class Faults:
    """The points and where their markers are."""

    def __init__(self, directory: Path) -> None:
        """Make the directory, and disarm every point."""
        self._directory = directory
        directory.mkdir()
        for point in POINTS:
            (directory / point).touch()

    @property
    def variables(self) -> dict[str, str]:
        """What the worker's environment has to say."""
        return {
            "BACKSTAY_FAULTS": ",".join(POINTS),
            "BACKSTAY_FAULTS_DIR": str(self._directory),
        }

    def arm(self, point: str) -> None:
        """Let the worker stop the next time it comes by, once."""
        (self._directory / f"{point}.end").unlink(missing_ok=True)
        (self._directory / point).unlink()

    async def reached(self, point: str) -> None:
        """Wait until the worker stands there. Raises DemoFailedError."""
        await until(f"the worker to reach {point}", (self._directory / point).exists)

    def end(self, point: str) -> None:
        """Let the worker go on."""
        (self._directory / f"{point}.end").touch()
