"""Integration tests whose servers are containers of the compose file's images, by testcontainers on podman's socket."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ratchet.bus.testing import eventually
from tests.compose.engine import FILE, Engine
from tests.support.compose import REPOSITORY

pytestmark = pytest.mark.timeout(3600)
FILES = ("tests/integration/test_bus_projection.py", "tests/integration/test_erasure.py")
"""All three servers, and a broker that is killed."""


@contextmanager
def docker_socket(engine: Engine) -> Iterator[str]:
    """Where podman answers as docker does."""
    socket = engine.folder / "podman.sock"
    server = subprocess.Popen(["podman", "system", "service", "--time=0", f"unix://{socket}"], env=engine.environment)

    async def offered() -> bool:
        assert server.poll() is None, "podman offers no socket"
        return socket.exists()

    try:
        asyncio.run(eventually(offered))
        yield f"unix://{socket}"
    finally:
        server.terminate()
        server.wait()


def test_integration_tests_pass_on_containers(engine: Engine) -> None:
    with docker_socket(engine) as socket:
        environment = os.environ | {
            "RATCHET_TEST_SERVERS": "containers",
            "COMPOSE_FILE": str(engine.folder / FILE),
            "DOCKER_HOST": socket,
            "TESTCONTAINERS_RYUK_DISABLED": "true",  # an image of its own, which a registry would have to give
        }
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *FILES]
        ended = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)

    assert ended.returncode == 0, ended.stdout[-10000:]
