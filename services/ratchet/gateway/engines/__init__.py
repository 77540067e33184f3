"""The kinds of upstream: servers that answer when a policy cannot, or for roles without one."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ratchet.core.errors import ConfigError
from ratchet.core.plugins import PluginTable, callable_with
from ratchet.dialects.messages.dialect import MESSAGES, VERSION
from ratchet.gateway.engines.base import Transport, Upstream
from ratchet.gateway.engines.http_transport import Address, HttpTransport
from ratchet.gateway.engines.openai import OpenAiEngine
from ratchet.gateway.settings import UpstreamSettings

BuildEngine = Callable[[UpstreamSettings, Transport], Upstream]

_KINDS: Mapping[str, BuildEngine] = {
    "openai": lambda settings, way: OpenAiEngine(way, settings.name, settings.models, settings.apis),
    # It gets other calls than messages too: Anthropic also answers chat completions.
    "anthropic": lambda settings, way: OpenAiEngine(
        way, settings.name, settings.models, {*settings.apis, MESSAGES.name}
    ),
}
KINDS: PluginTable[BuildEngine] = PluginTable("ratchet.engines", "engine", _KINDS, callable_with(2))
"""By `kind` of an upstream."""


def build_upstream(settings: UpstreamSettings, transport: Transport) -> Upstream:
    """Another server that can answer. Raises `ConfigError`."""
    if settings.kind not in KINDS:
        raise ConfigError(
            f"upstream {settings.name}: there is no kind {settings.kind!r} of upstream, only {', '.join(KINDS)}"
        )
    return KINDS[settings.kind](settings, transport)


def transport_to(settings: UpstreamSettings) -> HttpTransport:
    """The way to an upstream. Raises `ConfigError`, also when the environment lacks its key."""
    headers = {"anthropic-version": VERSION} if settings.kind == "anthropic" else {}
    if (key := settings.key()) is not None:
        headers |= {"x-api-key": key} if settings.kind == "anthropic" else {"authorization": f"Bearer {key}"}
    address = Address(
        settings.base_url,
        headers,
        connect_s=settings.connect_timeout_s,
        answer_s=settings.timeout_s,
        idle_s=settings.idle_s,
    )
    return HttpTransport(settings.name, address)
