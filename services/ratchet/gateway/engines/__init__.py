"""The kinds of upstream: servers that answer when a policy cannot, or for roles without one."""

from __future__ import annotations

import os
from collections.abc import Callable

from aiohttp import ClientSession

from ratchet.errors import ConfigError
from ratchet.gateway.engines.base import Upstream
from ratchet.gateway.engines.http_post import Address, HttpPost
from ratchet.gateway.engines.openai import OpenAiEngine
from ratchet.gateway.settings import UpstreamSettings
from ratchet.plugins import PluginTable, callable_with


def openai_engine(settings: UpstreamSettings, session: ClientSession) -> OpenAiEngine:
    """A server of OpenAI's API. Raises `ConfigError` when the environment lacks its key."""
    headers: dict[str, str] = {}
    if settings.api_key_env is not None:
        key = os.environ.get(settings.api_key_env)
        if not key:
            raise ConfigError(f"upstream {settings.name}: the environment variable {settings.api_key_env} is not set")
        headers["authorization"] = f"Bearer {key}"
    address = Address(settings.base_url, headers, settings.connect_timeout_s, settings.timeout_s)
    return OpenAiEngine(HttpPost(session, settings.name, address), settings.name, settings.models)


BuildEngine = Callable[[UpstreamSettings, ClientSession], Upstream]

KINDS: PluginTable[BuildEngine] = PluginTable("ratchet.engines", "engine", {"openai": openai_engine}, callable_with(2))
"""By `kind` of an upstream."""


def build_upstream(settings: UpstreamSettings, session: ClientSession) -> Upstream:
    """Another server that can answer. Raises `ConfigError`."""
    if settings.kind not in KINDS:
        raise ConfigError(
            f"upstream {settings.name}: there is no kind {settings.kind!r} of upstream, only {', '.join(KINDS)}"
        )
    return KINDS[settings.kind](settings, session)
