"""Deterministic orchestration: the pure reducer, the thin workflow driver, its messages."""
