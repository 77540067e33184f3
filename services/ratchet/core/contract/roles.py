"""Roles of agents, and the subjects of messages about them."""

from __future__ import annotations

DEFAULT_ROLE = "default"
"""The role of messages on the bare subject."""


def role_subject(topic: str, role: str) -> str:
    """The subject of `topic` for `role`; the default role uses the bare subject."""
    return topic if role == DEFAULT_ROLE else f"{topic}.{role}"
