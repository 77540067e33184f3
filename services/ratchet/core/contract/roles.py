"""Roles of agents, and the messages on their subjects."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.bus.message import Message

DEFAULT_ROLE = "default"
"""The role of messages on the bare subject."""


def role_subject(topic: str, role: str) -> str:
    """The subject of `topic` for `role`; the default role uses the bare subject."""
    return topic if role == DEFAULT_ROLE else f"{topic}.{role}"


class RoleMessage(Message, frozen=True, kw_only=True, omit_defaults=True):
    """A message on the subject of its role, which each kind declares in its own place."""

    if TYPE_CHECKING:
        role: str

    @property
    def subject(self) -> str:
        return role_subject(self.TOPIC, self.role)
