"""Processes: worker, command line, settings, telemetry and the local stack."""
