"""Engines that a gateway can ask: those that hold our policies, and any other server of OpenAI's API."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from aiohttp import ClientSession

from ratchet.errors import ConfigError
from ratchet.gateway.engines.http_post import Address, HttpPost
from ratchet.gateway.engines.openai import OpenAiEngine
from ratchet.gateway.settings import UpstreamSettings


def openai_engine(settings: UpstreamSettings, session: ClientSession) -> OpenAiEngine:
    """A server of OpenAI's API. Raises `ConfigError` when its key is not in the environment."""
    headers: dict[str, str] = {}
    if settings.api_key_env is not None:
        key = os.environ.get(settings.api_key_env)
        if not key:
            raise ConfigError(f"upstream {settings.name}: {settings.api_key_env} is not set")
        headers["authorization"] = f"Bearer {key}"
    address = Address(settings.base_url, headers, settings.connect_timeout_s, settings.timeout_s)
    return OpenAiEngine(HttpPost(session, settings.name, address), settings.name, settings.models)


KINDS: Mapping[str, Callable[[UpstreamSettings, ClientSession], OpenAiEngine]] = {"openai": openai_engine}
"""By `kind` of an upstream."""
