"""Telemetry of agents (OpenTelemetry): from OTLP's bytes to what a span says of a model call, a tool or an agent.

`otlp` reads requests of OTLP in either encoding, `names` has the table of attributes by dialect, `contents` reads what
was said, `reading` puts the three together. Pure: nothing here does I/O or reads a clock.
"""
