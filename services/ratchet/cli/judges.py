"""The judge that a command asks: one that settings name for a role, or one of its own options."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from pydantic import ValidationError

from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket
from ratchet.cli.api import KEY_VARIABLE
from ratchet.cli.endpoints import Endpoints
from ratchet.core.contract.state import JUDGE_SPEND, JUDGEMENTS
from ratchet.core.errors import NotFound, Rejected
from ratchet.core.judging.chat_judge import Answer, ChatJudge, KvAnswers
from ratchet.core.judging.settings import JudgeSettings, entry_of
from ratchet.core.rules.call_budget import Amounts
from ratchet.core.service.http_client import AsyncApiClient
from ratchet.core.service.paid_client import PaidClient
from ratchet.core.service.settings import read
from ratchet.local.local_stack.configuration import kind_of


def configured_judge(role: str) -> tuple[str, JudgeSettings]:
    """The name of a role's judge in the settings, and the judge, by the environment and the settings file here.

    Raises `NotFound` where there is none, and `ConfigError`.
    """
    settings: Any = read(kind_of("reward_computer"))  # `Any`: the table of settings has those of every service
    judges: Mapping[str, JudgeSettings] = settings.judges
    entry = entry_of(judges, role)
    if entry is None:
        raise NotFound(f"no judge is set for the role {role}: name one in `judges` of [reward_computer], or --model")
    return entry, judges[entry]


def named_judge(**options: object) -> JudgeSettings:
    """A judge of options. Raises `Rejected` for values that it cannot have."""
    try:
        return JudgeSettings.model_validate(options)
    except ValidationError as error:
        faults = (f"--{fault['loc'][0]}: {fault['msg']}" for fault in error.errors(include_url=False))
        raise Rejected("; ".join(faults)) from error


@asynccontextmanager
async def judge_on(bus: Bus, endpoints: Endpoints, name: str, settings: JudgeSettings) -> AsyncGenerator[ChatJudge]:
    """A judge that shares its answers, and its budget under `name`, with all other processes."""
    environment = {**os.environ, **endpoints.env}
    gateway = "" if settings.url else endpoints.url("gateway")
    peer = settings.peer(gateway, environment.get(KEY_VARIABLE), environment)
    ledger = settings.ledger(Bucket(bus, JUDGE_SPEND, Amounts), name, bus.now)
    async with AsyncApiClient(peer) as http:
        client = PaidClient(http, ledger, settings.token_prices)
        yield ChatJudge(client, settings.profile, KvAnswers(Bucket(bus, JUDGEMENTS, Answer)))
