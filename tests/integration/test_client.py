"""Both clients on a real broker that comes and goes, in processes of their own where that matters."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from ratchet import AsyncClient, Client
from ratchet.bus.testing import eventually
from ratchet.client import ClientSettings
from ratchet.core.contract import Feedback, Preference, Trajectory
from ratchet.core.errors import InvalidMessage, Rejected
from ratchet.core.service.contracts import load_contracts
from ratchet.core.service.settings import SharedSettings
from tests.support.running import connected
from tests.support.servers import Broker, RunningServer

CONTRACTS = load_contracts()


@pytest.fixture
async def settings(nats: Broker, tmp_path: Path) -> ClientSettings:
    """Settings for a broker with all streams."""
    shared = SharedSettings(nats_url=nats.url, data_dir=tmp_path / "data")
    async with connected(shared):
        pass
    return ClientSettings(shared=shared)


async def stored(settings: ClientSettings, stream: str, kind: type) -> list:
    """Everything in a stream, oldest first."""
    async with connected(settings.shared) as bus:
        messages = []
        for sequence in range(1, (await bus.extent(stream)).last + 1):
            message = await bus.nc.jetstream().get_msg(stream, sequence)
            assert message.subject is not None
            headers = dict(message.headers or {})
            assert headers["ce-type"] == kind.TOPIC
            messages.append(CONTRACTS.read(message.subject, message.data or b"")[0])
        return messages


def play(client: Client | AsyncClient, task_id: str) -> str:
    with client.trajectory(task_id=task_id, instructions="Help.", model="gpt-4o", temperature=0.2) as t:
        t.turn(observation="hi", action="hello")
        t.outcome("success", verified_by="tests")
    return t.trajectory_id


async def test_trajectories_and_feedback_arrive(settings: ClientSettings) -> None:
    async with AsyncClient(agent_id="agent-zero-main", role="support", settings=settings) as client:
        trajectory_id = play(client, "1")
        client.feedback(trajectory_id, thumbs=True)
        client.feedback(trajectory_id, stars=4)
        client.feedback(trajectory_id, comment="fine")
        client.feedback(trajectory_id, correction="say goodbye")
        client.feedback(trajectory_id, abandoned=True)
        assert await client.flush(10)
        assert (client.stats.published, client.stats.pending, client.stats.invalid) == (6, 0, 0)
    (trajectory,) = await stored(settings, "RL_TRAJECTORIES", Trajectory)
    assert (trajectory.trajectory_id, trajectory.agent_id, trajectory.role) == (
        trajectory_id,
        "agent-zero-main",
        "support",
    )
    opinions = await stored(settings, "RL_FEEDBACK", Feedback)
    assert [(each.kind, each.value) for each in opinions] == [
        ("thumbs", True),
        ("rating", 4),
        ("comment", "fine"),
        ("correction", "say goodbye"),
        ("abandoned", True),
    ]


async def test_the_synchronous_client_flushes_when_it_is_closed(settings: ClientSettings) -> None:
    with Client(agent_id="agent-zero-main", settings=settings) as client:
        for n in range(50):
            play(client, str(n))
    trajectories = await stored(settings, "RL_TRAJECTORIES", Trajectory)
    assert [each.task_context.task_id for each in trajectories] == [str(n) for n in range(50)]


@pytest.mark.own_broker
async def test_an_outage_is_ridden_out_in_order(settings: ClientSettings, nats: RunningServer) -> None:
    async with AsyncClient(agent_id="a", settings=settings) as client:
        for n in range(10):
            play(client, str(n))
        assert await client.flush(10)
        nats.kill()
        for n in range(10, 60):
            play(client, str(n))
        assert not await client.flush(0.3)
        nats.start()
        play(client, "60")
        assert await client.flush(30)
        assert (client.stats.published, client.stats.overflowed) == (61, 0)
    trajectories = await stored(settings, "RL_TRAJECTORIES", Trajectory)
    assert [each.task_context.task_id for each in trajectories] == [str(n) for n in range(61)]


@pytest.mark.own_broker
async def test_a_frozen_broker_costs_neither_the_agents_time_nor_a_trajectory(
    settings: ClientSettings, nats: RunningServer
) -> None:
    async with AsyncClient(agent_id="a", settings=settings) as client:
        play(client, "0")
        assert await client.flush(10)
        os.kill(nats.pid, signal.SIGSTOP)
        try:
            began = asyncio.get_running_loop().time()
            for n in range(1, 40):
                play(client, str(n))
            assert asyncio.get_running_loop().time() - began < 5  # less than one answer of the broker is waited for
            await eventually(lambda: spooled(client))
        finally:
            os.kill(nats.pid, signal.SIGCONT)
        play(client, "40")
        assert await client.flush(30)
        assert client.stats.overflowed == 0
    trajectories = await stored(settings, "RL_TRAJECTORIES", Trajectory)
    assert sorted({int(each.task_context.task_id) for each in trajectories}) == list(range(41))


@pytest.mark.own_broker
async def test_broker_that_lost_its_data_gets_what_came_before_and_comes_after(
    settings: ClientSettings, nats: RunningServer, tmp_path: Path
) -> None:
    async with connected(settings.shared), AsyncClient(agent_id="a", settings=settings) as client:
        play(client, "before")
        assert await client.flush(10)
        nats.kill()
        shutil.rmtree(tmp_path / "nats" / "jetstream")
        for n in range(20):
            play(client, str(n))
        nats.start()  # the connected bus of this test makes the streams again
        assert await client.flush(40)
        assert client.stats.overflowed == 0
    trajectories = await stored(settings, "RL_TRAJECTORIES", Trajectory)
    played = [each.task_context.task_id for each in trajectories]
    assert [task for task in played if task != "before"] == [str(n) for n in range(20)]
    assert "before" in played


async def spooled(client: AsyncClient) -> bool:
    """Whether what was recorded is on disk, or on its way to a broker that does not answer."""
    return client.stats.pending >= 39


@pytest.mark.own_broker
async def test_trajectories_recorded_without_a_broker_are_published_later(
    settings: ClientSettings, nats: RunningServer
) -> None:
    nats.kill()
    impatient = settings.model_copy(update={"close_s": 0.2})
    with Client(agent_id="a", settings=impatient) as client:
        play(client, "1")
        play(client, "2")
    nats.start()
    async with AsyncClient(agent_id="a", settings=settings) as client:
        play(client, "3")
        assert await client.flush(10)
    trajectories = await stored(settings, "RL_TRAJECTORIES", Trajectory)
    assert [each.task_context.task_id for each in trajectories] == ["1", "2", "3"]


@pytest.mark.own_broker
async def test_no_secret_reaches_the_broker_or_the_spool(settings: ClientSettings, nats: RunningServer) -> None:
    nats.kill()
    async with AsyncClient(agent_id="a", settings=settings) as client:
        with client.trajectory(task_id="1", labels={"contact": "mia@example.com"}) as t:
            t.turn(observation="my password=hunter22 please", action="I will not keep that.")

        async def spooled() -> bool:
            return client.stats.pending == 1 and client.stats.redacted > 0

        await eventually(spooled)
        on_disk = b"".join(path.read_bytes() for path in (settings.shared.data_dir / "client-spool").rglob("*.segment"))
        assert b"hunter22" not in on_disk
        assert b"mia@example.com" not in on_disk
        nats.start()
        assert await client.flush(30)
        assert client.stats.redactions["email"] == 1
    (trajectories,) = await stored(settings, "RL_TRAJECTORIES", Trajectory)
    assert "hunter22" not in str(trajectories)


async def test_an_invalid_message_is_counted_or_raised_by_a_strict_client(settings: ClientSettings) -> None:
    async with AsyncClient(agent_id="a", settings=settings) as client:
        client.feedback("not a uuid", thumbs=True)
        client.feedback("not a uuid")
        play(client, "1")
        assert await client.flush(10)
        assert (client.stats.invalid, client.stats.published) == (2, 1)
    async with AsyncClient(agent_id="a", settings=settings, strict=True) as strict:
        with pytest.raises(InvalidMessage):
            strict.feedback("not a uuid", thumbs=True)
        with pytest.raises(InvalidMessage, match="exactly one"):
            strict.feedback("not a uuid")


def run_agent(settings: ClientSettings, code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run an agent's script in a fresh interpreter."""
    script = "from ratchet import Client\n" + textwrap.dedent(code)
    shared = settings.shared
    return subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={
            **os.environ,
            "RATCHET_NATS_URL": shared.nats_url,
            "RATCHET_DATA_DIR": str(shared.data_dir),
            "RATCHET_CLIENT_CLOSE_S": "0.3",
            **environment,
        },
    )


