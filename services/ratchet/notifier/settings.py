"""Settings of the notifier: who gets which alerts and reports, and when."""

from __future__ import annotations

import base64
import binascii
import logging
import warnings
from collections.abc import Mapping, Sequence
from datetime import timedelta
from importlib import import_module
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, model_validator
from pydantic_settings import SettingsConfigDict

from ratchet.core.contract.notifications import ReportKind
from ratchet.core.errors import ConfigError
from ratchet.core.rules.arms import ROLE
from ratchet.core.service.settings import FROM_JSON, HttpAddress, ServiceSettings
from ratchet.notifier.domain.deliveries import Rules
from ratchet.notifier.domain.quiet_hours import quiet_hours

WEBHOOKS = ("http", "https")
WEBHOOK = "webhook"
SECRET_BYTES = range(24, 65)
"""As https://www.standardwebhooks.com asks."""


def _role(role: str) -> str:
    if not ROLE.fullmatch(role):
        raise ValueError(f"{role!r} cannot be a role's name")
    return role


def _hours(text: str) -> str:
    quiet_hours(text)
    return text


def _usable_url(url: SecretStr) -> SecretStr:
    """Raises `ValueError`, without the URL: it may hold a secret."""
    scheme, separator, rest = url.get_secret_value().partition("://")
    if not separator or not scheme or not rest:
        raise ValueError("the url of a receiver begins with a scheme, as https://... or slack://...")
    return url


def _signing_secret(secret: SecretStr) -> SecretStr:
    form = "a webhook's secret is `whsec_` and the base64 of 24 to 64 random bytes: whsec_$(openssl rand -base64 32)"
    prefix, _, encoded = secret.get_secret_value().partition("_")
    try:
        size = len(base64.b64decode(encoded, validate=True))
    except (ValueError, binascii.Error):
        raise ValueError(form) from None
    if prefix != "whsec" or size not in SECRET_BYTES:
        raise ValueError(form)
    return secret


class ReceiverSettings(BaseModel):
    """People who get alerts, by one URL."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[a-z0-9_-]{1,64}$")
    """What the console, `ratchet alerts` and logs call it."""
    url: Annotated[SecretStr, AfterValidator(_usable_url)]
    """Where it is: `https://...` for a webhook, or a URL of apprise, such as `slack://...` or `mailtos://...`."""
    secret: Annotated[SecretStr, AfterValidator(_signing_secret)] | None = None
    """Of a webhook: the key of its signatures, `whsec_...`."""
    severity: Literal["info", "warning", "critical"] = "warning"
    """The least severity that it gets."""
    roles: tuple[Annotated[str, AfterValidator(_role)], ...] = ()
    """The roles whose alerts it gets; empty: every alert, also those of no role."""
    cool_down_s: float = Field(default=3600.0, ge=0, allow_inf_nan=False)
    """It gets an alert that comes again no sooner, unless that is worse."""
    quiet_hours: Annotated[str, AfterValidator(_hours)] | None = None
    """Hours in which it gets only what is critical, such as `22:00-07:00 Europe/Berlin`; the rest comes after them."""

    reports: tuple[ReportKind, ...] = ()
    """Reports that it gets, of its roles: `daily` at 08:00 UTC, `weekly` on Mondays, `job` of a training that ended."""

    @property
    def kind(self) -> str:
        """`webhook`, or the scheme of the URL."""
        scheme = self.url.get_secret_value().partition("://")[0].lower()
        return WEBHOOK if scheme in WEBHOOKS else scheme

    @property
    def rules(self) -> Rules:
        """What it gets."""
        return Rules(
            name=self.name,
            severity=self.severity,
            roles=self.roles,
            cool_down=timedelta(seconds=self.cool_down_s),
            quiet=quiet_hours(self.quiet_hours) if self.quiet_hours is not None else None,
            reports=frozenset(self.reports),
        )

    @model_validator(mode="after")
    def _is_signed(self) -> ReceiverSettings:
        if self.kind == WEBHOOK and self.secret is None:
            raise ValueError("a webhook needs a secret, whsec_$(openssl rand -base64 32), which its server checks")
        if self.kind != WEBHOOK and self.secret is not None:
            raise ValueError("only a webhook, http:// or https://, has a secret")
        return self


def _different(receivers: Sequence[ReceiverSettings]) -> Sequence[ReceiverSettings]:
    names = [receiver.name for receiver in receivers]
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"two receivers are called {repeated!r}")
    return receivers


class Settings(ServiceSettings):
    """Read from `RATCHET_NOTIFIER_*`."""

    model_config = SettingsConfigDict(env_prefix="RATCHET_NOTIFIER_", frozen=True)

    receivers: Annotated[tuple[ReceiverSettings, ...], *FROM_JSON, AfterValidator(_different)] = ()
    """Who gets alerts. JSON: `[{"name": "oncall", "url": "slack://...", "severity": "critical"}, {"name": "team",
    "url": "https://...", "secret": "whsec_...", "roles": ["support"], "quiet_hours": "22:00-07:00 Europe/Berlin"}]`"""
    health_urls: Annotated[Mapping[str, HttpAddress], *FROM_JSON] = Field(default_factory=dict[str, str])
    """Where the services say whether they are ready. JSON: `{"gateway": "http://gateway:9100"}`, by the service's name;
    `ratchet up` and the containers set it."""
    alertmanager_key: Annotated[SecretStr, Field(min_length=24)] | None = None
    """The key with which Alertmanager posts to /alertmanager at the health port; unset, nothing is taken there."""


def verify(settings: Settings, _: Mapping[str, str]) -> None:
    """What is known to be wrong before a start. Raises `ConfigError` for a URL that apprise has no service for."""
    for receiver in settings.receivers:
        if receiver.kind != WEBHOOK and not _is_known(receiver.url.get_secret_value()):
            raise ConfigError(
                f"RATCHET_NOTIFIER_RECEIVERS: the url of {receiver.name} is none of apprise's {receiver.kind}:// "
                "services, or lacks a part: https://github.com/caronc/apprise lists them"
            )


def _is_known(url: str) -> bool:
    logging.getLogger("apprise").disabled = True  # it quotes URLs
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what apprise imports
        apprise: Any = import_module("apprise")  # it takes a third of a second, which no start without it pays
        return apprise.Apprise.instantiate(url) is not None
