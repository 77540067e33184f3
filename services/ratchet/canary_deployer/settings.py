"""Everything an operator can choose about gates, stages and tests of a rollout."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, model_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from ratchet.canary_deployer.domain.rules import CHOICES, COST, HORIZON_MAX_S, HORIZON_MIN_S, Rules, Stage
from ratchet.core.evaluation.suites import HELDOUT, REGRESSION, SAFETY_SUITES, SUITES
from ratchet.core.rules.arms import ROLE
from ratchet.core.rules.engines import ANY_ROLE
from ratchet.core.service.engine_list import (
    EngineKind,
    EngineSettings,
    LogprobsMode,
    ReplicasText,
    engine_kinds,
    replica_urls,
)
from ratchet.core.service.settings import HttpAddress, OptionalHttpAddress, Port, ServiceSettings

T = TypeVar("T")

FEWEST_MIRRORED = 100
"""With fewer calls nothing is compared."""


def _listed(value: Any) -> Any:  # `Any`: text of the environment or a value of a caller; the field's type decides
    """`10,25,50`, `[10, 25, 50]` and a plain number all mean a list."""
    if isinstance(value, str):
        return [part.strip() for part in value.strip().strip("[]").replace('"', "").split(",") if part.strip()]
    return [value] if isinstance(value, int | float) else value


def _by_role(value: Any) -> Any:  # `Any`: as in `_listed`
    """A JSON object by role, or one path for all roles."""
    if not isinstance(value, str):
        return value
    return json.loads(value) if value.lstrip().startswith("{") else {ANY_ROLE: value}


Numbers = Annotated[tuple[float, ...], NoDecode, BeforeValidator(_listed)]
Counts = Annotated[tuple[int, ...], NoDecode, BeforeValidator(_listed)]
Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_listed)]
TaskFiles = Annotated[dict[str, str], NoDecode, BeforeValidator(_by_role)]


class SafetyPlan(BaseModel):
    """What a role's candidates play in the gate `safety_suite`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    suites: tuple[str, ...] = SAFETY_SUITES
    """By name (`ratchet suites list`); an empty list: none is played."""
    minutes: float = Field(default=30, gt=0, le=30)
    """For all suites and both policies. What is not finished by then fails."""
    at_least: dict[str, Annotated[float, Field(ge=0, le=1)]] = {}
    """By suite: a candidate whose score is lower fails, however stable does."""
    regression: str | None = None
    """The task file of suite `regression`: a path, or an `s3://` uri in Ratchet's bucket."""

    @model_validator(mode="after")
    def _known(self) -> SafetyPlan:
        if unknown := [name for name in self.suites if name not in SUITES]:
            raise ValueError(f"there is no suite {unknown[0]!r}; there are {', '.join(SUITES)}")
        if unplayed := [name for name in self.at_least if name not in self.suites]:
            raise ValueError(f"at_least: {unplayed[0]!r} is none of the suites that are played")
        if (REGRESSION in self.suites) != (self.regression is not None):
            raise ValueError("suite 'regression' is named in `suites`, and its task file in `regression`: both or none")
        return self


