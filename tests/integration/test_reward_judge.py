"""Judges beside the reward plane, on real servers: revisions, words, budgets, silence; and ranking by one of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket
from ratchet.bus.registry import Bounds
from ratchet.bus.testing import eventually
from ratchet.core.contract import Feedback, Reward, decode
from ratchet.core.contract.state import JUDGE_SPEND
from ratchet.core.contract.trajectory import TaskContext
from ratchet.core.judging.settings import JudgeSettings
from ratchet.core.rules.call_budget import Amounts
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.warehouse import Warehouse
from ratchet.reward_computer.app import build
from ratchet.reward_computer.settings import Settings
from ratchet.trajectory_collector.app import build as build_collector
from ratchet.trajectory_collector.settings import Settings as CollectorSettings, Tuning
from tests.support.command_lines import Shell, shell
from tests.support.coordinator import ROLE, stored
from tests.support.judges import JudgeServer, listening_judge
from tests.support.messages import trajectory
from tests.support.preferences import tries
from tests.support.running import connected, prepared_warehouse, running_app
from tests.support.servers import variables

BRIEF = Bounds(ack_wait_s=2.0)
WEIGHTS = {"support": {"task_completion": 0.5, "judge": 0.5}}


def settings_of(shared: SharedSettings, url: str, **judge: Any) -> Settings:
    judges = {"support": JudgeSettings(model="big", url=url, **judge)}
    return Settings(shared=shared, linger_s=0.02, weights=WEIGHTS, judges=judges)


@asynccontextmanager
async def loop(shared: SharedSettings) -> AsyncIterator[tuple[Bus, Warehouse]]:
    """Broker and warehouse made ready, and a collector that stores."""
    collector = build_collector(CollectorSettings(shared=shared, linger_s=0.02), tuning=Tuning(ack_wait_s=2.0))
    async with connected(shared) as bus, prepared_warehouse(shared) as warehouse, running_app(collector):
        yield bus, warehouse


@asynccontextmanager
async def judged(shared: SharedSettings, script: JudgeServer) -> AsyncIterator[tuple[Bus, Warehouse]]:
    """The same with a reward computer whose judge follows the script."""
    async with (
        listening_judge(script) as url,
        loop(shared) as (bus, warehouse),
        running_app(build(settings_of(shared, url), BRIEF)),
    ):
        yield bus, warehouse


@asynccontextmanager
async def tried(shared: SharedSettings, script: JudgeServer) -> AsyncIterator[str]:
    """Stored tries of the same tasks; yields the url of a judge that follows the script."""
    async with (
        prepared_warehouse(shared),
        connected(shared) as bus,
        listening_judge(script) as url,
        stored(shared, bus, tries()),
    ):
        yield url


def having(warehouse: Warehouse, table: str, number: int) -> Callable[[], Any]:
    async def probe() -> list[str]:
        rows = await warehouse.rows(f"SELECT body FROM {table} FINAL ORDER BY trajectory_id, ingested_at")
        return [row["body"] for row in rows] if len(rows) >= number else []

    return probe


async def test_reward_goes_out_at_once_and_the_judgement_makes_a_revision(shared_settings: SharedSettings) -> None:
    script = JudgeServer(["It names no date.\nSCORE: 0.25"])
    async with judged(shared_settings, script) as (bus, warehouse):
        await bus.publish(trajectory())
        bodies = await eventually(having(warehouse, "rewards", 2))
        first, revised = (decode(body.encode(), Reward) for body in bodies)
        assert (first.revision, first.reward_components["judge"].applicable) == (0, False)
        part = revised.reward_components["judge"]
        assert (revised.revision, part.score, part.weight, part.reasoning) == (1, 0.25, 0.0, "It names no date.")
        (body,) = await eventually(having(warehouse, "feedback", 1))
        judgement = decode(body.encode(), Feedback)
        assert (judgement.kind, judgement.reasoning) == ("judgement", "It names no date.")


async def test_judge_that_hangs_holds_up_no_reward(shared_settings: SharedSettings) -> None:
    script = JudgeServer([], hangs=True)
    async with judged(shared_settings, script) as (bus, warehouse):
        for number in range(4):
            await bus.publish(trajectory(str(number)))
            await eventually(having(warehouse, "rewards", number + 1))
        await eventually(script.was_asked)
        bodies = await having(warehouse, "rewards", 4)()
        assert [decode(body.encode(), Reward).revision for body in bodies] == [0, 0, 0, 0]
        assert await warehouse.rows("SELECT body FROM feedback") == []


async def test_several_processes_share_the_budget_of_a_day(shared_settings: SharedSettings) -> None:
    script = JudgeServer(lambda _: "SCORE: 0.5")
    async with listening_judge(script) as url, loop(shared_settings) as (bus, warehouse), AsyncExitStack() as stack:
        for _ in range(2):
            await stack.enter_async_context(
                running_app(build(settings_of(shared_settings, url, calls_per_day=3), BRIEF))
            )
        # Texts of their own: of the same text a judge is asked once, and the answer kept.
        tasks = [TaskContext(task_id=f"task-{number}", instructions=f"Order {number}.") for number in range(8)]
        await bus.publish_all([trajectory(task.task_id, task_context=task) for task in tasks])
        await eventually(having(warehouse, "feedback", 3))
        await eventually(having(warehouse, "rewards", 11))

        async def all_handled() -> bool:
            consumer = await bus.nc.jetstream().consumer_info("RL_REWARDS", "reward-judge")
            return consumer.ack_floor.stream_seq == (await bus.extent("RL_REWARDS")).last

        await eventually(all_handled)
        day = f"support.{bus.now():%Y-%m-%d}"
        entry = await Bucket(bus, JUDGE_SPEND, Amounts).get(day)
        assert entry is not None
        assert (entry.value.calls, len(script.asked)) == (3, 3)


@pytest.fixture
def ratchet(shared_settings: SharedSettings, capsys: pytest.CaptureFixture[str]) -> Iterator[Shell]:
    with shell(variables(shared_settings), capsys) as typed:
        yield typed


def by_knowledge(body: dict[str, Any]) -> str:
    """Prefers the answer that knows where it is."""
    question = body["messages"][1]["content"]
    first, second = question.split(" A ---")[1], question.split(" B ---")[1]
    knows = ("do not know" not in first.split(" end ---")[0], "do not know" not in second)
    return {(True, False): "A knows.\nA", (False, True): "B knows.\nB"}.get(knows, "TIE")


async def test_tries_are_ranked_by_a_judge_that_is_paid_once(shared_settings: SharedSettings, ratchet: Shell) -> None:
    script = JudgeServer(by_knowledge)
    async with tried(shared_settings, script) as url:
        judge = ("--model", "big", "--url", url, "--role", ROLE)
        dry = await ratchet.json("preferences", "rank", *judge, "--dry-run")
        asked = len(script.asked)
        assert (dry["report"]["pairs"], dry["report"]["by_rater"]) == (7, {"big": 7})
        report = await ratchet("preferences", "rank", *judge)
        assert "7 pairs: 7 published" in report
        assert len(script.asked) == asked
        assert "name the judge" in await ratchet("preferences", "rank", code=2)
        assert "no judge is set" in await ratchet("preferences", "rank", "--role", ROLE, code=1)


async def test_ranking_ends_with_its_budget(shared_settings: SharedSettings, ratchet: Shell) -> None:
    script = JudgeServer(by_knowledge)
    async with tried(shared_settings, script) as url:
        judge = ("--model", "big", "--url", url, "--role", ROLE, "--calls", "4")
        report = await ratchet.json("preferences", "rank", *judge, "--dry-run")
        assert report["report"]["skipped"]["budget_spent"] > 0
        assert len(script.asked) == 4
