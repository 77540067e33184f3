"""The audit log of a role: every decision carries a hash of itself and of the decision before it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class Audit:
    """What looking at a role's whole audit log found."""

    decisions: int
    broken: ModelRollout | None
    """The first decision that was changed, inserted, or comes after a removed one."""
    problem: str | None
    """Why the chain does not hold, in one sentence; None when it does."""
    first: ModelRollout | None
    """Where the log begins: with an older decision before it when the stream has forgotten that one."""


def audited(decisions: Sequence[ModelRollout], newest_hash: str | None) -> Audit:
    """The log held against itself, and its end against `newest_hash`, which the role's route keeps."""
    first = decisions[0] if decisions else None
    index = first_break(decisions)
    if index is not None:
        broken = decisions[index]
        fits = broken.hash == digest(broken)
        problem = "a decision before it was removed or inserted" if fits else "it is not what was decided"
        return Audit(len(decisions), broken, problem, first)
    last = decisions[-1].hash if decisions else None
    missing = newest_hash is not None and last != newest_hash
    return Audit(len(decisions), None, "the newest decisions are missing from the log" if missing else None, first)
