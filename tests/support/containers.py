"""The real servers as containers of the images that docker-compose.yml names: `RATCHET_TEST_SERVERS=containers`.

`COMPOSE_FILE` names another compose file, whose images a machine without a registry has. Definitions are plain values;
only `running_container` talks to a container engine.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ratchet.local.local_stack.ports import LOOPBACK, free_ports
from tests.support.compose import REPOSITORY, compose

if TYPE_CHECKING:
    from testcontainers.core.container import DockerContainer

START_S = 300
"""Deadline for one server's start on a busy machine; its image, or program, is there by then."""

PASSWORD = "test-password"
NO_USERS = "tests/support/no_users.conf"
"""In the place of what `broker_users` writes for the broker of docker-compose.yml."""


@dataclass(frozen=True)
class ContainerSpec:
    """One server as a container."""

    image: str
    command: tuple[str, ...]
    port: int
    """Inside the container, where clients connect."""
    url: str
    """With `{port}` for the port on this machine."""
    ready: tuple[str, ...]
    """The health check of the compose file: a command in the container that ends with 0 once the server is ready."""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    limits: Mapping[str, Mapping[str, int]] = field(default_factory=dict[str, Mapping[str, int]])
    """`soft` and `hard`, by the name of what is limited."""
    mounts: Mapping[str, str] = field(default_factory=dict[str, str])
    """Files of the repository, read-only, by their place in the container."""
    data: tuple[str, str] | None = None
    """A folder of the test, which may take its files away, and its place in the container."""


def _defined(service: str) -> dict[str, Any]:
    """A service of the compose file."""
    return compose(os.environ.get("COMPOSE_FILE", "docker-compose.yml"))["services"][service]


def _check(service: Mapping[str, Any]) -> tuple[str, ...]:
    """The command of its health check, without compose's word for what follows."""
    return tuple(service["healthcheck"]["test"][1:])


def nats_container() -> ContainerSpec:
    """The broker with the configuration of the compose file, without users: it lets everyone in."""
    service = _defined("nats")
    return ContainerSpec(
        image=service["image"],
        command=tuple(service["command"]),
        port=4222,
        url=f"nats://{LOOPBACK}:{{port}}",
        ready=_check(service),
        limits=service.get("ulimits", {}),
        mounts={"/etc/nats/ratchet.conf": "deploy/nats/compose.conf", "/data/users.conf": NO_USERS},
        data=("nats", "/data"),
    )


def clickhouse_container() -> ContainerSpec:
    """The warehouse."""
    service = _defined("clickhouse")
    return ContainerSpec(
        image=service["image"],
        command=(),
        port=8123,
        url=f"http://ratchet:{PASSWORD}@{LOOPBACK}:{{port}}",
        ready=_check(service),
        limits=service.get("ulimits", {}),
        env={"CLICKHOUSE_USER": "ratchet", "CLICKHOUSE_PASSWORD": PASSWORD},
    )


def s3_container(access_key: str, secret_key: str) -> ContainerSpec:
    """The object store."""
    service = _defined("minio")
    return ContainerSpec(
        image=service["image"],
        command=tuple(service["command"]),
        port=9000,
        url=f"http://{LOOPBACK}:{{port}}",
        ready=_check(service),
        limits=service.get("ulimits", {}),
        env={"MINIO_ROOT_USER": access_key, "MINIO_ROOT_PASSWORD": secret_key},
    )


@dataclass
class ContainerServer:
    """A running container, which tests may also kill and start again, on the same port and data."""

    url: str
    container: DockerContainer
    wait: Callable[[], None]

    @property
    def pid(self) -> int:
        """Of its first process, where the engine runs on this machine."""
        inner = self.container.get_wrapped_container()
        inner.reload()
        return inner.attrs["State"]["Pid"]

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        inner = self.container.get_wrapped_container()
        inner.kill()
        inner.wait()

    def start(self) -> None:
        """Start again after `kill` or `stop`."""
        self.container.get_wrapped_container().start()
        self.wait()

    def stop(self) -> None:
        """Orderly end; the container stays, so that it can start again."""
        self.container.get_wrapped_container().stop()


def require_engine() -> None:
    """Raise `UsageError`, one line, when no container engine answers."""
    import docker  # noqa: PLC0415 - only where containers are asked for
    from docker.errors import DockerException  # noqa: PLC0415

    try:
        docker.from_env().close()
    except DockerException as error:
        raise pytest.UsageError(f"RATCHET_TEST_SERVERS=containers needs a container engine: {error}") from error


@contextmanager
def running_container(spec: ContainerSpec, directory: Path) -> Iterator[ContainerServer]:
    """Run one container for the length of a block, with its data in `directory` where tests reach for them."""
    from docker.types import Ulimit  # noqa: PLC0415 - only where containers are asked for
    from testcontainers.core.container import DockerContainer  # noqa: PLC0415
    from testcontainers.core.wait_strategies import ExecWaitStrategy  # noqa: PLC0415

    limits = [Ulimit(name=name, **bounds) for name, bounds in spec.limits.items()]
    container = DockerContainer(spec.image, ulimits=limits)
    (port,) = free_ports(1)
    # The library's own method takes no address and would publish on all of them.
    container.ports[f"{spec.port}/tcp"] = (LOOPBACK, port)
    for place, source in spec.mounts.items():
        container.with_volume_mapping(str(REPOSITORY / source), place, "ro")
    if spec.data:
        folder, place = spec.data
        (directory / folder).mkdir()
        container.with_volume_mapping(str(directory / folder), place, "rw")
    container.with_envs(**spec.env)
    if spec.command:
        container.with_command(list(spec.command))
    ready = ExecWaitStrategy(list(spec.ready)).with_startup_timeout(START_S)
    with container.waiting_for(ready):
        yield ContainerServer(spec.url.format(port=port), container, lambda: ready.wait_until_ready(container))
