"""Judges as settings describe them: where they are asked, with which key, and how much they may spend."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import datetime

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ratchet.bus.kv import Bucket
from ratchet.core.contract.roles import DEFAULT_ROLE
from ratchet.core.contract.training import CallBudget, TokenPrices
from ratchet.core.judging.profile import JudgeProfile
from ratchet.core.judging.questions import RUBRIC
from ratchet.core.judging.spending import DailyLedger
from ratchet.core.rules.arms import PINNED
from ratchet.core.rules.call_budget import Amounts, limit_of
from ratchet.core.service.engine_list import PriceSettings, key_in
from ratchet.core.service.http_client import Peer, bearer
from ratchet.core.service.settings import OptionalHttpAddress

AGENT = "judge"
"""As turns of the gateway name who asks."""
ANSWER_S = 120.0
"""A judge may think for a while."""
ANSWER_BYTES = 1024 * 1024
"""Most bytes of an answer: a reply of 4,096 tokens has some twenty thousand."""


class JudgeSettings(BaseModel):
    """A judge as settings describe it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = Field(min_length=1)
    """The model: a role or an upstream's model as the gateway knows it, or one of `url`."""
    url: OptionalHttpAddress = None
    """Another server of OpenAI's API, `/v1` included; unset: the gateway."""
    api_key_env: str | None = None
    """Name of the environment variable with its key; unset: the gateway's own, and none for `url`."""
    rubric: str = Field(default=RUBRIC, min_length=1)
    """What is good work."""
    tries: int = Field(default=0, ge=0, le=4)
    """Earlier tries of the same task that each one is compared with, in both orders; 0: scored by the rubric alone."""
    calls_per_day: int = Field(default=1000, ge=1)
    """Most calls in a day (UTC), those whose answer never came included."""
    usd_per_day: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Most US dollars in a day, at `prices`."""
    prices: PriceSettings | None = None
    """Price of the model's tokens."""

    @model_validator(mode="after")
    def _priced(self) -> JudgeSettings:
        if self.usd_per_day is not None and (self.prices is None or not self.prices.prompt + self.prices.completion):
            raise ValueError("usd_per_day counts nothing without the model's prices")
        return self

    @property
    def profile(self) -> JudgeProfile:
        """Its identity."""
        return JudgeProfile(self.model, self.rubric, self.url or "", self.tries)

    @property
    def token_prices(self) -> TokenPrices | None:
        """Its prices, as a ledger needs them."""
        return self.prices and TokenPrices(prompt=self.prices.prompt, completion=self.prices.completion)

    def ledger(self, bucket: Bucket[Amounts], name: str, now: Callable[[], datetime]) -> DailyLedger:
        """Its budget. `name`: whose judge it is, such as a role."""
        limit = limit_of(CallBudget(calls=self.calls_per_day, usd=self.usd_per_day))
        return DailyLedger(bucket, name, limit, now)

    def peer(self, gateway_url: str, gateway_key: str | None, environment: Mapping[str, str] = os.environ) -> Peer:
        """Where it is asked; no other server gets the gateway's key. Through the gateway its calls are in no statistic
        and no training.

        Raises `ConfigError` where the environment lacks its key.
        """
        key = None if self.url else gateway_key
        if self.api_key_env:
            key = key_in(environment, self.api_key_env, f"judge {self.model}")
        headers = {**bearer(key), "x-ratchet-agent": AGENT, "x-ratchet-arm": PINNED}
        url = self.url or f"{gateway_url.rstrip('/')}/v1"
        return Peer("the judge", url, headers, ANSWER_S, answer_bytes=ANSWER_BYTES)


def entry_of(judges: Mapping[str, JudgeSettings], role: str) -> str | None:
    """The name of a role's judge among those that settings name, which may be `default`; None where it has none."""
    return next((name for name in (role, DEFAULT_ROLE) if name in judges), None)
