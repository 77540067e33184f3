"""What the gateway answers agents besides completions: models, ends and feedback."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from ratchet.core.contract.bundle import Bundle
from ratchet.core.contract.http.answers import Answer
from ratchet.core.contract.training import TokenPrices


class Model(Answer, frozen=True, kw_only=True):
    """A role, or a version that can be asked for by name, in OpenAI's form."""

    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "ratchet"


class AnsweredModel(Model, frozen=True, kw_only=True):
    """A model, and who would answer for it now; for a key without the scope `view` the rest is null."""

    answered_by: str | None = None
    """`UPSTREAM/MODEL`, or the full name of a policy that an engine holds; null where nothing would answer."""
    prices: TokenPrices | None = None
    """Of that model's tokens, as they are set; null where no price is."""


class Models(Answer, frozen=True, kw_only=True):
    """The roles, and the versions that can be asked for by name."""

    object: Literal["list"] = "list"
    data: list[Model]


class FetchedBundle(Answer, frozen=True, kw_only=True):
    """The policy that a trajectory has got, and what it changes of calls: for agents that compose their own prompts."""

    trajectory_id: str
    role: str
    policy: str
    version: int
    digest: str
    """To be sent with each call as `x-ratchet-bundle`, once it was composed by this bundle; empty where an upstream
    answers that has no policy."""
    arm: str
    """`stable`, `canary`, `pinned` or `mixed`."""
    weight: float = 0.0
    """Canary weight at the draw, 0..1."""
    bundle: Bundle
    """Empty where calls go as agents send them."""


class BodyKept(Answer, frozen=True, kw_only=True):
    """A body was stored: messages of its role may refer to it."""

    sha256: str
    bytes: int


class Ended(Answer, frozen=True, kw_only=True):
    """The end of a trajectory was taken."""

    trajectory_id: str
    status: Literal["ended"] = "ended"
    roles: list[str]
    """The roles in which it has ended: the named one, else all that this gateway has seen."""
    ended_before: list[str]
    """Those of them in which this gateway remembers an earlier end."""
    note: str | None = None
    """The effect of this end in those roles; null when there are none."""


class FeedbackTaken(Answer, frozen=True, kw_only=True):
    """Feedback was taken."""

    feedback_id: str
    trajectory_id: str
    note: str | None = None
    """What becomes of it where no gateway remembers a call of the trajectory; null otherwise."""


class OptOutTaken(Answer, frozen=True, kw_only=True):
    """Someone has opted out, or in again: heeded here at once, at other gateways and clients within 5 s."""

    key: str
    """Names the entry, and not whom it is about."""
    kind: str
    """`user`, `session` or `agent`."""
    ref: str
    """What `ratchet erase` takes: of a user the keyed hash, else the id."""
    role: str | None
    """Null: every role."""
    opted_out: bool
    """Whether it is opted out of this now: after an opt-in to one role, by the entry of every role."""
    was_opted_out: bool
    """Whether it was before, as far as this gateway knew."""


class KeptOptOut(Answer, frozen=True, kw_only=True):
    """Someone who is not recorded."""

    key: str
    kind: str
    """`user`, `session`, `agent` or `trajectory`."""
    role: str | None
    """Null: every role."""
    at: datetime


class KeptOptOuts(Answer, frozen=True, kw_only=True):
    """Those who are not recorded, the newest first."""

    total: int
    opt_outs: list[KeptOptOut]
    """At most 1000."""


class DeletedResponse(Answer, frozen=True, kw_only=True):
    """A kept response was forgotten."""

    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True
