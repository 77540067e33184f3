"""Erasures: whose data is removed, how far that is, and which policies had learned from it."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from ratchet.bus.message import Value
from ratchet.core.contract.state import Zoned
from ratchet.core.contract.values import Count, Role, Sha256, Share, Text, Uuid, listed

ERASURES = "erasures"
"""The bucket, a key for each erasure: its id."""
USER, SESSION, AGENT, TRAJECTORY = "user", "session", "agent", "trajectory"
KINDS = (USER, SESSION, AGENT, TRAJECTORY)
"""What a `ref` names: an end user (the keyed hash `user_ref`), or a session, agent or trajectory by its id."""
AWAITS_APPROVAL, ASKED, REMOVED, DONE = "awaits_approval", "asked", "removed", "done"
"""Phases. `removed`: by the collector, from streams and tables; `done`: by the coordinator, also from the objects."""
LONGEST_REF, MOST_DAMAGED = 1024, 100


class RewrittenSnapshot(Value, frozen=True, kw_only=True):
    """A snapshot that had rows of theirs: its manifest stays, for its ids and digest; its rows are gone."""

    before: Sha256
    """Digest of its manifest."""
    after: Sha256 | None
    """Digest of the manifest of the other rows; None where none were left, or its rows were gone before."""
    trajectories: Count
    """How many trajectories it was made of."""
    erased: Count
    """How many of these were theirs."""


class TaintedPolicy(Value, frozen=True, kw_only=True, omit_defaults=True):
    """A policy, bundle or reward model that learned from what was erased."""

    digest: Sha256
    """sha256 of its manifest."""
    role: Role
    kind: Text
    """`adapter`, `model`, `bundle` or `reward_model`."""
    share: Share
    """Of the trajectories that it was trained on itself; 0: only a policy that it continues was."""
    name: str | None = None
    """Its name in its role, where it is registered."""
    removed: bool = False
    """Its files are gone from the object store: another policy serves, which has learned from none of it."""


class Erasure(Value, frozen=True, kw_only=True, omit_defaults=True):
    """One erasure. It stays when it is done: what comes late of that data is dropped by it."""

    erasure_id: Uuid
    kind: Annotated[str, listed(*KINDS)]
    """`user`, `session`, `agent` or `trajectory`."""
    ref: Annotated[str, Meta(min_length=1, max_length=LONGEST_REF)]
    """Whose: the keyed hash of a user, or an id. Only what has exactly this one is theirs."""
    asked_by: str
    asked_at: Zoned
    """Data of later is no part of it."""
    phase: Annotated[str, listed(AWAITS_APPROVAL, ASKED, REMOVED, DONE)]
    """`awaits_approval`, `asked`, `removed` (from streams and tables) or `done`."""
    role: Role | None = None
    """In this role alone; absent: in every one."""
    retrain: bool = False
    """Whether the stable policies that learned from it are trained anew, and their files removed afterwards."""
    ids: Count = 0
    """How many ids it covers: of trajectories, traces, preferences and pieces of feedback."""
    removed: dict[str, Count] = field(default_factory=dict[str, int])
    """By place, what was removed: messages of a stream, rows of a table, objects below a prefix. It was more where a
    crash came between."""
    damaged: Annotated[list[Text], Meta(max_length=MOST_DAMAGED)] = field(default_factory=list[str])
    """Files of the archive that cannot be read, the first of them where they are many: they were left as they are, and
    may hold words of theirs. Once one is removed, or put back whole, the erasure goes on with it."""
    removed_at: Zoned | None = None
    done_at: Zoned | None = None
    snapshots: list[RewrittenSnapshot] = field(default_factory=list[RewrittenSnapshot])
    tainted: list[TaintedPolicy] = field(default_factory=list[TaintedPolicy])
    trainings: dict[str, Uuid] = field(default_factory=dict[str, str])
    """By role, the job that trains its stable policy anew."""
