"""A chain of hashes: each entry has a hash of itself and of the entry before it, so that a later change shows.

The struct of an entry has the members `previous_hash` and `hash`.
"""

from __future__ import annotations

import hashlib
from typing import TypeVar

import msgspec

E = TypeVar("E", bound=msgspec.Struct)


def seal(entry: E, previous_hash: str | None) -> E:
    """The entry with its place in the chain."""
    linked = msgspec.structs.replace(entry, previous_hash=previous_hash, hash=None)
    return msgspec.structs.replace(linked, hash=digest(linked))


def digest(entry: msgspec.Struct) -> str:
    """sha256 of the entry without its own hash, keys sorted: the same after any JSON round trip."""
    bare = msgspec.structs.replace(entry, hash=None)
    return hashlib.sha256(msgspec.json.encode(bare, order="sorted")).hexdigest()