class ShadowPlan(BaseModel):
    """Which live calls a role's candidates are asked as well, in the gate `shadow_traffic`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    share: float = Field(default=0.1, gt=0, le=1)
    """Of the calls that stable answers; one of each trajectory at most."""
    calls: int = Field(default=200, ge=FEWEST_MIRRORED, le=2000)
    """So many are compared."""
    hours: float = Field(default=24, gt=0, le=168)
    """What has come by then is compared; a person decides where it is too little."""
    usd_per_day: float | None = Field(default=None, gt=0)
    """US dollars that all candidates of the role may spend in a day (UTC), at the prices that the gateway has."""


class Settings(ServiceSettings):
    """Read from `RATCHET_CANARY_*`; the port of the control API from `RATCHET_DEPLOYER_PORT`."""

    model_config = SettingsConfigDict(env_prefix="RATCHET_CANARY_", frozen=True, populate_by_name=True)

    port: Port = Field(default=8083, validation_alias=AliasChoices("RATCHET_DEPLOYER_PORT", "port"))
    """Port of the control API."""
    engine_url: ReplicasText = Field(
        default="http://127.0.0.1:8082",
        validation_alias=AliasChoices("RATCHET_CANARY_ENGINE_URL", "RATCHET_ENGINE_URL", "engine_url"),
    )
    """The engine that must load and probe a policy before it meets traffic; of several replicas their URLs with commas
    between them. `RATCHET_ENGINES` takes the place of this, of `engine_api_key` and of `engine_logprobs_mode`."""
    gateway_url: HttpAddress = Field(
        default="http://127.0.0.1:8080",
        validation_alias=AliasChoices("RATCHET_CANARY_GATEWAY_URL", "RATCHET_GATEWAY_URL", "gateway_url"),
    )
    """Where held-out tasks are played, and what `model.deployed` names as the endpoint."""

    coordinator_url: OptionalHttpAddress = Field(
        default=None,
        validation_alias=AliasChoices("RATCHET_CANARY_COORDINATOR_URL", "RATCHET_COORDINATOR_URL", "coordinator_url"),
    )
    """Has the history: how long stable's outcomes took, and prompts for shadow replay. Absent: neither is used."""

    engine_api_key: SecretStr | None = Field(
        default=None,
        validation_alias=AliasChoices("RATCHET_CANARY_ENGINE_API_KEY", "RATCHET_ENGINE_API_KEY", "engine_api_key"),
    )
    """Key of the engine, vLLM's `--api-key`; absent where it asks for none."""
    engine_logprobs_mode: LogprobsMode | None = Field(
        default=None, validation_alias=AliasChoices("RATCHET_ENGINE_LOGPROBS_MODE", "engine_logprobs_mode")
    )
    """vLLM's `--logprobs-mode`, as the gateway labels turns with it: the probe's gate waits for replicas whose
    log-probabilities are others."""
    strategy: Literal["canary", "blue_green", "auto"] = "canary"
    """How a policy that passed its gates gets traffic; `auto` chooses by the held-out improvement."""
    further_gates: Names = ()
    """Gates of other packages (`ratchet plugins`) that candidates must pass as well, in the order of asking: after
    `heldout_tasks`, before people are asked. A JSON list or names separated by commas."""
    stages: Numbers = (10, 25, 50)
    """Canary weight of each stage before the promotion decision, in percent; 100 may follow and is implied."""
    stage_min_s: Numbers = (3600, 3600, 7200)
    """Shortest time in each stage; one number holds for all."""
    stage_min_trajectories: Counts = (20,)
    """Fewest finished canary trajectories in each stage; one number holds for all."""
    soak_s: float = Field(default=3600, ge=0)
    """Length of the soak after the promotion decision; 0 promotes at once."""
    longest_days: float = Field(default=14, gt=0)
    """Where a rollout is expected to take longer at the role's traffic, a person is asked before it begins."""
    metrics: Names = CHOICES
    """What the rollback test compares: `failure` (known ones), `missing` (outcomes), `reward`, `latency`, `cost`.
    Promotion asks for no evidence about `cost` where that is left out, and does not mind a higher `latency`."""
    roles_without_outcomes: Names = ()
    """Roles without outcomes: compared on reward, latency and first calls; a person promotes."""
    roles_that_lose_users: Names = ()
    """Roles whose users leave after a failure: only the first trajectory of each user, else session, is evidence."""
    roles_kept_small: Names = ()
    """Roles whose suspended canary keeps the first stage's share of traffic, so that it may still be decided, and loses
    it when it is far worse."""
    roles_rolled_back_on_safety: Names = ()
    """Roles whose canary is rolled back by its first safety violation; elsewhere a person is asked. No test: it is
    outside the 5 % of false rollbacks."""
    margin: float = Field(default=0.05, ge=0, lt=0.5)
    """How much worse in failure rate and in mean reward (both 0..1) still counts as not worse."""
    horizon_s: float = Field(default=1800, gt=0, le=HORIZON_MAX_S)
    """An outcome that has not come this long after a trajectory's start is missing, where stable's history says too
    little: each rollout freezes its own horizon at its start, 1.5 times what .99 of stable's outcomes took."""

    task_files: TaskFiles = Field(default_factory=dict[str, str])
    """By role, `*` for all others: the held-out tasks (a path, or an `s3://` uri in Ratchet's bucket) that candidate
    and stable are asked. A JSON object, or one path for all roles. A role without any is compared by its canary
    alone."""
    task_temperature: float = Field(default=0, ge=0, le=2)
    """How answers to held-out tasks are drawn: 0 is greedy, which differs less from one run to the next."""
    heldout_tasks: int = Field(default=400, ge=1)
    """How many held-out tasks a candidate plays; of a longer file the same ones are drawn for each."""
    safety_suites: dict[str, SafetyPlan] = Field(default_factory=dict[str, SafetyPlan])
    """By role, `*` for all others: the safety suites that candidate and stable play, two samples a task. A JSON object;
    `{"*": {}}` plays every suite that ships and is about safety, `{"*": {"suites": []}}` none. Members: `suites`,
    `minutes` (30 at most), `at_least` by suite, `regression` (a task file). Left out: as `{}`, where the role's own
    engine is done within 5 minutes."""
    shadow_traffic: dict[str, ShadowPlan] = Field(default_factory=dict[str, ShadowPlan])
    """By role, `*` for all others: candidates are asked a share of the calls that stable answers, and no agent gets
    their answers; `replay_command` judges both. A JSON object; members: `share`, `calls`, `hours`, `usd_per_day`."""
    replay_command: str | None = None
    """The role's evaluator, which judges answers to logged and to mirrored prompts: it lets a candidate of a role with
    little traffic begin at a higher weight. Without one a person is asked."""
    approval: bool = False
    """Also wait for an operator when every gate passed."""
    warmup_prompts: tuple[str, ...] = ("Hello.", "What can you do?")
    """Messages (a JSON list) that a fresh policy must answer with finite log-probabilities."""
    advertised_url: OptionalHttpAddress = None
    """Where a standby sends orders when this deployer leads; absent: this host's name and `port`."""

    @model_validator(mode="after")
    def _consistent(self) -> Settings:
        weights = self.stage_weights
        if not weights or any(not 0 < weight < 1 for weight in weights) or list(weights) != sorted(set(weights)):
            raise ValueError("stages must rise and lie between 0 and 100 percent")
        for name, given in (("stage_min_s", self.stage_min_s), ("stage_min_trajectories", self.stage_min_trajectories)):
            if len(given) not in (1, len(weights)):
                raise ValueError(f"{name} needs one value, or one for each of the {len(weights)} stages below 100 %")
        by_role = (*self.task_files, *self.safety_suites, *self.shadow_traffic)
        if wrong := [role for role in by_role if role != ANY_ROLE and not ROLE.fullmatch(role)]:
            named = "task_files, safety_suites, shadow_traffic"
            raise ValueError(f"{named}: {wrong[0]!r} is neither a role's name nor {ANY_ROLE}")
        if lacks := [
            role for role, plan in self.safety_suites.items() if HELDOUT in plan.suites and not self.task_file_of(role)
        ]:
            raise ValueError(f"safety_suites: {lacks[0]!r} plays suite 'heldout', and task_files names no file for it")
        if self.shadow_traffic and not self.replay_command:
            raise ValueError("shadow_traffic needs replay_command, which judges the answers")
        named = (*self.roles_without_outcomes, *self.roles_that_lose_users, *self.roles_kept_small)
        named = (*named, *self.roles_rolled_back_on_safety)
        if wrong := [role for role in named if not ROLE.fullmatch(role)]:
            raise ValueError(f"{wrong[0]!r} is not a role's name")
        if {*self.metrics} <= {COST} or {*self.metrics} - {*CHOICES}:
            raise ValueError(f"metrics are chosen from {', '.join(CHOICES)}, and not cost alone")
        return self

    @property
    def engines(self) -> Sequence[EngineSettings]:
        """The engines that serve policies."""
        one = EngineSettings(
            name=self.shared.engine_kind,
            kind=self.shared.engine_kind,
            urls=replica_urls(self.engine_url),
            roles=(ANY_ROLE,),
            api_key=self.engine_api_key,
            logprobs_mode=self.engine_logprobs_mode,
        )
        return self.shared.engines or (one,)

    def task_file_of(self, role: str) -> str | None:
        """The held-out tasks of a role, or of all others."""
        return self.task_files.get(role) or self.task_files.get(ANY_ROLE)

    @property
    def regression_files(self) -> dict[str, str]:
        """The task files of suite `regression`, by role."""
        plans = self.safety_suites.items()
        return {role: plan.regression for role, plan in plans if plan.regression is not None}

    @property
    def gate_files(self) -> dict[str, list[str]]:
        """All task files that judge a role's candidates; under `*` those of other roles."""
        plans, every = self.safety_suites, self.safety_suites.get(ANY_ROLE, SafetyPlan())
        places = {
            role: (self.task_file_of(role), plans.get(role, every).regression) for role in {**self.task_files, **plans}
        }
        listed = {role: [place for place in own if place is not None] for role, own in places.items()}
        return {role: own for role, own in listed.items() if own}

    def platform_of(self, role: str) -> str:
        """What `model.deployed` calls the engine of a role; also of one that no engine serves any more."""
        return self.engine_kind_of(role) or self.shared.engine_kind

    def engine_kind_of(self, role: str) -> EngineKind | None:
        """The kind of a role's engine; None for a role that no engine serves."""
        kinds = engine_kinds(self.engines, self.shared.engine_kind)
        return kinds.get(role) or kinds.get(ANY_ROLE)

    @property
    def stage_weights(self) -> tuple[float, ...]:
        """Weights (0..1) of the stages before the promotion decision."""
        return tuple(percent / 100 for percent in self.stages if percent != 100)

    @property
    def url(self) -> str:
        """Address of this deployer's control API."""
        local = self.shared.http_host in ("127.0.0.1", "::1", "localhost")
        return self.advertised_url or f"http://{'127.0.0.1' if local else socket.gethostname()}:{self.port}"

    def rules(self) -> Rules:
        """The part that the domain works by."""
        count = len(self.stage_weights)
        times, minima = _for_each(self.stage_min_s, count), _for_each(self.stage_min_trajectories, count)
        return Rules(
            stages=tuple(map(Stage, self.stage_weights, times, minima)),
            soak_s=self.soak_s,
            longest_days=self.longest_days,
            metrics=tuple(name for name in self.metrics if name != COST),
            compares_cost=COST in self.metrics,
            roles_without_outcomes=frozenset(self.roles_without_outcomes),
            roles_that_lose_users=frozenset(self.roles_that_lose_users),
            roles_kept_small=frozenset(self.roles_kept_small),
            roles_rolled_back_on_safety=frozenset(self.roles_rolled_back_on_safety),
            margin=self.margin,
            horizon_s=self.horizon_s,
            horizon_min_s=min(HORIZON_MIN_S, self.horizon_s),
        )


def _for_each(given: tuple[T, ...], count: int) -> tuple[T, ...]:
    return given * count if len(given) == 1 else given


def lacks(settings: Settings) -> Iterator[str]:
    """What is not there and should be before a start. A deployer that runs goes on without: its canaries need it."""
    files = {"TASK_FILES": settings.task_files, "SAFETY_SUITES": settings.regression_files}
    for variable, by_role in files.items():
        for role, place in by_role.items():
            if not place.startswith("s3://") and not Path(place).is_file():
                yield f"RATCHET_CANARY_{variable}[{role}]: there is no file {place!r}"
