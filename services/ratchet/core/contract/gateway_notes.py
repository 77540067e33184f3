"""What a gateway process answered, for the others, so that any of them can answer what follows."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta, field

from ratchet.bus.message import Message, Value
from ratchet.core.contract.state import ServedPolicy

PROCESS = r"^[0-9a-f]{32}$"
Id = Annotated[str, Meta(pattern=r"^[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}$")]
Mark = Annotated[str, Meta(pattern=r"^[a-z][0-9a-f]{32}$")]
"""A digest of what a later call may repeat, and of the API key that may: it says nothing to others."""
Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}$")]
Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]
Role = Annotated[str, Meta(pattern=r"^[a-z0-9_-]{1,64}$")]
Text = Annotated[str, Meta(pattern=r"^.{1,256}$")]
Count = Annotated[int, Meta(ge=0, lt=2**31)]
Place = Annotated[int, Meta(ge=1, lt=2**31)]


class AnswerNote(Value, frozen=True, kw_only=True, omit_defaults=True):
    """By what the next call of a trajectory is recognised."""

    trajectory_id: Id
    turn_id: Id
    """The call that was answered."""
    marks: Annotated[list[Mark], Meta(min_length=1, max_length=256)]
    """Of the tool calls, of the response's id, or of the conversation up to and with the answer."""


class FailureNote(Value, frozen=True, kw_only=True, omit_defaults=True):
    """A call that failed, or that its client gave up: its repetition may go to any gateway."""

    trajectory_id: Id
    mark: Mark
    """Of its body."""
    length: Count
    """Bytes of its body."""
    parent_turn_id: Id | None = None
    """The call that it continues."""


class RepetitionNote(Value, frozen=True, kw_only=True, omit_defaults=True):
    """A failed call has been repeated: it has no other repetition."""

    trajectory_id: Id
    mark: Mark
    length: Count


class ArmNote(Value, frozen=True, kw_only=True, omit_defaults=True):
    """A trajectory in a role, as one process knows it."""

    trajectory_id: Id
    role: Role
    turns: Count = 0
    """Turns that this process has published, or is about to: the trajectory has the sum of all processes."""
    policy: ServedPolicy | None = None
    """The policy that its first call met."""
    arm: Annotated[str, Meta(pattern=r"^[a-z]{1,32}$")] | None = None
    weight: Annotated[float, Meta(ge=0, le=1)] = 0.0
    mixed: bool = False
    """Its policy changed in flight."""
    ended: bool = False
    has_outcome: bool = False
    fetched: bool = False
    """Its agent asked for the policy's bundle, to compose its prompts itself."""
    unrecorded: bool = False
    """Nothing of it is recorded."""
    enders: Annotated[list[Text], Meta(max_length=8)] = field(default_factory=list[Text])
    """Ids of keys that have called and may end it."""


class CallNote(Value, frozen=True, kw_only=True, omit_defaults=True):
    """A recorded call, as far as the record of the next one depends on it. Holds digests of what was said, no text."""

    trajectory_id: Id
    role: Role
    turn_id: Id
    number: Place
    """How many calls of the trajectory this process has recorded with it."""
    index: Count
    attempt: Place
    parent_turn_id: Id | None = None
    messages: Count = 0
    """Messages of its conversation, its answer included; 0: no call can continue it."""
    digest: Digest | None = None
    """Of those messages."""
    system: Digest | None = None
    """Of its system prompt as it was sent."""
    tools_digest: Sha256 | None = None
    applied: Sha256 | None = None
    """Of what the policy's bundle made of the request."""
    redacted: bool = False
    call_ids: Annotated[list[Text], Meta(max_length=256)] = field(default_factory=list[Text])
    """Ids of the tool calls of its answer."""
    ids: Count = 0
    """Token ids of its prompt and answer; 0: they are unknown, or must not be published."""
    ids_digest: Sha256 | None = None
    """sha256 of those ids as little-endian int32."""


class UseNote(Value, frozen=True, kw_only=True, omit_defaults=True):
    """What an API key with a limit per minute used."""

    key_id: Text
    tokens: Count = 0
    requests: Count = 0


class GatewayNotes(Message, frozen=True, kw_only=True, omit_defaults=True):
    """Notes of one moment. Each may come twice, late, or never: none takes back what another one says."""

    TOPIC: ClassVar[str] = "agent.rl.gateway.notes.v1"

    process: Annotated[str, Meta(pattern=PROCESS)]
    """The gateway process that sends; a new one with each start."""
    answers: list[AnswerNote] = field(default_factory=list[AnswerNote])
    failures: list[FailureNote] = field(default_factory=list[FailureNote])
    repetitions: list[RepetitionNote] = field(default_factory=list[RepetitionNote])
    ends: list[Id] = field(default_factory=list[Id])
    """Trajectories that their agents have ended."""
    arms: list[ArmNote] = field(default_factory=list[ArmNote])
    calls: list[CallNote] = field(default_factory=list[CallNote])
    uses: list[UseNote] = field(default_factory=list[UseNote])
