"""The one table of what the local stack consists of: servers, services, their ports and what they wait for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ratchet.core.rules.algorithms import PROMPTS

SERVERS = ("nats", "s3", "clickhouse")
"""Started first, stopped last."""

SERVER_PORTS = {"nats": 4222, "nats_monitor": 8222, "s3": 8333, "clickhouse": 8123}


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """One of our services, run as `python -m <module>`."""

    name: str
    short: str
    """Its name among the ports: `<short>` serves HTTP, `<short>_health` health and metrics."""
    health_port: int
    port: int | None = None
    needs: tuple[str, ...] = ()
    """Services that are ready before it starts; the servers always are."""
    extra: str | None = None
    """The extra of the package that it needs, when that is torch."""
    drain_s: float | None = None
    """How long a stop lets the answers or trainings under way go on, unless `drain_variable` says otherwise."""
    package: str = ""
    """Where its code is, when that is not `ratchet.<name>`."""
    starts_when_needed: bool = False
    """It starts when a job or a policy needs it: importing torch takes half a minute of a core."""
    like: ServiceSpec | None = None
    """The service whose program and settings it has, in another environment."""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    """What it has in its environment, whatever else is set."""

    @property
    def module(self) -> str:
        return self.like.module if self.like else self.package or f"ratchet.{self.name}"

    @property
    def configured_as(self) -> str:
        """The service whose table of the settings file it reads."""
        return self.like.name if self.like else self.name

    @property
    def port_variable(self) -> str:
        """Environment variable with its HTTP port."""
        return f"RATCHET_{self.short.upper()}_PORT"

    @property
    def drain_variable(self) -> str:
        """Environment variable that says how long it drains."""
        return self.like.drain_variable if self.like else f"RATCHET_{self.short.upper()}_DRAIN_S"

    @property
    def url_variable(self) -> str:
        """Environment variable that tells everybody where it is."""
        return f"RATCHET_{self.short.upper()}_URL"


TRAINER, PROMPT_WORKER = "trainer_worker", "prompt_worker"
"""The workers of the pools `default` and `prompts`."""
ENGINE, VLLM = "engine_local", "vllm"
"""What answers for policies: ours, or vLLM in its place and on its port."""
CONSOLE, GATEWAY = "console", "gateway"

_TRAINER = ServiceSpec(
    TRAINER, "trainer", 9104, needs=("rl_coordinator",), extra="trainer", drain_s=120.0, starts_when_needed=True
)
SERVICES = (
    ServiceSpec("trajectory_collector", "collector", 9101),
    ServiceSpec("reward_computer", "reward", 9102),
    ServiceSpec("rl_coordinator", "coordinator", 9103, port=8081),
    _TRAINER,
    ServiceSpec(
        ENGINE,
        "engine",
        9106,
        port=8082,
        extra="engine",
        package="ratchet.local.engine_local",
        starts_when_needed=True,
    ),
    ServiceSpec(GATEWAY, GATEWAY, 9105, port=8080, needs=(ENGINE,), drain_s=120.0),
    ServiceSpec("canary_deployer", "deployer", 9107, port=8083, needs=(ENGINE, "gateway")),
    ServiceSpec(CONSOLE, CONSOLE, 9109, port=8084),
    ServiceSpec(
        PROMPT_WORKER,
        "prompts",
        9110,
        needs=("rl_coordinator", GATEWAY),
        drain_s=20.0,
        starts_when_needed=True,
        like=_TRAINER,
        env={"RATCHET_TRAINER_POOL": PROMPTS, "RATCHET_TRAINER_WORKER": PROMPTS},
    ),
)

MLFLOW, MLFLOW_PORT = "mlflow", 5000
TRACKER = ServiceSpec("experiment_tracker", "tracker", 9108, needs=(MLFLOW,), package="ratchet.extras.trackers")
"""With a server of MLflow, where one was asked for."""
NOTIFIER = ServiceSpec("notifier", "notifier", 9111)
"""Where receivers of alerts are set."""
SPAN_EXPORTER = ServiceSpec("span_exporter", "span_exporter", 9112, package="ratchet.extras.span_exporter")
"""Where a receiver of spans is set."""
WORKFLOWS = ServiceSpec("workflows", "workflows", 9129, port=8085, needs=(GATEWAY,))
"""Where it was asked for; its health stands behind those of as many gateways as there may be."""
ANALYST = ServiceSpec("analyst", "analyst", 9130, port=8086)
"""The same."""
ALL_SERVICES = (*SERVICES, TRACKER, NOTIFIER, SPAN_EXPORTER, WORKFLOWS, ANALYST)
"""Also those that only some stacks have."""

NAMES = (*SERVERS, *(spec.name for spec in SERVICES))


MOST_GATEWAYS = 16
"""More would share the broker's memory for what gateways tell each other, and no machine has the cores for them."""


def gateway_names(number: int) -> list[str]:
    """The members that are gateways: `gateway`, `gateway-2`, ..."""
    return [GATEWAY, *(f"{GATEWAY}-{place}" for place in range(2, number + 1))]


def health_port_name(name: str) -> str:
    """The port of a gateway's health among the ports: `gateway-2` has `gateway_2_health`."""
    return f"{name.replace('-', '_')}_health"


def default_ports(gateways: int = 1) -> dict[str, int]:
    """Every port that can be chosen, by name."""
    ports = {**SERVER_PORTS, MLFLOW: MLFLOW_PORT}
    for spec in ALL_SERVICES:
        if spec.port is not None:
            ports[spec.short] = spec.port
        ports[f"{spec.short}_health"] = spec.health_port
    further = enumerate(gateway_names(gateways)[1:], 9113)  # 9112 is the last of the services before
    return ports | {health_port_name(name): port for port, name in further}


def port_name(name: str) -> str:
    """The name of a port by which a person may call it: `rl_coordinator` is `coordinator`, in any case."""
    spelled = name.strip().lower()
    for spec in ALL_SERVICES:
        if spelled in (spec.name, f"{spec.name}_health"):
            return spec.short + spelled.removeprefix(spec.name)
    return spelled


def owner_of(port_name: str) -> str:
    """The server or service that listens on the named port."""
    for spec in ALL_SERVICES:
        if port_name in (spec.short, f"{spec.short}_health"):
            return spec.name
    return GATEWAY if port_name.startswith(f"{GATEWAY}_") else port_name.removesuffix("_monitor")
