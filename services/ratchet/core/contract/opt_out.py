"""Who is not to be recorded: what asks for it, and the entry that says so."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, ClassVar

from ratchet.bus.message import Value
from ratchet.core.contract.erasure import KINDS
from ratchet.core.contract.roles import DEFAULT_ROLE, RoleMessage
from ratchet.core.contract.values import Role, Text, Uuid, listed

EVERY_ROLE = "_all"
"""Stands for all roles."""
OPT_OUTS = "opt_outs"
"""Name of the bucket."""
NEWEST = "0" * 32
"""Digest of no one, written after each change in a role: the broker answers who asks for any key with the newest."""


class OptOut(RoleMessage, frozen=True, kw_only=True, omit_defaults=True):
    """From now on nothing of someone is recorded, or it is again; what was recorded is erased."""

    TOPIC: ClassVar[str] = "agent.rl.opt_out.v1"

    opt_out_id: Uuid
    kind: Annotated[str, listed(*KINDS)]
    """What `ref` names."""
    ref: Text
    """Of a user the keyed hash (`user_ref`), else the id of the session, agent or trajectory."""
    at: datetime
    role: Role = DEFAULT_ROLE
    """The role in which nothing is recorded; it is published on the subject of the same role. `_all`: in every role.
    Absent means `default`, the bare subject."""
    is_over: bool = False
    """It is taken back: recording begins again."""
    erases: bool = True
    """Whether what is stored of it is erased, too."""
    source: str | None = None
    """Who sent it: a client, a gateway, or the key that asked a gateway for it."""

    @property
    def event_id(self) -> str:
        return self.opt_out_id


class OptedOut(Value, frozen=True, kw_only=True, omit_defaults=True):
    """An entry of the bucket `opt_outs`, key `<role>.<digest>`: the digest of kind and reference is all it says."""

    kind: Annotated[str, listed(*KINDS)]
    at: datetime
    """When the broker had it, by its clock."""
