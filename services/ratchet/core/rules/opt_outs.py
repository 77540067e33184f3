"""Who a message is about, and the keys under which the bucket `opt_outs` says that they are not to be recorded."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

from ratchet.core.contract.erasure import AGENT, SESSION, TRAJECTORY, USER
from ratchet.core.contract.opt_out import EVERY_ROLE, OptOut
from ratchet.core.contract.spans import Spans, run_id

Ref = tuple[str, str]
"""A kind, and what names one of it: the keyed hash of a user, the id of a session, agent or trajectory."""

_MEMBERS = (
    (USER, "user_ref"),
    (SESSION, "session_id"),
    (AGENT, "agent_id"),
    (SESSION, "session"),
    (AGENT, "agent"),
    (TRAJECTORY, "trajectory_id"),
    (TRAJECTORY, "workflow_id"),
    (TRAJECTORY, "recorded_as"),
    (TRAJECTORY, "parent_trajectory_id"),
    (TRAJECTORY, "chosen_trajectory_id"),
    (TRAJECTORY, "rejected_trajectory_id"),
)
"""Members of messages that name whom they are about."""


def refs_of(message: object) -> Iterator[Ref]:
    """Whom a message, the header of a turn, or spans are about."""
    if isinstance(message, Spans):
        yield TRAJECTORY, run_id(message.trace_id)
        for span in message.spans:
            yield from refs_of(span)
        return
    for kind, member in _MEMBERS:
        if ref := getattr(message, member, None):
            yield kind, ref


def keys_of(role: str, refs: Iterable[Ref]) -> Iterator[str]:
    """The keys of which any one says that nothing of these is recorded in a role."""
    for kind, ref in refs:
        digest = _digest(kind, ref)
        yield f"{role}.{digest}"
        yield f"{EVERY_ROLE}.{digest}"


def key_of(opt_out: OptOut) -> str:
    """The key that an opting out is about."""
    return f"{opt_out.role}.{_digest(opt_out.kind, opt_out.ref)}"


def _digest(kind: str, ref: str) -> str:
    return hashlib.blake2b(f"{kind}\n{ref}".encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
