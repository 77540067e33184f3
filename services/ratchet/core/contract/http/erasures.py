"""Erasures over HTTP, as the coordinator takes and shows them."""

from __future__ import annotations

from typing import Annotated

import msgspec

from ratchet.core.contract.erasure import KINDS, LONGEST_REF
from ratchet.core.contract.http.answers import Answer, Instant
from ratchet.core.contract.values import Role, listed

NOT_ASKED = "not_asked"
"""The phase of what `dry_run` shows."""


class ReceiptOut(Answer, frozen=True, kw_only=True):
    """What was erased, signed."""

    receipt: str
    """JSON, as it was signed."""
    signature: str
    """Ed25519 over the bytes of `receipt`, in base64."""
    public_key: str
    """The installation's, in base64."""


class ErasureIn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whose data to erase."""

    kind: Annotated[str, listed(*KINDS)]
    """`user`, `session`, `agent` or `trajectory`."""
    ref: Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST_REF)]
    """The keyed hash of the user (`user_ref`), or the id of the session, agent or trajectory: all of it."""
    role: Role | None = None
    """In this role alone; absent: in every one."""
    retrain: bool = False
    """Train the stable policies anew that learned from it, and remove those afterwards."""
    receipt: ReceiptOut | None = None
    """Carry the erasure of a receipt out again, with its id and time: after a restore."""
    unverified: bool = False
    """Take a receipt that another key has signed, or whose text was changed: where the installation's key was lost."""


class RewrittenSnapshotOut(Answer, frozen=True, kw_only=True):
    """A snapshot that had rows of theirs."""

    before: str
    """Digest of its manifest, which stays."""
    after: str | None
    """Digest of the manifest of the other rows."""
    trajectories: int
    erased: int
    """How many of its trajectories were theirs."""


class TaintedPolicyOut(Answer, frozen=True, kw_only=True):
    """A policy, bundle or reward model that learned from what was erased."""

    digest: str
    role: str
    kind: str
    """`adapter`, `model`, `bundle` or `reward_model`."""
    share: float
    """Of the trajectories that it was trained on itself; 0: only a policy that it continues was."""
    name: str | None
    removed: bool
    """Whether its files are gone from the object store."""


class ErasureOut(Answer, frozen=True, kw_only=True):
    """An erasure, and how far it is."""

    erasure_id: str
    kind: str
    ref: str
    role: str | None
    asked_by: str
    asked_at: Instant
    phase: str
    """`awaits_approval`, `asked`, `removed` (from streams and tables), `done`; `not_asked` with `dry_run`."""
    retrain: bool
    ids: int
    """How many ids it covers: of trajectories, traces, preferences and pieces of feedback."""
    removed: dict[str, int]
    """By place, what was removed: messages of a stream, rows of a table, objects below a prefix. It was more where a
    crash came between."""
    damaged: list[str]
    """Files of the archive that cannot be read, which were left as they are."""
    removed_at: Instant | None
    done_at: Instant | None
    snapshots: list[RewrittenSnapshotOut]
    tainted: list[TaintedPolicyOut]
    trainings: dict[str, str]
    """By role, the job that trains its stable policy anew."""


class ErasuresOut(Answer, frozen=True, kw_only=True):
    """All erasures, the newest first."""

    erasures: list[ErasureOut]
