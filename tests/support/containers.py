"""The real servers as containers of the images that docker-compose.yml names: `RATCHET_TEST_SERVERS=containers`.

Definitions are plain values; only `running_container` talks to a container engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from ratchet.local.local_stack.ports import LOOPBACK, free_ports
from tests.support.compose import REPOSITORY, image, services

if TYPE_CHECKING:
    from testcontainers.core.container import DockerContainer

START_S = 120
"""Deadline for a container's start; the image is on this machine by then."""

PASSWORD = "test-password"
NO_USERS = "tests/support/no_users.conf"
"""In the place of what `broker_users` writes for the broker of docker-compose.yml."""


@dataclass(frozen=True)
class ContainerSpec:
    """One server as a container."""

    image: str
    command: tuple[str, ...]
    ports: tuple[int, ...]
    """Inside the container; the first is where clients connect."""
    url: str
    """With `{port}` for the first port on this machine."""
    ready: tuple[int, str]
    """Port inside the container and path that answers 200 when the server is ready."""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    mounts: Mapping[str, str] = field(default_factory=dict[str, str])
    """Files of the repository, read-only, by their place in the container."""


def nats_container() -> ContainerSpec:
    """The broker with the configuration of docker-compose.yml, without users: it lets everyone in."""
    return ContainerSpec(
        image=image("nats"),
        command=tuple(services()["nats"]["command"]),
        ports=(4222, 8222),
        url=f"nats://{LOOPBACK}:{{port}}",
        ready=(8222, "/healthz"),
        mounts={"/etc/nats/ratchet.conf": "deploy/nats/compose.conf", "/data/users.conf": NO_USERS},
    )


def clickhouse_container() -> ContainerSpec:
    """The warehouse."""
    return ContainerSpec(
        image=image("clickhouse"),
        command=(),
        ports=(8123,),
        url=f"http://ratchet:{PASSWORD}@{LOOPBACK}:{{port}}",
        ready=(8123, "/ping"),
        env={"CLICKHOUSE_USER": "ratchet", "CLICKHOUSE_PASSWORD": PASSWORD},
    )


def s3_container(access_key: str, secret_key: str) -> ContainerSpec:
    """The object store."""
    return ContainerSpec(
        image=image("minio"),
        command=tuple(services()["minio"]["command"]),
        ports=(9000,),
        url=f"http://{LOOPBACK}:{{port}}",
        ready=(9000, "/minio/health/ready"),
        env={"MINIO_ROOT_USER": access_key, "MINIO_ROOT_PASSWORD": secret_key},
    )


@dataclass
class ContainerServer:
    """A running container, which tests may also kill and start again, on the same port and data."""

    url: str
    container: DockerContainer
    wait: Callable[[], None]

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
def running_container(spec: ContainerSpec) -> Iterator[ContainerServer]:
    """Run one container for the length of a block."""
    from testcontainers.core.container import DockerContainer  # noqa: PLC0415 - only where containers are asked for
    from testcontainers.core.wait_strategies import HttpWaitStrategy  # noqa: PLC0415 - only where containers are asked for

    container = DockerContainer(spec.image)
    outer = dict(zip(spec.ports, free_ports(len(spec.ports)), strict=True))
    for inside, port in outer.items():
        # The library's own method takes no address and would publish on all of them.
        container.ports[f"{inside}/tcp"] = (LOOPBACK, port)
    for place, source in spec.mounts.items():
        container.with_volume_mapping(str(REPOSITORY / source), place, "ro")
    container.with_envs(**spec.env)
    if spec.command:
        container.with_command(list(spec.command))
    ready = HttpWaitStrategy(*spec.ready).with_startup_timeout(START_S)
    with container.waiting_for(ready):
        yield ContainerServer(
            spec.url.format(port=outer[spec.ports[0]]), container, lambda: ready.wait_until_ready(container)
        )
