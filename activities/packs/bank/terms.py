"""What the bank promises about time, as its contract with us says; tests agree on shorter ones."""

from dataclasses import dataclass

from contracts.tool import DAY_SECONDS


@dataclass(frozen=True, kw_only=True)
class Terms:
    """Times in seconds."""

    timeout_seconds: float = 5.0
    key_lifetime_seconds: int = DAY_SECONDS
    in_flight_seconds: int = 30
    patience_seconds: int = 3_600
    compensations_per_minute: int = 60


DEFAULT_TERMS = Terms()
