"""Settings of the experiment tracker."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field
from pydantic_settings import SettingsConfigDict

from ratchet.core.service.settings import ServiceSettings

Optional = Annotated[str | None, BeforeValidator(lambda value: value or None)]
"""A text that counts as absent when it is empty, as an unset variable of a compose file is."""


class Settings(ServiceSettings):
    """Read from `RATCHET_TRACKER_*`."""

    model_config = SettingsConfigDict(env_prefix="RATCHET_TRACKER_", frozen=True)

    mlflow_url: Optional = None
    """Base URL of an MLflow server. Unset or empty: nothing is copied to one."""
    mlflow_token: Optional = Field(default=None, repr=False)
    """Bearer token for it."""
    trackio_python: Optional = None
    """Interpreter that has the package trackio. Unset or empty: nothing is written with it."""
    wandb_python: Optional = None
    """Interpreter that has the package wandb. Unset or empty: nothing is written with it."""
    prefix: str = Field(default="ratchet", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Experiments and registered models are called `<prefix>_<role>`."""
