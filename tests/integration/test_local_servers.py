"""The three servers: they listen on this machine only, and keep acknowledged data when they are killed."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import boto3
import clickhouse_connect
import httpx
import nats
import psutil
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from ratchet.bus.testing import eventually
from ratchet.core.stores.objects import Objects
from ratchet.local.local_stack.clickhouse_access import PASSWORD_VARIABLE
from ratchet.local.local_stack.ports import free_port
from tests.support.command_lines import ratchet
from tests.support.servers import (
    ACCESS_KEY,
    SECRET_KEY,
    RunningServer,
    running_clickhouse,
    running_nats,
    running_s3,
    s3_settings,
)

Start = Callable[[Path], AbstractContextManager[RunningServer]]


def s3_client(server: RunningServer, access_key: str = ACCESS_KEY, secret_key: str = SECRET_KEY) -> Any:
    return boto3.client(
        "s3",
        endpoint_url=server.url,
        aws_access_key_id=access_key,
        aws_secret_access_key=secret_key,
        region_name="us-east-1",
        config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1}),
    )


def listening(server: RunningServer) -> list[Any]:
    """Where the process takes connections."""
    connections = psutil.Process(server.pid).net_connections(kind="inet")
    return [connection.laddr for connection in connections if connection.status == psutil.CONN_LISTEN]


@pytest.mark.parametrize("start", [running_nats, running_clickhouse, running_s3])
def test_a_server_listens_on_loopback_only_and_stops_when_its_block_ends(start: Start, tmp_path: Path) -> None:
    with start(tmp_path) as server:
        assert {address.ip for address in listening(server)} == {"127.0.0.1"}
    assert not psutil.pid_exists(server.pid)


async def test_the_broker_keeps_acknowledged_messages_when_it_is_killed(tmp_path: Path) -> None:
    with running_nats(tmp_path) as server:
        client = await nats.connect(server.url, allow_reconnect=False, connect_timeout=20)
        await client.jetstream().add_stream(name="S", subjects=["s"])
        for number in range(50):
            await client.jetstream().publish("s", str(number).encode())
        await client.close()
        server.kill()
        server.start()
        client = await nats.connect(server.url, allow_reconnect=False, connect_timeout=20)
        assert (await client.jetstream().stream_info("S")).state.messages == 50
        assert client.max_payload == 8 * 1024 * 1024
        await client.close()


@pytest.mark.parametrize("end", [RunningServer.kill, pytest.param(RunningServer.stop, marks=pytest.mark.slow)])
def test_the_warehouse_keeps_its_rows_over_a_restart(tmp_path: Path, end: Callable[[RunningServer], None]) -> None:
    with running_clickhouse(tmp_path) as server:
        client = clickhouse_connect.get_client(dsn=server.url)
        client.command("CREATE DATABASE d")
        client.command("CREATE TABLE d.t (id UInt64) ENGINE = MergeTree ORDER BY id")
        client.insert("t", [[number] for number in range(1000)], column_names=["id"], database="d")
        client.close_connections()
        end(server)
        server.start()
        client = clickhouse_connect.get_client(dsn=server.url)
        assert client.command("SELECT count() FROM d.t") == 1000
        client.close_connections()


def test_the_warehouse_s_data_belongs_to_one_process(tmp_path: Path) -> None:
    with running_clickhouse(tmp_path):
        second = subprocess.run(
            [
                sys.executable,
                "-m",
                "ratchet.local.local_stack.clickhouse",
                f"--data={tmp_path}/clickhouse",
                f"--port={free_port()}",
            ],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, PASSWORD_VARIABLE: "x"},
        )
    assert second.returncode == 1
    assert "is in use by another process" in second.stderr
    assert "Traceback" not in second.stderr


async def _object(server: RunningServer) -> bytes | None:
    """The object, None while the store that answers already cannot find its volumes yet."""
    try:
        return s3_client(server).get_object(Bucket="blobs", Key="a/b")["Body"].read()
    except ClientError:
        return None


def test_object_store_keeps_its_objects_over_a_kill_and_refuses_wrong_keys(tmp_path: Path) -> None:
    with running_s3(tmp_path) as server:
        client = s3_client(server)
        client.create_bucket(Bucket="blobs")
        client.put_object(Bucket="blobs", Key="a/b", Body=b"x" * 100_000)
        with pytest.raises(ClientError, match="InvalidAccessKeyId"):
            s3_client(server, "unknown", "none").list_buckets()
        with pytest.raises(ClientError, match="SignatureDoesNotMatch"):
            s3_client(server, ACCESS_KEY, "wrong").list_buckets()
        server.kill()
        server.start()
        assert asyncio.run(eventually(partial(_object, server))) == b"x" * 100_000
        assert any(path.exists() for path in server.program.leftovers)
    assert not any(path.exists() for path in server.program.leftovers)


FROM_ANYWHERE: tuple[dict[str, str], ...] = (
    {},
    {"Origin": "http://evil.example", "Content-Type": "text/plain"},
    {"Host": "evil.example"},
)
ACTS = (
    ("GET", "/buckets/"),
    ("GET", "/buckets/blobs/policies/p"),
    ("GET", "/dir/assign"),
    ("GET", "/dir/lookup?volumeId=1"),
    ("GET", "/vol/status"),
    ("GET", "/1,0101f96b93"),
    ("PUT", "/buckets/blobs/forged"),
    ("POST", "/buckets/blobs/forged"),
    ("POST", "/buckets/blobs/gone?mv.from=/buckets/blobs/policies"),
    ("POST", "/submit"),
    ("POST", "/1,0101f96b93"),
    ("POST", "/col/delete?collection=blobs"),
    ("DELETE", "/buckets/blobs/policies?recursive=true"),
    ("DELETE", "/1,0101f96b93"),
)
"""What the filer, the master and the volume server of SeaweedFS would do for anybody."""


def _answers(ports: Collection[int]) -> Iterator[tuple[str, httpx.Response]]:
    """What each port says to each act, by its words; a port of another protocol breaks the connection off."""
    with httpx.Client(timeout=5.0) as client:
        for port, origin, (method, path) in itertools.product(ports, FROM_ANYWHERE, ACTS):
            try:
                answer = client.request(method, f"http://127.0.0.1:{port}{path}", headers=origin)
            except httpx.HTTPError:
                continue
            yield f"{method} {port}{path} {origin}: {answer.status_code}", answer


def test_broker_tells_pages_nothing_of_itself(tmp_path: Path) -> None:
    with running_nats(tmp_path) as server:
        ready = httpx.URL(server.program.ready_url)
        assert httpx.get(ready).status_code == 200
        pages = ["/", "/healthz", "/varz", "/connz?subs=1", "/jsz?streams=1", "/accountz"]
        assert {httpx.get(ready.join(page)).status_code for page in pages} == {404}


def test_no_port_of_the_object_store_serves_without_credentials(tmp_path: Path) -> None:
    planted = b"planted-conversation" * 2000
    with running_s3(tmp_path) as server:
        client = s3_client(server)
        client.create_bucket(Bucket="blobs")
        client.put_object(Bucket="blobs", Key="policies/p", Body=planted)
        answers = list(_answers({address.port for address in listening(server)}))
        assert [words for words, answer in answers if answer.status_code < 400] == []
        unsigned = [answer.status_code for _, answer in answers if "Volume" in answer.headers.get("Server", "")]
        assert set(unsigned) == {400, 401}  # a path of no volume; no signature
        assert [entry["Key"] for entry in client.list_objects_v2(Bucket="blobs")["Contents"]] == ["policies/p"]
        assert client.get_object(Bucket="blobs", Key="policies/p")["Body"].read() == planted


def test_a_command_does_not_wait_for_a_warehouse_that_hangs(tmp_path: Path) -> None:
    with running_clickhouse(tmp_path) as server:
        os.kill(server.pid, signal.SIGSTOP)
        try:
            began = time.monotonic()
            env = {"RATCHET_CLICKHOUSE_URL": server.url, "RATCHET_CLICKHOUSE_TIMEOUT_S": "0.5"}
            ended = ratchet("trajectories", "list", "--dir", str(tmp_path), **env)
        finally:
            os.kill(server.pid, signal.SIGCONT)
    assert ended.returncode == 1
    unrecorded, failed = ended.stderr.splitlines()
    assert unrecorded.startswith("not in the audit log: the broker does not answer")
    assert failed.startswith("ratchet: ClickHouse")
    assert time.monotonic() - began < 60


def test_programs_that_make_the_bucket_at_the_same_time_all_have_it(tmp_path: Path) -> None:
    with running_s3(tmp_path) as server:
        settings = s3_settings(server, "one-for-all")
        stores = [Objects(settings) for _ in range(8)]
        with ThreadPoolExecutor(len(stores)) as pool:
            list(pool.map(Objects.ensure_bucket, stores))
        for objects in stores:
            objects.ping()
        assert [bucket["Name"] for bucket in s3_client(server).list_buckets()["Buckets"]] == ["one-for-all"]
