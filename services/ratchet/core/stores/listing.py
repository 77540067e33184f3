"""Objects as the store lists them: values, for rules that read no store."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

BODIES = "bodies"
"""Folder of the bodies of messages, which have a role's folder each."""

VALIDATIONS = "validations"
"""Folder of what the gates say of policies, each named by the policy's digest."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object as the store lists it."""

    uri: str
    size: int
    """Bytes."""
    at: datetime
    """When it was written, by the store's clock."""