PLAY = """
def play(client, task_id):
    with client.trajectory(task_id=task_id) as t:
        t.turn(observation="hi", action="hello")
"""


@pytest.mark.own_broker
async def test_an_agent_without_a_broker_and_without_a_disk_works_all_the_same(
    settings: ClientSettings, nats: RunningServer
) -> None:
    nats.kill()
    code = PLAY + textwrap.dedent(
        """
        client = Client(agent_id="a")
        play(client, "1")
        print("the agent's own output")
        """
    )
    blocked = Path(settings.shared.data_dir).parent / "a file, not a folder"
    blocked.touch()
    ended = run_agent(settings, code, RATCHET_DATA_DIR=str(blocked), TMPDIR=str(blocked))
    assert (ended.returncode, ended.stdout) == (0, "the agent's own output\n"), ended.stderr
    assert "Traceback" not in ended.stderr


async def test_client_that_was_not_closed_publishes_before_the_interpreter_exits(settings: ClientSettings) -> None:
    code = PLAY + textwrap.dedent(
        """
        client = Client(agent_id="a")
        play(client, "1")
        """
    )
    ended = run_agent(settings, code, RATCHET_CLIENT_CLOSE_S="10")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    assert len(await stored(settings, "RL_TRAJECTORIES", Trajectory)) == 1


