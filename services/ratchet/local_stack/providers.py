"""`ratchet up --upstream`: the gateway in front of a provider, or of any server of OpenAI's API by its URL."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from ratchet.errors import ConfigError
from ratchet.service.setting_names import nearest

UPSTREAMS = "RATCHET_GATEWAY_UPSTREAMS"
ADDRESS, KEY = "RATCHET_UPSTREAM_URL", "RATCHET_UPSTREAM_KEY"
"""Another address of a provider, such as a proxy; the key of a server that a URL names."""


@dataclass(frozen=True, slots=True)
class Provider:
    """A provider as its own clients know it."""

    kind: str
    base_url: str
    key_variable: str
    """Where its own clients read their key."""
    apis: tuple[str, ...] = ()
    """The APIs that it speaks beside chat completions."""


PROVIDERS: Mapping[str, Provider] = {
    "openai": Provider("openai", "https://api.openai.com/v1", "OPENAI_API_KEY", ("responses",)),
    "anthropic": Provider("anthropic", "https://api.anthropic.com/v1", "ANTHROPIC_API_KEY"),
}


def upstream_environment(named: str, environment: Mapping[str, str]) -> dict[str, str]:
    """The gateway's variable for the upstream that `--upstream` names. Raises `ConfigError` for one that is none.

    It answers whatever model an agent asks for, until the role of the call has a policy.
    """
    upstream: dict[str, object]
    if "://" in named:
        upstream = {"name": "upstream", "base_url": named.rstrip("/")}
        upstream |= {"api_key_env": KEY} if environment.get(KEY) else {}
    elif named in PROVIDERS:
        provider = PROVIDERS[named]
        address = environment.get(ADDRESS) or provider.base_url
        upstream = {"name": named, "kind": provider.kind, "base_url": address.rstrip("/")}
        upstream |= {"api_key_env": provider.key_variable, "apis": list(provider.apis)}
    else:
        known = f"there are {', '.join(PROVIDERS)}, or a URL such as http://127.0.0.1:8000/v1"
        raise ConfigError(f"there is no provider {named!r}{nearest(named, PROVIDERS.keys())}; {known}")
    return {UPSTREAMS: json.dumps([{**upstream, "models": {"*": "*"}}])}
