"""What can be chosen about the local stack."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ratchet.core.errors import ConfigError
from ratchet.core.service.discovery import DEFAULT_DIRECTORY
from ratchet.core.service.settings_file import SettingsFile
from ratchet.local.local_stack.catalog import MOST_GATEWAYS, NAMES, default_ports, port_name
from ratchet.local.local_stack.vllm import VllmSettings

PORT_VARIABLE = "RATCHET_PORT_"
"""`RATCHET_PORT_GATEWAY=9000` chooses the port named `gateway`."""


@dataclass(frozen=True, slots=True)
class StackSettings:
    """The defaults start everything on the documented ports with its state in `.ratchet`."""

    directory: Path = DEFAULT_DIRECTORY
    """Logs, data, `stack.json` and the lock."""
    ports: Mapping[str, int] = field(default_factory=dict[str, int])
    """Chosen ports by name; see `catalog.default_ports`."""
    free_ports: bool = False
    """Every port that is not in `ports` is any free one."""
    only: tuple[str, ...] = ()
    """Start these members (and the servers that a service needs); all when empty."""
    mlflow: Path | None = None
    """The program `mlflow` of an environment that has it: a server of it runs too, and the experiment tracker."""
    vllm: VllmSettings | None = None
    """A vLLM to run in the place of `engine_local`; it needs a `start_s` of many minutes."""
    upstream: str = ""
    """A provider, or the URL of a server of OpenAI's API, that answers while a role has no policy."""
    workflows: bool = False
    """Plan and run workflows, too."""
    analyst: bool = False
    """Look for what goes wrong, and plan changes, too."""
    gateways: int = 1
    """Members that answer calls on the gateway's port, for one core each."""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    """Added to the environment of every service."""
    file: SettingsFile = field(default_factory=SettingsFile)
    """Settings for what neither the environment nor the stack itself sets."""
    start_s: float = 300.0
    """Each process has this long to become ready: importing torch takes minutes on a busy machine. One that ends
    instead is noticed at once."""
    remind_s: float = 15.0
    """A member that starts says this often for how long it has not been ready."""
    restart_first_s: float = 0.5
    """Pause before the first restart of a crashed process; doubles with every further crash."""
    restart_last_s: float = 30.0
    """Longest pause."""
    restart_forgiven_s: float = 60.0
    """After running this long, earlier crashes no longer count."""

    silent_s: float = 30.0
    """A process that lives and has answered nothing for this long is killed and started again. One that has never
    answered has `start_s`."""
    answer_s: float = 4.0
    """How long an answer to a look may take. A service gives each of its checks two seconds."""
    look_s: float = 0.5
    """Pause between two looks at a member."""

    def __post_init__(self) -> None:
        unknown = [name for name in self.only if name not in NAMES]
        if unknown:
            raise ConfigError(f"there is no service {unknown[0]!r}; there are {', '.join(NAMES)}")
        if not 1 <= self.gateways <= MOST_GATEWAYS:
            raise ConfigError(f"gateways={self.gateways} is not between 1 and {MOST_GATEWAYS}")
        known = default_ports(self.gateways)
        for name, port in self.ports.items():
            if name not in known:
                raise ConfigError(f"there is no port {name!r}; there are {', '.join(known)}")
            if not 0 < port < 65536:
                raise ConfigError(f"port {name}={port} is not between 1 and 65535")


def ports_of_environment(environment: Mapping[str, str]) -> dict[str, int]:
    """Ports chosen by `RATCHET_PORT_<NAME>`. Raises `ConfigError` for a value that is not a number."""
    given = {key: value for key, value in environment.items() if key.startswith(PORT_VARIABLE)}
    return {port_name(key.removeprefix(PORT_VARIABLE)): port_number(key, value) for key, value in given.items()}


def ports_of_options(options: list[str]) -> dict[str, int]:
    """Ports chosen by `NAME=PORT`."""
    ports: dict[str, int] = {}
    for option in options:
        name, separator, value = option.partition("=")
        if not separator:
            raise ConfigError(f"--port takes NAME=PORT, not {option!r}")
        ports[port_name(name)] = port_number(f"--port {name}", value)
    return ports


def port_number(where: str, value: str) -> int:
    """`value` as a number."""
    try:
        return int(value)
    except ValueError as error:
        raise ConfigError(f"{where}: {value!r} is not a port number") from error
