"""A judge behind OpenAI's API: a model of the gateway, or of any server. It pays for each question once."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec
import structlog

from ratchet.bus.kv import Bucket
from ratchet.bus.message import JsonObject, Value, decode
from ratchet.core.errors import BadRequest, RatchetError, Rejected, Unavailable
from ratchet.core.judging.profile import JudgeProfile
from ratchet.core.judging.questions import (
    CHARACTERS,
    pair_question,
    preference_in,
    score_in,
    score_question,
    words_in,
)
from ratchet.core.rules.redaction import redacted
from ratchet.core.service.http_client import WRONG_REQUEST, Reply

log = structlog.get_logger()

MOST_TOKENS = 4096
"""Of a reply, with what a model that reasons thinks before it."""
INSTEAD: Mapping[str, str | None] = {"temperature": None, "max_tokens": "max_completion_tokens"}
"""Members of a question that OpenAI's models which reason refuse by name, and what they take in their place."""
PAUSES_S = (1.0, 4.0, 16.0)
"""Before a question is asked again: a judge that limits its rate, or failed once, answers soon."""


class Answer(Value, frozen=True, kw_only=True):
    """A reply as it is cached, without secrets and personal data."""

    text: str
    by: str
    """Who answered, as precisely as the server says: a policy's full name, else the model's."""


class Verdict(Value, frozen=True, kw_only=True):
    """A score with its words."""

    score: float
    """0..1."""
    words: str
    by: str


class Comparison(Value, frozen=True, kw_only=True):
    """Which of two answers is better, with the judge's words."""

    prefers_first: bool | None
    """None: neither is better, or the reply holds no verdict."""
    words: str = ""
    by: str = ""


class Exchanging(Protocol):
    """The part of a client that a judge needs: `AsyncApiClient`, or a `PaidClient`."""

    async def exchange(self, method: str, path: str, *, body: JsonObject) -> Reply: ...

    def content_of(self, reply: Reply) -> bytes: ...


class Answers(Protocol):
    """Where answers are kept, by the digest of their question."""

    async def get(self, digest: str) -> Answer | None: ...

    async def put(self, digest: str, answer: Answer) -> None: ...


class ChatJudge:
    """Asks a chat model, at temperature 0 where the model takes that."""

    def __init__(
        self,
        client: Exchanging,
        profile: JudgeProfile,
        answers: Answers | None = None,
        pauses_s: Sequence[float] = PAUSES_S,
    ) -> None:
        """`client`: of the url that `/chat/completions` follows. Without `answers` nothing is cached."""
        self.profile = profile
        self._client = client
        self._answers = answers
        self._pauses_s = pauses_s
        self._has_answered = False
        self._instead: dict[str, str | None] = {}
        """What this model takes, of `INSTEAD`."""

    @property
    def name(self) -> str:
        """The rater of what it says."""
        return self.profile.rater

    async def score(self, work: str) -> Verdict | None:
        """How good the work is by the rubric; None where the reply holds no score.

        Raises `BudgetSpent`, `BadRequest` for a text that the model does not take, `NotFound` or `Rejected` where it
        takes none (its name, or a key, is wrong), or `Unavailable`.
        """
        answer = await self._answer(score_question(self.profile.rubric, work))
        score = score_in(answer.text)
        return None if score is None else Verdict(score=score, words=words_in(answer.text), by=answer.by)

    async def compare(self, prompt: str, first: str, second: str) -> Comparison:
        """Which answer to a prompt is better. Raises as `score` does."""
        answer = await self._answer(pair_question(self.profile.rubric, prompt, first, second))
        return Comparison(prefers_first=preference_in(answer.text), words=words_in(answer.text), by=answer.by)

    async def _answer(self, messages: Sequence[JsonObject]) -> Answer:
        body: JsonObject = {
            "model": self.profile.model,
            "messages": messages,
            "temperature": 0,
            "max_tokens": MOST_TOKENS,
        }
        digest = hashlib.sha256(msgspec.json.encode([self.profile.url, body])).hexdigest()
        known = await self._answers.get(digest) if self._answers is not None else None
        if known is not None:
            return known
        answer = await self._asked(body)
        if self._answers is not None:
            await self._answers.put(digest, answer)
        return answer

    async def _asked(self, body: JsonObject) -> Answer:
        """Again after a pause, where the judge has answered before: one that never did is not there."""
        for pause_s in self._pauses_s:
            try:
                return await self._ask(body)
            except Unavailable:
                if not self._has_answered:
                    raise
            await asyncio.sleep(pause_s)
        return await self._ask(body)

    async def _ask(self, body: JsonObject) -> Answer:
        named = {self._instead.get(name, name): value for name, value in body.items()}
        sent: JsonObject = {name: value for name, value in named.items() if name is not None}
        reply = await self._client.exchange("POST", "/chat/completions", body=sent)
        try:
            content = self._client.content_of(reply)
        except Rejected as error:
            if reply.status not in WRONG_REQUEST:
                raise
            if error.param in INSTEAD and error.param in sent:
                self._instead[error.param] = INSTEAD[error.param]
                return await self._ask(body)
            raise BadRequest(str(error), param=error.param) from error
        try:
            completion = decode(content, _Completion)
        except msgspec.DecodeError as error:
            raise Unavailable(f"the answer of the judge {self.name} cannot be read: {error}") from error
        self._has_answered = True
        text = (completion.choices[0].message.content or "") if completion.choices else ""
        by = reply.headers.get("x-ratchet-policy") or completion.model or self.profile.model
        return Answer(text=redacted(text[-CHARACTERS:]), by=by[:200])


class KvAnswers:
    """`Answers` in a bucket. One that takes no more costs money, and no verdict."""

    def __init__(self, bucket: Bucket[Answer]) -> None:
        self._bucket = bucket

    async def get(self, digest: str) -> Answer | None:
        """See `Answers`. Raises `BusUnavailable`."""
        entry = await self._bucket.get(digest)
        return entry.value if entry else None

    async def put(self, digest: str, answer: Answer) -> None:
        """See `Answers`."""
        try:
            await self._bucket.put(digest, answer)
        except RatchetError as error:  # the verdict is there and paid: asked again, it would be paid again
            log.warning("a judge's answer is not cached", reason=str(error))


class _Message(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    message: _Message


class _Completion(msgspec.Struct):
    choices: list[_Choice]
    model: str | None = None
