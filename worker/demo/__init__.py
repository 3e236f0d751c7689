"""`backstay demo`: every promise of the engine, shown on real servers and held against the tables."""

from worker.demo.play import run

__all__ = ["run"]
