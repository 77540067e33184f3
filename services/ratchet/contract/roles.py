"""Roles of agents, and the subjects on which messages about them travel."""

from __future__ import annotations

DEFAULT_ROLE = "default"
"""The role of messages published on the bare subject."""


def role_subject(topic: str, role: str) -> str:
    """The subject of `topic` for `role`; the default role uses the bare subject."""
    return topic if role == DEFAULT_ROLE else f"{topic}.{role}"
