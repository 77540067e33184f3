"""The HTTP API of the coordinator."""
