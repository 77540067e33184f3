"""Everything an operator can choose about gates, stages and tests of a rollout."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AliasChoices, BeforeValidator, Field, SecretStr, model_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from ratchet.canary_deployer.domain.rules import (
    FULL_BUDGET,
    LARGEST_BUDGET,
    METRICS,
    PROMOTION_METRICS,
    Budget,
    Rules,
    Stage,
)
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
from ratchet.core.service.setting_types import HttpAddress, OptionalHttpAddress, Port
from ratchet.core.service.settings import ServiceSettings

T = TypeVar("T")


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
    gateway_api_key: SecretStr | None = None
    """Key of the gateway; else `RATCHET_SERVICE_KEY`."""

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
    serving_platform: Literal["tensorzero", "vllm", "tgi", "ollama", "engine_local"] | None = None
    """What `model.deployed` calls the engines; unset: each by its kind."""
    hold_back_weight: float = Field(default=0.05, ge=0, lt=0.5)
    """Share of traffic that stays with the old policy while the promoted one soaks; 0 promotes at once."""
    soak_s: float = Field(default=3600, ge=0)
    """Length of the soak after the promotion decision; 0 promotes at once."""
    deadline_s: float = Field(default=7 * 86400, gt=0)
    """A rollout that is undecided for this long is held for an operator; every resume grants this long again."""

    longest_days: float = Field(default=14, gt=0)
    """Where a rollout is expected to take longer at the role's traffic, a person is asked before it begins."""

    metrics: Names = METRICS
    """What the rollback test compares: `failure` (known ones), `missing` (outcomes), `reward`, `latency`."""
    promotion_metrics: Names = ("failure", "reward")
    """What must each be shown to be not worse than the margin; a missing outcome is a failure and a loss here."""
    roles_without_outcomes: Names = ()
    """Roles without outcomes: compared on reward, latency and first calls; a person promotes."""
    margin: float = Field(default=0.05, ge=0, lt=0.5)
    """How much worse in failure rate and in mean reward (both 0..1) still counts as not worse."""
    latency_margin: float = Field(default=0.1, ge=0, lt=0.5)
    """The same for relative latency x/(x + typical), where .5 is typical and .6 half as slow again."""
    share_evidence: float = Field(default=FULL_BUDGET.evidence, gt=0)
    """Part of the 5 % of false rollbacks that the e-process over all metrics may use; it fires at 1 / this."""
    share_first_call: float = Field(default=FULL_BUDGET.first_call, gt=0)
    """The same for first calls that fail, are cancelled or never come."""
    share_run: float = Field(default=FULL_BUDGET.run, gt=0)
    """The same for canary trajectories that fail one after the other."""
    share_safety: float = Field(default=FULL_BUDGET.safety, gt=0)
    """The same for safety violations. The four shares add up to at most .05."""
    promotion_threshold: float = Field(default=20, gt=1)
    """E-value that promotion needs: at most 1/this false promotions."""
    caution_threshold: float = Field(default=4, gt=1)
    """No stage advances while the rollback e-value is at least this."""
    horizon_s: float = Field(default=1800, gt=0)
    """An outcome that has not come this long after a trajectory's start is missing, where stable's history says too
    little: each rollout freezes its own horizon at its start, 1.5 times what .99 of stable's outcomes took."""
    horizon_min_s: float = Field(default=600, gt=0)
    """The shortest horizon that is taken from history: it leaves room for reports that are held up."""
    horizon_max_s: float = Field(default=21600, gt=0)
    """The longest one: a pending outcome holds back the promotion for that long."""
    min_coverage: float = Field(default=0.8, ge=0, le=1)
    """Share of outcomes that must be known on both arms before a stage is left and before promotion."""
    ratio_error: float = Field(default=0.005, gt=0, lt=1)
    """How often arms that do get their shares may hold a rollout and ask a person."""
    feedback_ratio_limit: float = Field(default=2.0, ge=1)
    """Share of negative feedback, against that of the stable policy, above which a person is asked."""
    feedback_min_ratings: int = Field(default=20, ge=1)
    """Rated trajectories of each arm before feedback counts."""

    task_files: TaskFiles = Field(default_factory=dict[str, str])
    """By role, `*` for all others: the held-out tasks (a path, or an `s3://` uri) that candidate and stable are asked.
    A JSON object, or one path for all roles. A role without any is compared by its canary alone."""
    task_temperature: float = Field(default=0, ge=0, le=2)
    """How answers to the tasks of a file are drawn: 0 is greedy, which differs less from one run to the next."""
    task_max_tokens: int = Field(default=1024, ge=1)
    """Of an answer to a task of a file that sets no `max_tokens`: a candidate may never end one by itself."""
    heldout_tasks: int = Field(default=400, ge=1)
    """How many held-out tasks a candidate plays; of a longer task file they are drawn by the seed."""
    heldout_seed: int = 0
    """Which tasks, and the seed of the sampling."""
    heldout_deadline_s: float = Field(default=1800, gt=0)
    """Tasks that are not all answered by then show nothing: a person is asked, or they are played again where an engine
    was at fault."""
    heldout_margin: float = Field(default=0.05, ge=0, lt=1)
    """The gate fails when the lower bound of the difference is below minus this."""
    heldout_confidence: float = Field(default=0.8, gt=0.5, lt=1)
    """Confidence of that one-sided bound."""
    replay_command: str | None = None
    """The role's evaluator, which judges answers to logged prompts: it lets a candidate of a role with little traffic
    begin at a higher weight. Without one a person is asked."""
    replay_prompts: int = Field(default=400, ge=1, le=1000)
    """How many logged prompts both policies answer, once each."""
    replay_min_prompts: int = Field(default=100, ge=10)
    """With fewer nothing is compared, and a person is asked."""
    replay_margin: float = Field(default=0.05, ge=0, lt=1)
    """The replay passes when the lower bound of the paired difference is at least minus this."""
    replay_confidence: float = Field(default=0.95, gt=0.5, lt=1)
    """Confidence of that one-sided bound."""
    replay_weight: float = Field(default=25, gt=0, lt=100)
    """Largest first weight after a passed replay, in percent: traffic begins at the last stage that is not above it."""
    replay_deadline_s: float = Field(default=1800, gt=0)
    """The policies get so long for all answers, and the evaluator so long for all judgements."""
    approval: bool = False
    """Also wait for an operator when every gate passed."""
    warmup_prompts: tuple[str, ...] = ("Hello.", "What can you do?")
    """Messages (a JSON list) that a fresh policy must answer with finite log-probabilities."""
    load_timeout_s: float = Field(default=300, gt=0)
    """Longest time a replica may take to fetch a policy and answer for it."""
    unload_after_s: float = Field(default=3600, ge=0)
    """Engines are freed of a policy when no route has named it for this long, in the present deployer's term."""

    takeover_s: float = Field(default=5, ge=0.5, le=8)
    """A standby takes over when the leading deployer has given no sign of life for this long."""
    advertised_url: OptionalHttpAddress = None
    """Where a standby sends orders when this deployer leads; absent: this host's name and `port`."""
    lease_s: float = Field(default=5, gt=0)
    """The canary's lease is renewed this often; gateways fall back to stable after 20 s without renewal."""
    tick_s: float = Field(default=0.5, gt=0, le=1)
    """Longest pause between two looks at new trajectories."""
    lead_s: float = Field(default=2, ge=0)
    """A new weight holds from this long after it is decided: gateways look for a new route every 2 s."""
    keep_seen: int = Field(default=20_000, ge=100)
    """Settled trajectories that are remembered, so that none counts twice and late feedback finds its arm."""

    @model_validator(mode="after")
    def _consistent(self) -> Settings:
        weights = self.stage_weights
        if not weights or any(not 0 < weight < 1 for weight in weights) or list(weights) != sorted(set(weights)):
            raise ValueError("stages must rise and lie between 0 and 100 percent")
        for name, given in (("stage_min_s", self.stage_min_s), ("stage_min_trajectories", self.stage_min_trajectories)):
            if len(given) not in (1, len(weights)):
                raise ValueError(f"{name} needs one value, or one for each of the {len(weights)} stages below 100 %")
        if wrong := [role for role in self.task_files if role != ANY_ROLE and not ROLE.fullmatch(role)]:
            raise ValueError(f"task_files: {wrong[0]!r} is neither a role's name nor {ANY_ROLE}")
        if self.replay_min_prompts > self.replay_prompts:
            raise ValueError("replay_min_prompts must not be above replay_prompts")
        if not self.horizon_min_s <= self.horizon_s <= self.horizon_max_s:
            raise ValueError("horizon_s must lie between horizon_min_s and horizon_max_s")
        if not self.metrics or {*self.metrics} - {*METRICS}:
            raise ValueError(f"metrics are chosen from {', '.join(METRICS)}")
        if not self.promotion_metrics or {*self.promotion_metrics} - {*PROMOTION_METRICS}:
            raise ValueError(f"promotion_metrics are chosen from {', '.join(PROMOTION_METRICS)}")
        if self.budget.total > LARGEST_BUDGET + 1e-12:
            raise ValueError(
                f"the shares of false rollbacks add up to {self.budget.total:g}, at most {LARGEST_BUDGET:g}"
            )
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

    def platform_of(self, role: str) -> str:
        """What `model.deployed` calls the engine of a role; also of one that no engine serves any more."""
        return self.serving_platform or self.engine_kind_of(role) or self.shared.engine_kind

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

    @property
    def budget(self) -> Budget:
        """How the false rollbacks are shared."""
        return Budget(self.share_evidence, self.share_first_call, self.share_run, self.share_safety)

    def rules(self) -> Rules:
        """The part that the domain works by."""
        count = len(self.stage_weights)
        times, minima = _for_each(self.stage_min_s, count), _for_each(self.stage_min_trajectories, count)
        plain = {name: getattr(self, name) for name in _SAME_IN_RULES}
        return Rules(
            stages=tuple(Stage(*one) for one in zip(self.stage_weights, times, minima, strict=True)),
            budget=self.budget,
            roles_without_outcomes=frozenset(self.roles_without_outcomes),
            feedback_ratio=self.feedback_ratio_limit,
            replay_weight=self.replay_weight / 100,
            **plain,
        )


_SAME_IN_RULES = (
    "hold_back_weight",
    "soak_s",
    "deadline_s",
    "horizon_s",
    "horizon_min_s",
    "horizon_max_s",
    "margin",
    "latency_margin",
    "metrics",
    "promotion_metrics",
    "promotion_threshold",
    "caution_threshold",
    "min_coverage",
    "ratio_error",
    "feedback_min_ratings",
    "lead_s",
    "longest_days",
    "keep_seen",
)
"""Settings that the rules take over under the same name."""


def _for_each(given: tuple[T, ...], count: int) -> tuple[T, ...]:
    """One value holds for all stages."""
    return given * count if len(given) == 1 else given


def lacks(settings: Settings) -> Iterator[str]:
    """What is not there and should be before a start. A deployer that runs goes on without: its canaries need it."""
    for role, place in settings.task_files.items():
        if not place.startswith("s3://") and not Path(place).is_file():
            yield f"RATCHET_CANARY_TASK_FILES[{role}]: there is no file {place!r}"
