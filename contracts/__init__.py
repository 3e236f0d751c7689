"""Data only: models and pure functions that every other package builds on."""