async def test_a_forked_child_records_as_well(settings: ClientSettings) -> None:
    code = PLAY + textwrap.dedent(
        """
        import os
        client = Client(agent_id="a")
        play(client, "parent")
        assert client.flush(10)
        if os.fork() == 0:
            play(client, "child")
            assert client.flush(10)
            client.close()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
        client.close()
        """
    )
    ended = run_agent(settings, code, RATCHET_CLIENT_CLOSE_S="10")
    assert ended.returncode == 0, ended.stderr
    trajectories = await stored(settings, "RL_TRAJECTORIES", Trajectory)
    assert [each.task_context.task_id for each in trajectories] == ["parent", "child"]


async def test_preferences_arrive_once_and_invalid_ones_are_refused_at_once(settings: ClientSettings) -> None:
    about = {"rater": "reviewer-7", "confidence": 0.7, "domain": "general"}
    async with AsyncClient(agent_id="a", role="support", settings=settings) as client:
        first = client.preference("Where?", "Here.", "There.", **about)
        assert client.preference("Where?", "Here.", "There.", **about) == first
        client.preference([{"role": "user", "content": "Who?"}], "Me.", "You.", source="teacher")
        with pytest.raises(Rejected, match="source must be one of"):
            client.preference("Where?", "Here.", "There.", source="tie")
        with pytest.raises(Rejected, match="the same"):
            client.preference("Where?", "Here.", "Here.")
        assert await client.flush(10)
    preferences = await stored(settings, "RL_FEEDBACK", Preference)
    assert [(each.chosen, each.source, each.rater, each.role) for each in preferences] == [
        ("Here.", "human", "reviewer-7", "support"),
        ("Me.", "teacher", None, "support"),
    ]


async def test_an_agent_without_settings_finds_the_local_stack(settings: ClientSettings, tmp_path: Path) -> None:
    code = PLAY + textwrap.dedent(
        """
        import os
        del os.environ["RATCHET_NATS_URL"]
        with Client(agent_id="a") as client:
            play(client, "1")
            assert client.flush(10)
        """
    )
    record = {"pid": os.getpid(), "env": {"RATCHET_NATS_URL": settings.shared.nats_url}, "services": {}}
    (tmp_path / "stack.json").write_text(json.dumps(record))
    ended = run_agent(settings, code, RATCHET_DIR=str(tmp_path), RATCHET_CLIENT_CLOSE_S="10")
    assert ended.returncode == 0, ended.stderr
    assert len(await stored(settings, "RL_TRAJECTORIES", Trajectory)) == 1


@pytest.mark.own_broker
async def test_client_that_never_reached_a_broker_names_the_folder_of_its_spool(
    settings: ClientSettings, nats: RunningServer
) -> None:
    nats.kill()
    code = PLAY + textwrap.dedent(
        """
        with Client(agent_id="a") as client:
            play(client, "1")
        """
    )
    ended = run_agent(settings, code, RATCHET_NATS_URL=settings.shared.nats_url.replace("//", "//ratchet:secret@"))
    assert ended.returncode == 0
    assert "secret" not in ended.stderr
    (line,) = [line for line in ended.stderr.splitlines() if "never reached a broker" in line]
    assert settings.shared.nats_url in line
    assert str(settings.shared.data_dir / "client-spool") in line
    assert "RATCHET_NATS_URL names the broker" in line


async def test_importing_ratchet_is_cheap_and_the_client_needs_no_torch(settings: ClientSettings) -> None:
    code = """
    import sys
    heavy = {"torch", "httpx", "transformers", "clickhouse_connect", "boto3", "pyarrow", "starlette"} & set(sys.modules)
    assert not heavy, heavy
    """
    ended = run_agent(settings, code)
    assert ended.returncode == 0, ended.stderr


async def _beyond_the_spool(client: AsyncClient) -> int:
    """How many of a hundred records a spool holds that has no room for all; the others wait in memory."""
    for n in range(100):
        play(client, str(n))

    async def settled() -> bool:
        return client._outbox.pending == 100 and client._spool.size > 15_000

    await eventually(settled)
    return client._spool.pending


@pytest.mark.own_broker
async def test_what_a_full_spool_does_not_take_waits_in_memory(settings: ClientSettings, nats: RunningServer) -> None:
    nats.kill()
    small = settings.model_copy(update={"spool_bytes": 20_000, "close_s": 0.2})
    async with AsyncClient(agent_id="a", settings=small) as client:
        assert 0 < await _beyond_the_spool(client) < 100
        nats.start()
        assert await client.flush(30)
        assert client.stats.overflowed == 0
    trajectories = await stored(settings, "RL_TRAJECTORIES", Trajectory)
    assert [each.task_context.task_id for each in trajectories] == [str(n) for n in range(100)]


@pytest.mark.own_broker
async def test_what_the_spool_has_no_room_for_at_the_end_is_counted(
    settings: ClientSettings, nats: RunningServer
) -> None:
    nats.kill()
    small = settings.model_copy(update={"spool_bytes": 20_000, "close_s": 0.2})
    async with AsyncClient(agent_id="a", settings=small) as client:
        kept = await _beyond_the_spool(client)
    assert 0 < kept < 100
    assert client.stats.overflowed == 100 - kept
