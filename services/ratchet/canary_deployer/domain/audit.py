"""The audit log of a role: every decision carries a hash of itself and of the decision before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ratchet.core.contract import ModelRollout
from ratchet.core.rules.hash_chain import digest


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
    """The result of checking a role's whole audit log."""

    decisions: int
    broken: ModelRollout | None
    """The first decision that was changed, inserted, or comes after a removed one."""
    problem: str | None
    """Why the chain does not hold, in one sentence; None when it does."""
    first: ModelRollout | None
    """Where the log begins: with an older decision before it when the stream has forgotten that one."""


def audit_chain(
    decisions: Sequence[ModelRollout], newest_hash: str | None, pending: ModelRollout | None = None
) -> Audit:
    """Checks each decision of the log against the one before it, and the log's end against the role's route.

    A deployer that restarted may have published a decision again, word for word: it counts where it stands first. The
    route keeps `newest_hash`. It was read before the log, which may have grown since, so any decision of the chain may
    have that hash. `pending` is a decision that was taken and is not published yet: the log may lack it.
    """
    published: dict[tuple[str, str | None, str], ModelRollout] = {}
    for decision in decisions:
        published.setdefault((decision.event_id, decision.hash, digest(decision)), decision)
    chain = list(published.values())
    first = chain[0] if chain else None
    index = first_break(chain)
    if index is not None:
        broken = chain[index]
        fits = broken.hash == digest(broken)
        problem = "a decision before it was removed or inserted" if fits else "it is not what was decided"
        return Audit(len(chain), broken, problem, first)
    ends = {newest_hash}
    if pending is not None and pending.hash == newest_hash:
        ends.add(pending.previous_hash)
    missing = None not in ends and ends.isdisjoint(decision.hash for decision in chain)
    return Audit(len(chain), None, "the newest decisions are missing from the log" if missing else None, first)
