"""Asks a reward model for scores of conversations: `/classify` of an engine, `engine_local` or vLLM."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from ratchet.bus.message import JsonObject, decode
from ratchet.core.errors import BadRequest, Rejected, Unavailable
from ratchet.core.evaluation.http_player import Exchanging
from ratchet.core.service.http_client import WRONG_REQUEST
from ratchet.core.stores.policies import digest_in

SHOWN = 8
"""Characters of a digest that people see."""


class _Class(msgspec.Struct, frozen=True):
    probs: Annotated[Sequence[Annotated[float, Meta(ge=0, le=1)]], Meta(min_length=1)]


class _Classified(msgspec.Struct, frozen=True):
    data: Annotated[Sequence[_Class], Meta(min_length=1)]


class RewardScores:
    """One reward model, named by the sha256 of its manifest."""

    def __init__(self, client: Exchanging, digest: str) -> None:
        self._client = client
        self.digest = digest

    @property
    def name(self) -> str:
        """What people call it."""
        return f"reward_model-{self.digest[:SHOWN]}"

    async def score(self, messages: Sequence[JsonObject], tools: Sequence[JsonObject] = ()) -> float:
        """0..1: the chance that the conversation is preferred to one with reward 0.

        Raises `BadRequest` for a conversation that it cannot read whole, `NotFound` or `Rejected` where the engine does
        not serve it, and `Unavailable`.
        """
        body: JsonObject = {"model": self.digest, "messages": messages, **({"tools": tools} if tools else {})}
        reply = await self._client.exchange("POST", "/classify", body=body)
        try:
            content = self._client.content_of(reply)
        except Rejected as error:
            raise BadRequest(str(error)) if reply.status in WRONG_REQUEST else error from error
        try:
            return decode(content, _Classified).data[0].probs[0]
        except msgspec.DecodeError as error:
            raise Unavailable("the answer holds no score") from error


def reward_model_digest(name: str) -> str:
    """The digest of a reward model that is named by it, or by the uri of its manifest. Raises `Rejected`."""
    digest = digest_in(name) if name.startswith("s3://") else name if re.fullmatch(r"[0-9a-f]{64}", name) else None
    if digest is None:
        raise Rejected(f"{name!r} names no reward model: give the sha256 of its manifest, or the manifest's uri")
    return digest
