"""Settings of the reward computer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import AliasChoices, Field, SecretStr
from pydantic_settings import SettingsConfigDict

from ratchet.core.contract.reward import RewardFunction
from ratchet.core.contract.roles import DEFAULT_ROLE
from ratchet.core.errors import ConfigError, Rejected
from ratchet.core.evaluation.reward_scores import reward_model_digest
from ratchet.core.judging.settings import JudgeSettings, entry_of
from ratchet.core.service.engine_list import ReplicasText
from ratchet.core.service.settings import HttpAddress, ServiceSettings
from ratchet.reward_computer.components import COMPONENTS
from ratchet.reward_computer.domain.reward import JUDGE, REWARD_MODEL, RewardSpec

Method = Literal["z-score", "min-max", "none"]


class Settings(ServiceSettings):
    """Read from `RATCHET_REWARD_*`."""

    model_config = SettingsConfigDict(env_prefix="RATCHET_REWARD_", frozen=True)

    function_name: str = "standard"
    """Name of the reward function; a new one rewards every trajectory that comes from then on under its own ids."""
    function_version: str = "1"
    """Its version: raise it whenever weights, components, judges or normalisation change. Once a function was accepted
    (`ratchet rewards accept`), another one counts only when it is accepted too."""
    weights: dict[str, dict[str, float]] = Field(default_factory=dict)
    """JSON: role -> component -> weight. The role `default` is for all others; components that are not named are not
    computed."""
    normalization: Method | dict[str, Method] = "z-score"
    """How a component's score is put on the scale of its recent past: one method, or JSON: role -> method, the role
    `default` for all others."""
    window: int = Field(default=1000, ge=1, le=1000)
    """Length of that past, and of the history of turns."""
    dense: bool = True
    """Whether rewards also say what each turn was worth."""
    judges: dict[str, JudgeSettings] = Field(default_factory=dict[str, JudgeSettings])
    """JSON: role -> the model that judges its trajectories, such as `{"default": {"model": "openai/gpt-5-mini"}}`. The
    role `default` is for all others. A judge is asked where the role gives its component `judge` a weight, and counts
    once people agree with it (`ratchet rewards judges`)."""
    gateway_url: HttpAddress = Field(
        default="http://127.0.0.1:8080",
        validation_alias=AliasChoices("RATCHET_REWARD_GATEWAY_URL", "RATCHET_GATEWAY_URL", "gateway_url"),
    )
    """Where judges without a `url` are asked."""
    models: dict[str, str] = Field(default_factory=dict)
    """JSON: role -> its reward model, by the sha256 of its manifest or the manifest's uri. The role `default` is for
    all others. It is asked where the role gives its component `reward_model` a weight."""
    engine_url: ReplicasText = Field(
        default="http://127.0.0.1:8082",
        validation_alias=AliasChoices("RATCHET_REWARD_ENGINE_URL", "RATCHET_ENGINE_URL", "engine_url"),
    )
    """The engine that holds the reward models, vLLM or `engine_local`; of several replicas the first is asked."""
    engine_api_key: SecretStr | None = Field(
        default=None,
        validation_alias=AliasChoices("RATCHET_REWARD_ENGINE_API_KEY", "RATCHET_ENGINE_API_KEY", "engine_api_key"),
    )
    """Key of that engine; absent where it asks for none."""
    linger_s: float | None = None
    """How long a batch waits for more, where that differs from `contracts/topics.json`."""


def verify(settings: Settings, _: Mapping[str, str]) -> None:
    """What is known to be wrong before a start. Raises `ConfigError` for weights that no reward can have."""
    spec_of(settings)


def spec_of(settings: Settings) -> RewardSpec:
    """The reward function that the settings describe. Raises `ConfigError`."""
    for role, weights in settings.weights.items():
        unknown = sorted(name for name in weights if name not in COMPONENTS)
        if unknown:
            known = ", ".join(COMPONENTS)
            raise ConfigError(
                f"RATCHET_REWARD_WEIGHTS: role {role} has unknown components {', '.join(unknown)}; there are: {known}"
            )
        for name in weights:
            COMPONENTS[name]  # one of another package that does not fit is refused now, not at the first trajectory
        if not all(0 <= weight <= 1 for weight in weights.values()) or not any(weights.values()):
            raise ConfigError(f"RATCHET_REWARD_WEIGHTS: those of role {role} must lie in 0..1, one of them above 0")
    for role, weights in settings.weights.items():
        if JUDGE in weights and entry_of(settings.judges, role) is None:
            raise ConfigError(f"RATCHET_REWARD_WEIGHTS: role {role} weighs `judge`, and RATCHET_REWARD_JUDGES has none")
        if REWARD_MODEL in weights and not {role, DEFAULT_ROLE} & settings.models.keys():
            raise ConfigError(
                f"RATCHET_REWARD_WEIGHTS: role {role} weighs `reward_model`, and RATCHET_REWARD_MODELS has none"
            )
    methods = (
        settings.normalization if isinstance(settings.normalization, dict) else {DEFAULT_ROLE: settings.normalization}
    )
    return RewardSpec(
        function=RewardFunction(name=settings.function_name, version=settings.function_version),
        weights=settings.weights,
        methods=methods,
        window=settings.window,
        dense=settings.dense,
        judges={role: judge.profile for role, judge in settings.judges.items()},
        reward_models=_digests(settings),
    )


def _digests(settings: Settings) -> dict[str, str]:
    try:
        return {role: reward_model_digest(name) for role, name in settings.models.items()}
    except Rejected as error:
        raise ConfigError(f"RATCHET_REWARD_MODELS: {error}") from error
