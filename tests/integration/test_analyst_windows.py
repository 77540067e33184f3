"""What counts of stored trajectories: what came soon after their end, and feedback of people."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from ratchet.analyst.clickhouse_episodes import Rated, StoredEpisodes
from ratchet.bus.message import named_id
from ratchet.core.contract import Feedback, Message
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.warehouse import Warehouse
from tests.support.console_data import store
from tests.support.running import prepared_warehouse
from tests.support.training import reward, trajectory

ROLE = "support"
END = datetime(2026, 11, 2, tzinfo=UTC)
SOON, LATE = timedelta(minutes=5), timedelta(minutes=40)


@pytest.fixture
async def warehouse(shared_settings: SharedSettings) -> AsyncIterator[Warehouse]:
    async with prepared_warehouse(shared_settings) as made:
        yield made


def opinion(name: str, at: datetime, kind: str = "thumbs") -> Feedback:
    value = {"thumbs": True, "judgement": 0.5, "flag": "answer"}[kind]
    about = trajectory(name).trajectory_id
    return Feedback(
        feedback_id=named_id("f", name, kind), trajectory_id=about, kind=kind, at=at, role=ROLE, value=value
    )


async def read(warehouse: Warehouse, *facts: Message) -> dict[str, Rated]:
    """Trajectories of the hour about END, by name of the agent."""
    await store(warehouse, *facts)
    hour, pages = timedelta(hours=1), StoredEpisodes(warehouse)
    window = [rated async for page in pages.window(ROLE, END - hour, END + hour) for rated in page]
    return {rated.trajectory.agent_id: rated for rated in window}


async def test_what_came_late_counts_in_no_window(warehouse: Warehouse) -> None:
    runs = {name: trajectory(name, at=END, agent_id=name) for name in ("soon", "late")}
    facts: list[Message] = [*runs.values()]
    facts += [reward(run, 0.5, at=END) for run in runs.values()]
    facts += [
        reward(runs["soon"], 0.6, at=END + SOON, revision=1),
        reward(runs["late"], 0.9, at=END + LATE, revision=1),
    ]
    seen = await read(warehouse, *facts, opinion("soon", END + SOON), opinion("late", END + LATE))
    assert {name: (rated.reward, rated.has_feedback) for name, rated in seen.items()} == {
        "soon": (0.6, True),
        "late": (0.5, False),
    }


async def test_history_that_was_imported_has_its_first_rewards(warehouse: Warehouse) -> None:
    run = trajectory("old", at=END, agent_id="old")
    imported = END + timedelta(days=30)
    seen = await read(warehouse, run, reward(run, 0.5, at=imported), opinion("old", imported + SOON))
    assert (seen["old"].reward, seen["old"].has_feedback) == (0.5, True)


async def test_only_feedback_of_people_counts_as_theirs(warehouse: Warehouse) -> None:
    runs = [trajectory(name, at=END, agent_id=name) for name in ("judged", "flagged", "rated")]
    opinions = [
        opinion(run.agent_id, END, kind) for run, kind in zip(runs, ("judgement", "flag", "thumbs"), strict=True)
    ]
    seen = await read(warehouse, *runs, *opinions)
    assert [name for name, rated in seen.items() if rated.has_feedback] == ["rated"]
