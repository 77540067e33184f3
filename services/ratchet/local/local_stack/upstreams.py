"""The upstreams that the stack's gateway has, by the settings that it gets: what commands name and ask."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ratchet.bus.settings import without_user
from ratchet.core.service.settings import checked
from ratchet.core.service.settings_file import SettingsFile
from ratchet.local.local_stack.configuration import kind_of

GATEWAY = "gateway"


@dataclass(frozen=True, slots=True)
class GatewayUpstream:
    """A server that answers when a policy cannot, or for a role that has none yet."""

    name: str
    kind: str
    base_url: str
    """As it is set, a user and password included: not to be shown."""
    key_variable: str | None
    """Names its key; None for a server without keys."""
    models: Mapping[str, str]

    @property
    def address(self) -> str:
        """Its URL, as it may be shown."""
        return without_user(self.base_url)


def upstreams_of(file: SettingsFile, environment: Mapping[str, str]) -> list[GatewayUpstream]:
    """The upstreams of a gateway with these settings; none where the settings are wrong, which others report."""
    _, settings = checked(kind_of(GATEWAY), file, environment)
    of_gateway: Any = settings  # the gateway's own class, which nothing outside of it may import
    upstreams: list[Any] = of_gateway.upstreams if of_gateway is not None else []
    return [
        GatewayUpstream(upstream.name, upstream.kind, upstream.base_url, upstream.api_key_env, upstream.models)
        for upstream in upstreams
    ]


def upstream_line(upstream: GatewayUpstream) -> str:
    """One line for a person: who answers, where and with which key."""
    key = f" (key in {upstream.key_variable})" if upstream.key_variable else ""
    return f"upstream {upstream.name} at {upstream.address}{key} answers while a role has no policy"
