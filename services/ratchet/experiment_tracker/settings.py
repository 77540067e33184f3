"""Settings of the experiment tracker."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from ratchet.service.settings import SharedSettings


class Settings(BaseSettings):
    """Read from `RATCHET_TRACKER_*`."""

    model_config = SettingsConfigDict(env_prefix="RATCHET_TRACKER_", frozen=True)

    shared: SharedSettings = Field(default_factory=SharedSettings)
    """What all services share."""
    mlflow_url: str | None = None
    """Base URL of an MLflow server. Unset: nothing is copied, and nothing leaves the machine."""
    mlflow_token: str | None = Field(default=None, repr=False)
    """Bearer token for it."""
    prefix: str = Field(default="ratchet", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Experiments and registered models are called `<prefix>_<role>`."""
    interval_s: float = Field(default=10.0, gt=0)
    """Time between looks at what has changed."""
