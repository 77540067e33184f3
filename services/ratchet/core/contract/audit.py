"""The audit log: who did what, a chain of entries for each program."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, ClassVar

from msgspec import Meta

from ratchet.bus.message import Message, Value, named_id
from ratchet.core.contract.values import Count, KeyId, Ordinal, Role, Sha256, listed, matching

LONGEST, MOST = 256, 50
"""Characters of a text in an entry, and how many objects one names."""
Program = Annotated[str, matching(r"^[a-z0-9_]{1,64}$")]
Short = Annotated[str, matching(rf"^[\s\S]{{1,{LONGEST}}}$")]


class AuditEntry(Message, frozen=True, kw_only=True, omit_defaults=True):
    """One act. It names objects by their ids and says nothing of what is in them."""

    TOPIC: ClassVar[str] = "agent.rl.audit.v1"

    service: Program
    """Which program did it, or let it be done: the chain is its own."""
    number: Ordinal
    """Place in the chain, from 1 on."""
    at: datetime
    """By the program's clock. The order is that of the numbers."""
    act: Annotated[str, matching(r"^[a-z][a-z0-9_]{0,63}$")]
    """Such as `promote`, `create_key` or `get_trajectory`: an operation of an HTTP API by its name, or a command."""
    outcome: Annotated[str, listed("asked", "done", "failed", "unrecorded")]
    """`asked`: permitted, and about to be done; `done`; `failed`: it was not done, see `of`; `unrecorded`: reads,
    or urgent acts, that the log could not take."""
    actor: Short
    """Who: the name and the id of an API key, whom it acts for, or the program itself."""
    key_id: KeyId | None = None
    """API key that the request came with."""
    role: Role | None = None
    """Role that it is about."""
    objects: Annotated[list[Short], Meta(max_length=MOST)] | None = None
    """Ids of what it is about, the first of them where they are many."""
    count: Count | None = None
    """How many objects, or reads, there were."""
    of: Ordinal | None = None
    """Of a failed act: the number of the entry that says that it was asked for."""
    status: Annotated[int, Meta(ge=100, le=599)] | None = None
    """Of a failed act: the HTTP status that its caller got."""
    previous_hash: Sha256 | None = None
    """Hash of the entry before this one; absent in the first one."""
    hash: Sha256 | None = None
    """sha256 of this entry without its hash."""

    @property
    def subject(self) -> str:
        return f"{self.TOPIC}.{self.service}"

    @property
    def event_id(self) -> str:
        return named_id(self.TOPIC, self.service, self.hash)


class AuditHead(Value, frozen=True, kw_only=True):
    """The end of a chain at one moment, signed: what stands before it no one can change without the key."""

    service: Program
    """Whose chain it is."""
    number: Ordinal
    """Of its newest entry."""
    hash: Sha256
    """Of its newest entry."""
    at: datetime
    """When it was signed."""
    key: Annotated[str, matching(r"^[0-9a-f]{64}$")]
    """Public half of the Ed25519 key, in hexadecimal."""
    signature: Annotated[str, matching(r"^([0-9a-f]{128})?$")] = ""
    """Of the members before it as JSON with sorted keys, in hexadecimal."""
