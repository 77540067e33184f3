"""Another reward function over history: proposed beside what counts, compared, accepted, and from then on in force."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace

from ratchet.bus.connection import Bus
from ratchet.bus.registry import Bounds
from ratchet.bus.testing import eventually
from ratchet.core.contract import Outcome, Reward, Trajectory, decode
from ratchet.core.contract.reward import RewardFunction
from ratchet.core.contract.reward_commands import Accepted, Judges, Recomputed, RewardCommand
from ratchet.core.errors import NotFound, Rejected
from ratchet.core.judging.settings import JudgeSettings
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.warehouse import Warehouse
from ratchet.reward_computer.app import build
from ratchet.reward_computer.clickhouse_proposals import PAGE
from ratchet.reward_computer.command import answered, recomputation
from ratchet.reward_computer.settings import Settings
from ratchet.trajectory_collector.app import build as build_collector
from ratchet.trajectory_collector.settings import Settings as CollectorSettings, Tuning
from tests.support.command_lines import Shell, shell
from tests.support.judges import JudgeServer, listening_judge
from tests.support.messages import trajectory
from tests.support.rewards import feedback
from tests.support.running import connected, prepared_warehouse, running_app
from tests.support.servers import variables

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
ONE, TWO = (RewardFunction(name="standard", version=version) for version in "12")
FIRST = {"support": {"task_completion": 1.0}}
SECOND = {"support": {"task_completion": 0.5, "user_feedback": 0.5}}
FAILURE = Outcome(status="failure")


def settings_of(
    shared: SharedSettings, weights: Mapping[str, Any] = FIRST, version: str = "1", **more: Any
) -> Settings:
    return Settings(shared=shared, linger_s=0.02, weights=dict(weights), function_version=version, **more)


def recompute(function: RewardFunction = TWO, **changes: Any) -> RewardCommand:
    return RewardCommand(command="recompute", function=function, since=LONG_AGO, **changes)


def accept(function: RewardFunction = TWO) -> RewardCommand:
    return RewardCommand(command="accept", function=function)


class History:
    """A running collector and reward computer, and what they store."""

    def __init__(self, bus: Bus, warehouse: Warehouse) -> None:
        self.bus = bus
        self._warehouse = warehouse

    async def totals(self) -> dict[str, tuple[str, float]]:
        """By trajectory: function and total of the reward that counts."""
        rows = await self._warehouse.rows("SELECT trajectory_id, function, total FROM latest_rewards")
        return {row["trajectory_id"]: (row["function"], row["total"]) for row in rows}

    async def counting(self, function: str, number: int) -> dict[str, float]:
        """The totals, once so many trajectories have a reward of a function, and no other one."""

        async def all_there() -> dict[str, float] | None:
            totals = await self.totals()
            done = len(totals) == number and {name for name, _ in totals.values()} == {function}
            return {name: total for name, (_, total) in totals.items()} if done else None

        return await eventually(all_there)

    async def revised(self, name: str, revision: int) -> Reward:
        """The reward of a trajectory, once it has this revision."""

        async def there() -> Reward | None:
            rows = await self._warehouse.rows(
                "SELECT body FROM latest_rewards WHERE trajectory_id = {id:String}",
                {"id": trajectory(name).trajectory_id},
            )
            reward = decode(rows[0]["body"].encode(), Reward) if rows else None
            return reward if reward is not None and reward.revision == revision else None

        return await eventually(there)

    async def rewards(self, version: str) -> int:
        """How many were computed under a version of the function."""
        (row,) = await self._warehouse.rows(
            "SELECT count() AS number FROM rewards FINAL WHERE function_version = {version:String}",
            {"version": version},
        )
        return row["number"]

    async def proposed(self) -> int:
        (row,) = await self._warehouse.rows("SELECT count() AS number FROM proposed_rewards FINAL")
        return row["number"]


@asynccontextmanager
async def history(shared: SharedSettings, settings: Settings | None = None) -> AsyncIterator[History]:
    collector = build_collector(CollectorSettings(shared=shared, linger_s=0.02), tuning=Tuning(ack_wait_s=2.0))
    service = build(settings or settings_of(shared), Bounds(ack_wait_s=2.0))
    async with (
        connected(shared) as bus,
        prepared_warehouse(shared) as warehouse,
        running_app(collector),
        running_app(service),
    ):
        yield History(bus, warehouse)


def named(names: Sequence[str]) -> list[str]:
    return [trajectory(name).trajectory_id for name in names]


async def test_recomputed_rewards_count_once_they_are_accepted(shared_settings: SharedSettings) -> None:
    second = settings_of(shared_settings, SECOND, "2")
    async with history(shared_settings) as world:
        await world.bus.publish_all([trajectory("good"), trajectory("bad", outcome=FAILURE), trajectory("late")])
        before = await world.counting("standard 1", 3)
        await world.bus.publish(feedback(1, "good", value=False))
        await eventually(lambda: opinions(shared_settings, 1))
        report = await answered(recompute(), second)
        assert isinstance(report, Recomputed)
        assert (report.trajectories, await world.proposed()) == (3, 3)
        assert await world.totals() == {name: ("standard 1", total) for name, total in before.items()}
        (compared,) = report.comparisons
        assert (compared.before, compared.after) == (pytest.approx(2 / 3), pytest.approx(0.5))
        assert [(change.trajectory_id, change.after) for change in report.changes] == [(named(["good"])[0], 0.5)]
        assert report.changes[0].components == {"user_feedback": (None, 0.0)}

        await world.bus.publish(feedback(1, "late", value=False))
        await eventually(lambda: opinions(shared_settings, 2))
        done = await answered(accept(), second)
        assert isinstance(done, Accepted)
        assert (done.published, done.revised, done.present, done.left) == (3, 1, 0, 0)
        totals = await world.counting("standard 2", 3)
        assert totals == dict(zip(named(["good", "bad", "late"]), [0.5, 0.0, 0.5], strict=True))

        await world.bus.publish_all([trajectory("new"), feedback(1, "bad", value=True)])  # the service runs on
        assert (await world.revised("bad", 1)).total_reward == 0.5
        assert (await world.revised("new", 0)).reward_function == TWO
        again = await answered(accept(), second)
        assert isinstance(again, Accepted)
        assert (again.published, again.present) == (0, 3)


async def opinions(shared: SharedSettings, number: int) -> bool:
    async with prepared_warehouse(shared) as warehouse:
        return len(await warehouse.rows("SELECT DISTINCT event_id FROM feedback")) >= number


async def test_function_that_is_not_described_or_not_recomputed_is_refused(shared_settings: SharedSettings) -> None:
    second = settings_of(shared_settings, SECOND, "2")
    async with history(shared_settings) as world:
        await world.bus.publish(trajectory())
        await world.counting("standard 1", 1)
        with pytest.raises(NotFound, match="the settings describe standard@2, not standard@7"):
            await answered(recompute(RewardFunction(name="standard", version="7")), second)
        with pytest.raises(NotFound, match="nothing was recomputed as standard@2"):
            await answered(accept(), second)
        with pytest.raises(NotFound, match="no such role: no_such"):
            await answered(recompute(role="no_such"), second)
        await answered(recompute(), second)
        await answered(accept(), second)
        with pytest.raises(Rejected, match="otherwise than it was accepted"):
            await answered(recompute(), settings_of(shared_settings, FIRST, "2"))
        with pytest.raises(Rejected, match="standard@1 was in force before standard@2"):
            await answered(recompute(ONE), settings_of(shared_settings))


def answering(name: str, *, good: bool) -> Trajectory:
    """A successful trajectory whose answer is good, or is none."""
    plain = trajectory(name)
    action = replace(
        plain.turns[0].action, raw_response=f"Parcel {name} arrives today." if good else f"{name}? No idea."
    )
    return replace(plain, turns=[replace(plain.turns[0], action=action)])


def by_outcome(body: dict[str, Any]) -> str:
    """Agrees with people, who liked what arrives today."""
    return "Good.\nSCORE: 0.9" if "arrives" in body["messages"][1]["content"] else "Bad.\nSCORE: 0.1"


async def test_judge_of_history_counts_once_people_agree_with_it(shared_settings: SharedSettings) -> None:
    script = JudgeServer(by_outcome)
    judged = {"support": {"task_completion": 0.5, "judge": 0.5}}
    async with listening_judge(script) as url, history(shared_settings) as world:
        judge = JudgeSettings(model="big", url=url, calls_per_day=56)
        second = settings_of(shared_settings, judged, "2", judges={"default": judge})
        names = [str(number) for number in range(60)]
        await world.bus.publish_all([answering(name, good=int(name) % 3 > 0) for name in names])
        await world.counting("standard 1", 60)
        await world.bus.publish_all([feedback(1, name, value=int(name) % 3 > 0) for name in names[4:]])
        await eventually(lambda: opinions(shared_settings, 56))

        report = await answered(recompute(), second)
        assert isinstance(report, Recomputed)
        assert (report.judged.judged, report.judged.over_budget, len(script.asked)) == (56, 4, 56)
        (made,) = report.judges
        assert (made.labels, made.agreed, made.kappa, made.calibrated, made.counts) == (56, 56, 1.0, True, True)
        assert (made.calls_today, made.calls_per_day) == (56, 56)
        await answered(recompute(), second)
        assert len(script.asked) == 56

        await eventually(lambda: opinions(shared_settings, 56 + 56))
        listed = await answered(RewardCommand(command="judges", since=LONG_AGO), second)
        assert isinstance(listed, Judges)
        (standing,) = listed.judges
        assert (standing.judged, standing.labels, standing.calibrated, standing.counts) == (56, 56, True, False)
        await answered(accept(), second)
        await world.counting("standard 2", 60)
        reward = await world.revised("20", 2)
        assert reward.reward_components["judge"].weight == 0.5
        assert reward.total_reward == pytest.approx(0.5 * 1.0 + 0.5 * 0.9)
        assert (reward.metadata.digests or {})["judge"] == judge.profile.digest
        assert reward.recomputed


class Killed(BaseException):
    """In the place of a process that is no more."""


@pytest.mark.slow
async def test_recomputation_that_is_killed_then_runs_twice_counts_once(
    shared_settings: SharedSettings,
) -> None:
    number, second = 2 * PAGE + 100, settings_of(shared_settings, SECOND, "2")

    def killed_after_a_page(done: int, _total: int, what: str) -> None:
        if (done, what) == (PAGE, "computing rewards"):
            raise Killed

    async with history(shared_settings) as world:
        await world.bus.publish_all([trajectory(f"{place}") for place in range(number)])
        before = await world.counting("standard 1", number)
        async with recomputation(second) as work:
            with pytest.raises(Killed):
                await dataclasses.replace(work, on_progress=killed_after_a_page).recompute(TWO, LONG_AGO, None, False)
        assert await world.proposed() == PAGE
        assert await world.counting("standard 1", number) == before
        one, other = await asyncio.gather(*(answered(recompute(), second) for _ in range(2)))
        assert isinstance(one, Recomputed)
        assert (one, one.trajectories, await world.proposed()) == (other, number, number)
        accepted = await asyncio.gather(*(answered(accept(), second) for _ in range(2)))
        assert {(type(each), each.left) for each in accepted if isinstance(each, Accepted)} == {(Accepted, 0)}
        after = await world.counting("standard 2", number)
        assert after.keys() == before.keys()
        assert await world.rewards("2") == number


@pytest.fixture
def ratchet(shared_settings: SharedSettings, capsys: pytest.CaptureFixture[str]) -> Iterator[Shell]:
    with shell(variables(shared_settings), capsys) as typed:
        yield typed


@pytest.mark.slow
async def test_commands_recompute_and_accept(shared_settings: SharedSettings, ratchet: Shell) -> None:
    next_one = {
        "RATCHET_REWARD_FUNCTION_VERSION": "2",
        "RATCHET_REWARD_WEIGHTS": '{"support": {"efficiency": 1}}',
    }

    async def rewards(*words: str, code: int = 0) -> str:
        ended = await ratchet.ended("rewards", *words, **next_one)
        assert ended.code == code, ended
        return ended.err if code else ended.out

    async with history(shared_settings) as world:
        await world.bus.publish_all([trajectory("good"), trajectory("bad", outcome=FAILURE)])
        await world.counting("standard 1", 2)
        assert "is not NAME@VERSION" in await rewards("recompute", "--function", "standard", code=2)
        shown = await rewards("recompute", "--function", "standard@2")
        assert "2 trajectories under standard@2" in shown
        assert "task_completion 1.00 → -, efficiency - → 0.50" in shown
        assert "rewards accept standard@2" in shown
        assert "standard@2 is in force: 2 rewards published" in await rewards("accept", "standard@2")
        await world.counting("standard 2", 2)
        assert "name no judge" in await rewards("judges")
