"""`ratchet up --upstream`: the gateway in front of a provider, or of any server of OpenAI's API by its URL; and the
upstreams that the stack's gateway has by its settings, which commands name and ask.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ratchet.bus.settings import without_user
from ratchet.core.errors import ConfigError
from ratchet.core.service.setting_names import nearest
from ratchet.core.service.settings import http_address
from ratchet.core.service.settings_file import SettingsFile
from ratchet.local.local_stack.catalog import GATEWAY
from ratchet.local.local_stack.settings import StackSettings

UPSTREAMS = "RATCHET_GATEWAY_UPSTREAMS"
KEY = "RATCHET_UPSTREAM_KEY"
"""The key of a server that a URL names."""
UNNAMED = "upstream"
"""The gateway's name for that server."""
ADDRESS = "RATCHET_UPSTREAM_URL_"
"""Before a provider's name in capitals: another address of that provider, such as a proxy. Each has a variable of its
own, so that an address that is left over from one never gets the key of another."""


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
    return {UPSTREAMS: json.dumps([{**_upstream(named, environment), "models": {"*": "*"}}])}


def where_the_key_goes(named: str, environment: Mapping[str, str]) -> str:
    """A sentence on the key that the upstream gets; empty where it gets none. Raises `ConfigError` for no upstream."""
    upstream = _upstream(named, environment)
    if "api_key_env" not in upstream:
        return ""
    return f"the gateway sends the key in {upstream['api_key_env']} to {without_user(str(upstream['base_url']))}"


def require_one_source(settings: StackSettings, environment: Mapping[str, str]) -> None:
    """Raise `ConfigError` where upstreams are set beside the one that `--upstream` names: it would replace them."""
    given = {name.upper(): value for name, value in {**environment, **settings.env}.items()}
    if settings.upstream and given.get(UPSTREAMS, "").strip() not in ("", "[]"):
        raise ConfigError(f"--upstream (or [stack] upstream) and {UPSTREAMS} are both given: keep one of them")
    if settings.upstream and settings.file.table("gateway").get("upstreams"):
        raise ConfigError(
            f"--upstream (or [stack] upstream) and gateway.upstreams in {settings.file.path} are both given: "
            "keep one of them"
        )


def _upstream(named: str, environment: Mapping[str, str]) -> dict[str, object]:
    if "://" in named:
        key: dict[str, object] = {"api_key_env": KEY} if environment.get(KEY) else {}
        return {"name": UNNAMED, "base_url": _base_url(named), **key}
    if named in PROVIDERS:
        provider = PROVIDERS[named]
        address = environment.get(ADDRESS + named.upper()) or provider.base_url
        upstream: dict[str, object] = {"name": named, "kind": provider.kind, "base_url": _base_url(address)}
        return upstream | {"api_key_env": provider.key_variable, "apis": list(provider.apis)}
    known = f"there are {', '.join(PROVIDERS)}, or a URL such as http://127.0.0.1:8000/v1"
    raise ConfigError(f"there is no provider {named!r}{nearest(named, PROVIDERS.keys())}; {known}")


def _base_url(text: str) -> str:
    """Known before a start: the gateway refuses such an address too, but when servers run."""
    try:
        return http_address(text).rstrip("/")
    except ValueError as error:
        raise ConfigError(str(error)) from error


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

    @property
    def line(self) -> str:
        """One line for a person: who answers, where and with which key."""
        key = f" (key in {self.key_variable})" if self.key_variable else ""
        who = "upstream" if self.name == UNNAMED else f"upstream {self.name}"
        return f"{who} at {self.address}{key} answers while a role has no policy"


def upstreams_of(file: SettingsFile, environment: Mapping[str, str]) -> list[GatewayUpstream]:
    """The upstreams of a gateway with these settings; none where the settings are wrong, which others report."""
    from ratchet.core.service.settings import checked  # noqa: PLC0415 - `down` and `env` read no settings
    from ratchet.local.local_stack.configuration import kind_of  # noqa: PLC0415

    of_gateway: Any = checked(kind_of(GATEWAY), file, environment)[1]  # its own class, which nothing outside may import
    upstreams: list[Any] = of_gateway.upstreams if of_gateway is not None else []
    return [
        GatewayUpstream(upstream.name, upstream.kind, upstream.base_url, upstream.api_key_env, upstream.models)
        for upstream in upstreams
    ]
