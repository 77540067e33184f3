"""The console's trajectories on the real ClickHouse: the list with every filter, one of them, and hostile ones."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal

import httpx
import msgspec
import pytest

from ratchet.console.messages import LETTERS
from ratchet.core.contract import Outcome, PolicyClaim, Reward, Trajectory, Turn, named_id
from ratchet.core.contract.reward import RewardComponent, RewardFunction, RewardMetadata
from ratchet.core.contract.trajectory import (
    Action,
    Observation,
    TaskContext,
    TrajectoryMetadata,
    TrajectoryTurn,
    TurnResult,
)
from ratchet.core.contract.turn import Applied, Provider, Trainable
from ratchet.core.errors import WarehouseTooSlow
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores import trajectory_list
from ratchet.core.stores.trajectory_list import TrajectoryList
from ratchet.core.stores.trajectory_search import TrajectoryFilter
from ratchet.core.stores.warehouse import Row, Texts, Warehouse
from tests.support.console_data import console, store
from tests.support.messages import AT, trajectory, turn
from tests.support.rewards import feedback
from tests.support.running import prepared_warehouse

HOSTILE = "<script>alert(1)</script>\x00\x1b[31m\u202e\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16")


@pytest.fixture
async def warehouse(shared_settings: SharedSettings) -> AsyncIterator[Warehouse]:
    async with prepared_warehouse(shared_settings) as made:
        yield made


def ended(name: str, after_s: float = 0, **changes: Any) -> Trajectory:
    """A trajectory of the version 1 that ended so long after `AT`."""
    claim = PolicyClaim(role=changes.get("role", "support"), version=1, digest="a" * 64, arm="stable", weight=0.0)
    at = AT + timedelta(seconds=after_s)
    return trajectory(name, **{"policy": claim, "start_timestamp": at, "end_timestamp": at, **changes})


def rewarded(name: str, total: float, revision: int = 0, confidence: float = 1.0) -> Reward:
    at = AT + timedelta(hours=1 + revision)
    return Reward(
        reward_id=named_id("reward", name, revision),
        trajectory_id=named_id("trajectory", name),
        session_id="s",
        timestamp=at,
        reward_components={"task_completion": RewardComponent(score=total, weight=1.0, source="outcome")},
        total_reward=total,
        reward_type="outcome",
        metadata=RewardMetadata(evaluator="standard", evaluation_method="weighted", confidence=confidence),
        role="support",
        revision=revision,
        reward_function=RewardFunction(name="standard", version="1"),
    )


async def listed(http: httpx.AsyncClient, **asked: Any) -> list[str]:
    """The ids of a page."""
    answer = await http.get("/v1/trajectories", params=asked)
    assert answer.status_code == 200, answer.text
    return [one["trajectory_id"] for one in answer.json()["trajectories"]]


def ids(*names: str) -> list[str]:
    return [named_id("trajectory", name) for name in names]


async def test_each_filter_shows_what_passes_it_newest_first(warehouse: Warehouse) -> None:
    canary = PolicyClaim(role="support", version=2, digest="b" * 64, arm="canary", weight=0.1)
    imported = TrajectoryMetadata(model="m", source="import:tau")
    await store(
        warehouse,
        ended("good", 1),
        ended("bad", 2, outcome=Outcome(status="failure"), agent_id="other", subordinate_profile="clerk"),
        ended("canary", 3, policy=canary, outcome=None),
        ended(
            "imported",
            4,
            metadata=imported,
            role="sales",
            task_context=TaskContext(task_id="t", instructions="i", domain="retail"),
        ),
        rewarded("good", 0.9),
        rewarded("bad", 0.9),
        rewarded("bad", 0.2, revision=1),
        rewarded("canary", 0.5, confidence=0.0),
        turn("good", trainable=Trainable(ok=False, reason="greedy"), latency_ms=10.0, provider=Provider(model="gpt")),
        turn("good", 1, trainable=Trainable(ok=True), latency_ms=5.0, error="away", response=None),
        turn("open", timestamp=AT + timedelta(seconds=2.5), provider=Provider(model="gpt")),
        feedback(1, "good"),
        feedback(2, "good", value=False),
        feedback(3, "good", value=False),
    )
    async with console(warehouse, now=AT + timedelta(minutes=5)) as http:
        assert await listed(http) == ids("imported", "canary", "open", "bad", "good")
        assert await listed(http, state="open") == ids("open")
        assert await listed(http, role="support", state="ended") == ids("canary", "bad", "good")
        assert await listed(http, policy=2) == ids("canary")
        assert await listed(http, arm="stable", state="ended") == ids("imported", "bad", "good")
        assert await listed(http, outcome="failure") == ids("bad")
        assert await listed(http, outcome="none", state="ended") == ids("canary")
        assert await listed(http, source="import:tau") == ids("imported")
        assert await listed(http, agent="other") == ids("bad")
        assert await listed(http, profile="clerk") == ids("bad")
        assert await listed(http, domain="retail") == ids("imported")
        assert await listed(http, model="m") == ids("imported"), "as reported, where nothing was called"
        assert await listed(http, model="gpt") == ids("open", "good"), "what answered its calls"
        assert await listed(http, reward_min=0.5) == ids("good"), "a reward that was revised does not count"
        assert await listed(http, reward_max=0.5) == ids("bad"), "a reward without evidence is none"
        assert await listed(http, reason="greedy") == ids("good")
        since = AT + timedelta(seconds=2)
        assert await listed(http, since=since.isoformat(), state="ended") == ids("imported", "canary", "bad")
        assert await listed(http, until=since.isoformat()) == ids("bad", "good")
        (good,) = (await http.get("/v1/trajectories", params={"reward_min": 0.5})).json()["trajectories"]
        assert (good["calls"], good["failed_calls"], good["latency_ms"], good["thumbs"]) == (2, 1, 15.0, -1)
        assert (good["policy"], good["reward"], good["revision"], good["state"]) == ("support@1", 0.9, 0, "ended")
        (uncalled,) = (await http.get("/v1/trajectories", params={"outcome": "failure"})).json()["trajectories"]
        assert (good["question"], uncalled["question"]) == ("question 0", "where is my order?")
        (opened,) = (await http.get("/v1/trajectories", params={"state": "open"})).json()["trajectories"]
        assert (opened["ended_at"], opened["reward"], opened["outcome"], opened["policy"]) == (
            None,
            None,
            None,
            "support@1",
        )


async def test_pages_follow_one_another_without_gap_or_repetition(warehouse: Warehouse) -> None:
    days = [0, 0, 1, 3, 20, 20, 90, 400]
    some = [ended(f"t{n}", -86_400 * day, start_timestamp=AT - timedelta(days=500)) for n, day in enumerate(days)]
    await store(warehouse, *some, turn("open", timestamp=AT - timedelta(days=2)))
    seen: list[str] = []
    async with console(warehouse) as http:
        after: str | None = ""
        while after is not None:
            params = {"limit": 2, **({"after": after} if after else {})}
            page = (await http.get("/v1/trajectories", params=params)).json()
            seen += [one["trajectory_id"] for one in page["trajectories"]]
            after = page["next"]
    assert len(seen) == 9
    assert set(seen) == set(ids(*(f"t{n}" for n in range(8)), "open"))
    assert seen.index(ids("open")[0]) == 3, "after those of the last day"


async def test_trajectory_reported_again_stands_where_its_newest_report_puts_it(
    warehouse: Warehouse,
) -> None:
    await warehouse.command("SYSTEM STOP MERGES trajectories")
    await store(warehouse, ended("one", 1, outcome=Outcome(status="failure")))
    await store(warehouse, ended("one", 9), ended("two", 5), first=2)
    async with console(warehouse) as http:
        assert await listed(http) == ids("one", "two")
        assert await listed(http, outcome="failure") == []
        assert await listed(http, until=(AT + timedelta(seconds=3)).isoformat()) == []


async def test_names_that_go_on_for_ever_are_cut_in_lists(warehouse: Warehouse) -> None:
    long = "é" * 100_000
    task = TaskContext(task_id=long, instructions="i", domain=long)
    one = ended("one", agent_id=long, task_context=task, metadata=TrajectoryMetadata(model=long, source="client"))
    await store(warehouse, one, turn("open", trajectory_name=long, agent_id=long, provider=Provider(model=long)))
    async with console(warehouse) as http:
        for state in ("ended", "open"):
            answer = await http.get("/v1/trajectories", params={"state": state})
            assert len(answer.text) < 3_000
            assert answer.json()["trajectories"][0]["agent_id"] == long[:200]
        assert await listed(http, state="ended", agent=long[:200], domain=long[:200]) == ids("one")
        assert await listed(http, state="open", agent=long[:200]) == ids("open")


async def test_words_are_looked_for_in_the_conversation_alone(warehouse: Warehouse) -> None:
    quoted = TrajectoryTurn(
        turn_id=1,
        timestamp=AT,
        observation=Observation(type="user_message", content='He asked: "Wo ist Müllers Pákét/7?"'),
        action=Action(type="tool_call", tool_name="lookup", tool_args={"key": "zebra"}),
        result=TurnResult(success=True, output={"status": "lost"}),
    )
    await store(warehouse, ended("one", turns=[quoted]), ended("two", 1), turn("open", timestamp=AT))
    async with console(warehouse) as http:
        for text in ("müllers", 'asked: "wo', "pákét/7", "ZEBRA lost", "lookup"):
            assert await listed(http, text=text) == ids("one"), text
        assert await listed(http, text="client") == [], "a member's name is no conversation"
        assert await listed(http, text="question 0") == ids("open")
        assert await listed(http, text="answer lost") == []


async def test_long_search_reports_how_far_it_came_and_the_next_page_goes_on(warehouse: Warehouse) -> None:
    await store(warehouse, *(ended(f"t{n}", -n * 86_400) for n in range(6)), ended("last", -90 * 86_400, agent_id="x"))
    seconds = iter(range(0, 1000, 3))
    listing = TrajectoryList(warehouse, lambda: AT, lambda: float(next(seconds)))
    asked = TrajectoryFilter(text="arrives today", agent="x", state="ended")
    page = await listing.page(asked, 5)
    assert page.trajectories == []
    assert page.searched_since is not None
    assert page.after is not None
    pages = 1
    while page.after is not None and not page.trajectories:
        page = await listing.page(asked, 5, page.after)
        pages += 1
    assert [one.trajectory_id for one in page.trajectories] == ids("last")
    assert 2 <= pages <= 12


class Slow(Warehouse):
    """A ClickHouse that reads the texts of so many trajectories in time, and never those of some."""

    def __init__(self, real: Warehouse, most: int = 99, never: Sequence[str] = ()) -> None:
        self._real = real
        self._most = most
        self._never = never
        self.read: list[list[str]] = []
        """The ids whose texts each query read, or was to read."""

    async def rows(self, sql: str, parameters: Mapping[str, Any] | None = None) -> list[Row]:
        """Its rows."""
        if "positionCaseInsensitive" in sql:
            assert "max_execution_time" in sql
            keys = (parameters or {})["keys"]
            pairs = msgspec.json.decode(str(keys)) if isinstance(keys, Texts) else keys
            self.read.append([one for _, one in pairs])
            if len(pairs) > self._most or set(self.read[-1]) & set(self._never):
                raise WarehouseTooSlow("it took too long")
        return await self._real.rows(sql, parameters)


async def test_a_search_whose_texts_take_too_long_answers_with_what_it_has(warehouse: Warehouse) -> None:
    await store(warehouse, ended("new"), ended("old", -86_400))
    async with console(Slow(warehouse, never=ids("old"))) as http:
        page = (await http.get("/v1/trajectories", params={"text": "arrives", "state": "ended"})).json()
    assert [one["trajectory_id"] for one in page["trajectories"]] == ids("new")
    assert page["searched_since"]
    async with console(warehouse) as http:
        assert await listed(http, text="arrives", after=page["next"]) == ids("old")


async def test_where_the_time_is_too_short_for_the_first_texts_fewer_are_read(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trajectory_list, "TEXT_S", 600.0)  # of a page, on a loaded machine
    await store(warehouse, *(ended(f"t{n}", -n) for n in range(20)))
    seen: list[str] = []
    async with console(Slow(warehouse, 3)) as http:
        after: str | None = ""
        while after is not None:
            asked = {"text": "arrives", "state": "ended", **({"after": after} if after else {})}
            page = (await http.get("/v1/trajectories", params=asked)).json()
            assert page["trajectories"], "each page gets further"
            seen += [one["trajectory_id"] for one in page["trajectories"]]
            after = page["next"]
    assert seen == ids(*(f"t{n}" for n in range(20)))


async def test_a_trajectory_too_slow_to_search_is_named_with_the_way_on(warehouse: Warehouse) -> None:
    await store(warehouse, ended("new"), ended("old", -1))
    async with console(Slow(warehouse, never=ids("new"))) as http:
        answer = await http.get("/v1/trajectories", params={"text": "arrives", "state": "ended"})
        assert answer.status_code == 503
        refusal = answer.json()["error"]["message"]
        assert ids("new")[0] in refusal
        until = refusal.rsplit("until ", 1)[1].split("Z")[0] + "Z"
        assert await listed(http, text="arrives", state="ended", until=until) == ids("old")


@pytest.mark.parametrize("state", ["ended", "open"])
async def test_texts_of_many_megabytes_are_searched_a_few_at_a_time(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch, state: Literal["ended", "open"]
) -> None:
    monkeypatch.setattr(trajectory_list, "TEXT_BYTES", 100_000)
    letters = {"t0": 40_000, "t1": 40_000, "t2": 40_000, "t3": 300_000, "t4": 40_000}
    some: list[Trajectory | Turn] = []
    for n, (name, size) in enumerate(letters.items()):
        at, text = AT - timedelta(seconds=n), "a" * size
        observed = Observation(type="user_message", content=text)
        entry = msgspec.structs.replace(trajectory(name).turns[0], observation=observed)
        called = turn(name, messages=[{"role": "user", "content": f"{text} arrives"}], timestamp=at)
        some.append(ended(name, -n, turns=[entry]) if state == "ended" else called)
    await store(warehouse, *some)
    slow = Slow(warehouse)
    page = await TrajectoryList(slow, lambda: AT, lambda: 0.0).page(TrajectoryFilter(text="arrives", state=state), 50)
    assert [one.trajectory_id for one in page.trajectories] == ids(*letters)
    assert [set(read) for read in slow.read] == [set(ids("t0", "t1")), set(ids("t2")), set(ids("t3")), set(ids("t4"))]


@pytest.mark.parametrize(
    ("asked", "line"),
    [
        ({"after": "???"}, "`after` is not what a page gave"),
        ({"after": "WzEsMl0"}, "`after` is not what a page gave"),
        ({"limit": 201}, "limit: Input should be less than or equal to 200"),
        ({"limit": "ten"}, "limit: Input should be a valid integer"),
        ({"reward_min": "nan"}, "reward_min: Value error, must be a finite number"),
        ({"state": "closed"}, "state: Input should be 'open', 'ended' or 'all'"),
        ({"since": "yesterday"}, "since: Input should be a valid datetime"),
        ({"policys": 3}, "policys: Extra inputs are not permitted"),
    ],
)
async def test_a_wrong_parameter_is_refused_in_one_line_that_names_it(asked: dict[str, Any], line: str) -> None:
    unused: Any = None
    async with console(unused) as http:
        answer = await http.get("/v1/trajectories", params=asked)
    assert answer.status_code in (400, 422)
    error = answer.json()["error"]
    assert line in error["message"]
    assert "\n" not in error["message"]
    assert error["param"] == next(iter(asked))


async def test_hostile_values_of_filters_match_nothing(warehouse: Warehouse) -> None:
    await store(warehouse, ended("one"))
    async with console(warehouse) as http:
        for value in (HOSTILE, "' OR 1=1 --", "\\", "{role:String}", "%s", "\n\t"):
            for name in ("role", "agent", "source", "reason"):
                assert await listed(http, **{name: value}) == [], (name, value)
            assert await listed(http, text=value) == (ids("one") if not value.split() else [])


async def test_a_trajectory_shows_its_conversation_rewards_feedback_and_reasons(warehouse: Warehouse) -> None:
    call = turn("one", trainable=Trainable(ok=False, reason="greedy"))
    entry = msgspec.structs.replace(trajectory("one").turns[0], turn_ref=call.turn_id)
    one = ended("one", turns=[entry], task_context=TaskContext(task_id="t", instructions="Be helpful."))
    child = ended("child", 1, parent_trajectory_id=one.trajectory_id)
    await store(warehouse, one, child, call, rewarded("one", 0.4), rewarded("one", 0.6, 1), feedback(1, "one"))
    async with console(warehouse) as http:
        answer = (await http.get(f"/v1/trajectories/{one.trajectory_id}")).json()
        assert [(m["role"], m["text"], m["turn_id"]) for m in answer["messages"]] == [
            ("system", "Be helpful.", None),
            ("user", "where is my order?", None),
            ("assistant", "It arrives today.", call.turn_id),
        ]
        assert [(c["turn_id"], c["learns"], c["policy"]) for c in answer["calls"]] == [
            (call.turn_id, False, "support@1")
        ]
        assert "temperature was 0" in answer["calls"][0]["why_not"]
        assert [(r["reason"], r["calls"]) for r in answer["reasons"]] == [("greedy", 1)]
        assert [r["total_reward"] for r in answer["rewards"]] == [0.4, 0.6]
        assert [f["kind"] for f in answer["feedback"]] == ["thumbs"]
        assert [(p["depth"], p["trajectory_id"]) for p in answer["run"]] == [
            (0, one.trajectory_id),
            (1, child.trajectory_id),
        ]
        assert answer["brief"]["reward"] == 0.6
        assert answer["task"]["task_id"] == "t"
        for missing in (named_id("trajectory", "none"), "x" * 300):
            assert (await http.get(f"/v1/trajectories/{missing}")).status_code == 404


async def test_an_open_trajectory_reads_as_the_collector_would_assemble_it(warehouse: Warehouse) -> None:
    calls = [turn("one"), turn("one", 1)]
    broken = turn("broken", 1, parent_turn_id=named_id("turn", "gone"))
    failed = turn("failed", response=None, error="away")
    await store(warehouse, *calls, broken, failed)
    async with console(warehouse) as http:
        answer = (await http.get(f"/v1/trajectories/{calls[0].trajectory_id}")).json()
        assert [m["text"] for m in answer["messages"]] == [
            "Be helpful.",
            "question 0",
            "answer 0",
            "question 1",
            "answer 1",
        ]
        assert [m["turn_id"] for m in answer["messages"]][2] == calls[0].turn_id
        assert (answer["brief"]["state"], answer["outcome"], answer["unreadable"]) == ("open", None, None)
        answer = (await http.get(f"/v1/trajectories/{broken.trajectory_id}")).json()
        assert answer["unreadable"]
        assert [m["text"] for m in answer["messages"]] == ["question 1", "answer 1"]
        answer = (await http.get(f"/v1/trajectories/{failed.trajectory_id}")).json()
        assert [m["text"] for m in answer["messages"]][:2] == ["Be helpful.", "question 0"]


async def test_an_id_of_several_roles_is_refused_in_words_that_name_them(warehouse: Warehouse) -> None:
    one = ended("one")
    await store(warehouse, one, ended("one", role="sales", outcome=None), turn("one", role="billing"))
    async with console(warehouse) as http:
        answer = await http.get(f"/v1/trajectories/{one.trajectory_id}")
        assert answer.status_code == 400
        assert "has parts in the roles billing, sales, support: name one `role`" in answer.json()["error"]["message"]
        for role, state in (("sales", "ended"), ("billing", "open")):
            answer = await http.get(f"/v1/trajectories/{one.trajectory_id}", params={"role": role})
            assert (answer.json()["brief"]["role"], answer.json()["brief"]["state"]) == (role, state)
        assert (await http.get(f"/v1/trajectories/{one.trajectory_id}", params={"role": "x"})).status_code == 404


async def test_long_text_comes_shortened_and_whole_on_demand_and_never_as_a_page(warehouse: Warehouse) -> None:
    text = f"<script>alert(1)</script>\x00{HOSTILE}" * 1000
    entry = msgspec.structs.replace(trajectory("one").turns[0], action=Action(type="response", raw_response=text))
    one = ended("one", turns=[entry])
    await store(warehouse, one)
    async with console(warehouse) as http:
        shown = (await http.get(f"/v1/trajectories/{one.trajectory_id}")).json()["messages"][-1]
        assert (shown["text"], shown["letters"]) == (text[:LETTERS], len(text))
        whole = await http.get(f"/v1/trajectories/{one.trajectory_id}/messages/{shown['index']}")
        assert whole.text == text
        assert whole.headers["content-type"] == "text/plain; charset=utf-8"
        assert whole.headers["content-disposition"].startswith("attachment")
        assert whole.headers["x-content-type-options"] == "nosniff"
        beyond = await http.get(f"/v1/trajectories/{one.trajectory_id}/messages/99")
        assert beyond.status_code == 404
        assert "has 3 messages: there is none with index 99" in beyond.json()["error"]["message"]


async def test_a_trajectory_of_20_mb_and_one_of_many_messages_cost_little(warehouse: Warehouse) -> None:
    entry = trajectory("one").turns[0]
    long = [
        msgspec.structs.replace(entry, turn_id=n, action=Action(type="response", raw_response="word " * 8_000))
        for n in range(1, 501)
    ]
    many = [msgspec.structs.replace(entry, turn_id=n) for n in range(1, 2_001)]
    await store(warehouse, ended("long", turns=long), ended("many", 1, turns=many))
    async with console(warehouse) as http:
        began = time.process_time()
        answer = await http.get(f"/v1/trajectories/{ids('long')[0]}")
        spent = time.process_time() - began
        shown = answer.json()
        assert shown["messages_total"] == 1001
        assert len(shown["messages"]) == 500
        assert len(answer.content) < 3_000_000
        assert spent < 5, "of the processor, parsing 20 MB included"
        later = await http.get(f"/v1/trajectories/{ids('many')[0]}", params={"first_message": 3990})
        assert [m["index"] for m in later.json()["messages"]] == [*range(3990, 4001)]


async def test_a_changed_call_shows_what_the_engine_got(warehouse: Warehouse) -> None:
    applied = Applied(digest="c" * 64, replaced=1, head=[{"role": "system", "content": HOSTILE}])
    first = turn("changed", applied=applied, applied_by="gateway")
    plain = turn("plain")
    await store(warehouse, first, turn("changed", 1, applied=Applied(digest="c" * 64)), plain)
    async with console(warehouse) as http:
        calls = (await http.get(f"/v1/trajectories/{first.trajectory_id}")).json()["calls"]
        assert [(call["is_changed"], call["applied_by"]) for call in calls] == [(True, "gateway"), (True, None)]
        answer = (await http.get(f"/v1/calls/{calls[1]['turn_id']}/applied")).json()
        assert answer["parts"] == [{"name": "instructions", "sent": "Be helpful.", "got": HOSTILE}]
        assert (await http.get(f"/v1/calls/{plain.turn_id}/applied")).status_code == 404
