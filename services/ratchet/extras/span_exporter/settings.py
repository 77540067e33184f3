"""Settings of the span exporter: where spans go, and what they may hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated
from urllib.parse import unquote

from pydantic import AfterValidator, SecretStr
from pydantic_settings import SettingsConfigDict

from ratchet.core.service.settings import OptionalHttpAddress, ServiceSettings

PATH = "/v1/traces"
"""Where a receiver takes spans."""
UNSET = ("", "none")


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    """Raises `ValueError`, without the text: it holds a secret."""
    for pair in text.split(",") if text not in UNSET else ():
        name, separator, value = (unquote(part.strip()) for part in pair.partition("="))
        if not separator or not name.isascii() or not name or not value.isprintable() or not value.isascii():
            raise ValueError("write NAME=VALUE,NAME=VALUE with percent-encoded values: Authorization=Bearer%20...")
        yield name.lower(), value


def _usable(headers: SecretStr) -> SecretStr:
    list(_pairs(headers.get_secret_value()))
    return headers


class Settings(ServiceSettings):
    """Read from `RATCHET_SPAN_EXPORTER_*`: in an agent's shell `OTEL_EXPORTER_OTLP_*` name the gateway."""

    model_config = SettingsConfigDict(env_prefix="RATCHET_SPAN_EXPORTER_", frozen=True)

    endpoint: OptionalHttpAddress = None
    """Base URL of a receiver of OTLP over HTTP, as `OTEL_EXPORTER_OTLP_ENDPOINT` has it (`https://cloud.langfuse.com/api/public/otel`,
    `http://localhost:6006`), or its whole URL with `/v1/traces`. Unset, empty or `none`: nothing is sent."""
    headers: Annotated[SecretStr, AfterValidator(_usable)] = SecretStr("")
    """Headers of each request, in the form of `OTEL_EXPORTER_OTLP_HEADERS`: `Authorization=Basic%20...,x-tenant=a`."""
    content: bool = False
    """Whether spans hold what was asked and answered, redacted, and the words of judges."""

    @property
    def base_url(self) -> str | None:
        """What stands in front of `PATH`."""
        return (self.endpoint or "").rstrip("/").removesuffix(PATH) or None

    @property
    def sent_headers(self) -> dict[str, str]:
        """By lower-case name."""
        return dict(_pairs(self.headers.get_secret_value()))
