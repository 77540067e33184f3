"""What a call costs: the prices that an operator sets, and the cost of the tokens that an engine reported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from ratchet.core.contract.turn import Usage
from ratchet.dialects.answers import MOST_TOKENS

MILLION = 1_000_000
ANY = "*"
"""Stands for every model of an upstream that has no price of its own."""


class Price(msgspec.Struct, frozen=True, array_like=True):
    """US dollars for a million tokens."""

    prompt: float
    completion: float
    """Of output tokens, those of reasoning included."""
    cached_prompt: float | None = None
    """Of prompt tokens that the server had in its cache; None: as any other."""

    def cost_of(self, usage: Usage, *, with_prompt: bool = True) -> float:
        """US dollars. The prompt of several answers to one request is paid for once: `with_prompt` for the first."""
        cost = usage.completion * self.completion
        if with_prompt:
            cached = min(usage.cached or 0, usage.prompt)
            cached_price = self.prompt if self.cached_prompt is None else self.cached_prompt
            cost += (usage.prompt - cached) * self.prompt + cached * cached_price
        return cost / MILLION


FREE = Price(prompt=0.0, completion=0.0)
"""Of what the answer cache gives."""


@dataclass(frozen=True, slots=True)
class Prices:
    """The prices that are known."""

    engines: Mapping[str, Price | None] = field(default_factory=dict[str, Price | None])
    """Of Ratchet's own policies: by the name of their engine."""
    upstreams: Mapping[str, Mapping[str, Price]] = field(default_factory=dict[str, Mapping[str, Price]])
    """Of other servers: by the upstream's name and the model that it was asked for."""

    @property
    def are_set(self) -> bool:
        """Whether anything has a price."""
        return any(self.engines.values()) or any(self.upstreams.values())

    def price_of(self, server: str, model: str) -> Price | None:
        """The price of a model's tokens; None when it has none. `server`: an engine's name, or an upstream's."""
        if server in self.engines:
            return self.engines[server]
        models = self.upstreams.get(server, {})
        return models.get(model) or models.get(ANY)

    def by_model(self) -> dict[str, Price]:
        """By the name of a model that has a price: that of the first upstream which has one."""
        return {model: price for models in reversed(list(self.upstreams.values())) for model, price in models.items()}


NO_PRICES = Prices()
CHARACTERS = 4
"""Of a token, about, where an engine did not report how many there were."""


def likely(count: int) -> int:
    """A number of tokens that a server reported; 0 for one that none can have."""
    return count if 0 < count <= MOST_TOKENS else 0


class _Tokens(msgspec.Struct):
    """What an answer reports, in the words of either API."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    input_tokens: int = 0
    output_tokens: int = 0

    @property
    def prompt(self) -> int:
        return max(self.prompt_tokens, self.input_tokens)

    @property
    def completion(self) -> int:
        return max(self.completion_tokens, self.output_tokens)


class _Part(msgspec.Struct):
    usage: _Tokens | None = None


class _Report(msgspec.Struct):
    """A whole answer, or an event of one: Anthropic's first event and OpenAI's last hold an answer of their own."""

    usage: _Tokens | None = None
    message: _Part | None = None
    response: _Part | None = None

    @property
    def tokens(self) -> _Tokens:
        parts = (self.message, self.response)
        return self.usage or next((part.usage for part in parts if part and part.usage), None) or _Tokens()


_REPORT = msgspec.json.Decoder(_Report)


def spent_tokens(request: bytes, datas: Sequence[bytes], *, events: int = 0) -> tuple[int, int]:
    """(prompt, completion) tokens of an answer, for limits. `datas`: its body; of a stream, the data of the events that
    report tokens, its first and its last ones, and `events` is how many there are.

    What the engine does not report, or no engine can, is estimated, so that a limit also holds for agents that leave
    their streams early: a token for four bytes, and for each event.
    """
    prompt = completion = 0
    for data in datas:
        try:
            tokens = _REPORT.decode(data).tokens
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        prompt, completion = max(prompt, likely(tokens.prompt)), max(completion, likely(tokens.completion))
    estimated = events or sum(map(len, datas)) // CHARACTERS
    return prompt or len(request) // CHARACTERS, completion or estimated
