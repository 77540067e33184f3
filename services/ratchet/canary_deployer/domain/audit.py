"""The audit log of a role: every decision carries a hash of itself and of the decision before it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from ratchet.messages import ModelRollout


def sealed(decision: ModelRollout, previous_hash: str | None) -> ModelRollout:
    """The decision with its place in the chain."""
    linked = msgspec.structs.replace(decision, previous_hash=previous_hash, hash=None)
    return msgspec.structs.replace(linked, hash=digest(linked))


def digest(decision: ModelRollout) -> str:
    """sha256 of the decision without its own hash, keys sorted: the same after any JSON round trip."""
    bare = msgspec.structs.replace(decision, hash=None)
    return hashlib.sha256(msgspec.json.encode(bare, order="sorted")).hexdigest()


def first_break(decisions: Sequence[ModelRollout]) -> int | None:
    """Index of the first decision, in order, that was changed, removed or inserted; None if the chain holds."""
    previous = decisions[0].previous_hash if decisions else None
    for index, decision in enumerate(decisions):
        if decision.previous_hash != previous or decision.hash != digest(decision):
            return index
        previous = decision.hash
    return None
