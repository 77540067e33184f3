"""The audit log of a role: every decision carries a hash of itself and of the decision before it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from ratchet.contract import ModelRollout


def seal(decision: ModelRollout, previous_hash: str | None) -> ModelRollout:
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


def audit_chain(
    decisions: Sequence[ModelRollout], newest_hash: str | None, untold: ModelRollout | None = None
) -> Audit:
    """The log held against itself, and its end against `newest_hash`, which the role's route keeps.

    `newest_hash` was read before the log, which may have grown since: it may stand anywhere in the chain. `untold`: the
    decision that is taken and waits to be announced; the log need not have it yet.
    """
    chain = _once(decisions)
    first = chain[0] if chain else None
    index = first_break(chain)
    if index is not None:
        broken = chain[index]
        fits = broken.hash == digest(broken)
        problem = "a decision before it was removed or inserted" if fits else "it is not what was decided"
        return Audit(len(chain), broken, problem, first)
    missing = not _reaches(chain, newest_hash, untold)
    return Audit(len(chain), None, "the newest decisions are missing from the log" if missing else None, first)


def _once(decisions: Sequence[ModelRollout]) -> list[ModelRollout]:
    """Each decision where it stands first: one told again, word for word, by a deployer that restarted is no other."""
    kept: dict[tuple[str, str | None, str], ModelRollout] = {}
    for decision in decisions:
        kept.setdefault((decision.event_id, decision.hash, digest(decision)), decision)
    return list(kept.values())


def _reaches(chain: Sequence[ModelRollout], newest_hash: str | None, untold: ModelRollout | None) -> bool:
    """Whether the chain has every decision that it must have by now."""
    told = {decision.hash for decision in chain}
    if newest_hash is None or newest_hash in told:
        return True
    if untold is None or untold.hash != newest_hash:
        return False
    return untold.previous_hash is None or untold.previous_hash in told
