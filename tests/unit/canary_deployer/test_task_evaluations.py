"""The deployer on a task file: what counts for the policy, what is a fault of the engine, and what it remembers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from pydantic import ValidationError

from ratchet.bus.kv import Bucket
from ratchet.canary_deployer.http_clients import gateway_peer
from ratchet.canary_deployer.replicas import Inconclusive
from ratchet.canary_deployer.settings import Settings
from ratchet.canary_deployer.task_evaluations import MOST_ROUNDS, HeldoutCache, TaskFileHeldout, TaskPlan
from ratchet.canary_deployer.task_sets import SearchedTasks
from ratchet.core.contract.snapshot import TaskSets
from ratchet.core.contract.state import POLICIES, PolicyVersion
from ratchet.core.datasets.s3_snapshots import Snapshots
from ratchet.core.errors import ObjectsUnavailable
from ratchet.core.evaluation.http_player import MOST_TOKENS
from ratchet.core.evaluation.task_files import tasks_by_digest
from ratchet.core.service.http_client import AsyncApiClient
from tests.support.blobs import MemoryBlobs
from tests.support.canary_world import policy
from tests.support.fake_bus import fake_bus
from tests.support.snapshot_rows import snapshot_manifest

URI = "s3://ratchet/tasks/support.jsonl"
Answers = Callable[[dict[str, Any]], httpx.Response]


def tasks(number: int = 3) -> bytes:
    lines = [
        {"id": f"t{n}", "messages": [{"role": "user", "content": f"{n}?"}], "expect": {"text": {"any_of": ["yes"]}}}
        for n in range(number)
    ]
    return "\n".join(map(json.dumps, lines)).encode()


class FakeObjects:
    """One object, or a store that is away."""

    def __init__(self, content: bytes | None) -> None:
        self.content = content

    def get_part(self, uri: str, begin: int, size: int) -> bytes:
        if self.content is None:
            raise ObjectsUnavailable("the object store is away")
        return self.content[begin : begin + size]


def reply(text: str, by: str) -> httpx.Response:
    chat = {"choices": [{"message": {"role": "assistant", "content": text}}]}
    return httpx.Response(200, json=chat, headers={"x-ratchet-policy": by})


class Gateway:
    """Answers by a function of the request's body, and remembers the requests."""

    def __init__(self, answers: Answers) -> None:
        self.answers = answers
        self.answered_by: str | None = None
        """Who would answer for each model."""
        self.bodies: list[dict[str, Any]] = []
        self.trajectories: list[str] = []

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(200, json={"id": "x", "answered_by": self.answered_by})
        self.bodies.append(json.loads(request.content))
        self.trajectories.append(request.headers["x-ratchet-trajectory"])
        return self.answers(self.bodies[-1])


def remembered(folder: Path) -> list[Path]:
    """The files of the cache."""
    return list(folder.iterdir())


class Clock:
    """A monotonic clock of our own."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def heldout(
    gateway: Any, folder: Path, objects: FakeObjects | None = None, clock: Clock | None = None, **changes: Any
) -> TaskFileHeldout:
    plan: dict[str, Any] = {"file": URI, "tasks": 400, "temperature": 0.0, "deadline_s": 30.0}
    client = AsyncApiClient(gateway_peer("http://gateway", None), httpx.MockTransport(gateway))
    store: Any = objects or FakeObjects(tasks())
    whole = TaskPlan(**(plan | {"pauses_s": ()} | changes))
    return TaskFileHeldout(whole, client, store, HeldoutCache(folder), clock or Clock())


async def test_a_policy_is_played_once_greedily_and_then_remembered(tmp_path: Path) -> None:
    one = policy(1)
    gateway = Gateway(lambda body: reply("yes" if body["messages"][0]["content"] != "0?" else "no", one.name))
    first = await heldout(gateway, tmp_path).play_or_recall(one)
    again = await heldout(gateway, tmp_path).play_or_recall(one)
    assert first.played.scores == {"t0": 0.0, "t1": 1.0, "t2": 1.0}
    assert (first.played.tries, first.played.successes, first.cached) == (3, 2, False)
    assert (again.played, again.cached, again.source) == (first.played, True, first.source)
    assert first.source["tasks_file"] == URI
    assert [(body["model"], body["temperature"], "seed" in body) for body in gateway.bodies] == [
        (one.name, 0, False)
    ] * 3
    assert len(set(gateway.trajectories)) == 3


async def test_other_tasks_are_played_anew(tmp_path: Path) -> None:
    one = policy(1)
    gateway = Gateway(lambda _: reply("yes", one.name))
    await heldout(gateway, tmp_path).play(one)
    changed = await heldout(gateway, tmp_path, FakeObjects(tasks(4))).play_or_recall(one)
    assert (changed.cached, changed.played.tries) == (False, 4)
    assert (await heldout(gateway, tmp_path, tasks=2).play_or_recall(one)).played.tries == 2
    assert (await heldout(gateway, tmp_path, temperature=0.5).play_or_recall(one)).cached is False
    assert gateway.bodies[-1]["temperature"] == 0.5


async def test_a_request_that_the_engine_refuses_is_wrong(tmp_path: Path) -> None:
    run = await heldout(Gateway(lambda _: httpx.Response(400, json={"error": {"message": "too long"}})), tmp_path).play(
        policy(2)
    )
    assert (run.played.scores, run.problem) == ({"t0": 0.0, "t1": 0.0, "t2": 0.0}, None)
    assert run.played.refused == {"t0", "t1", "t2"}
    again = await heldout(Gateway(lambda _: pytest.fail("asked again")), tmp_path).play_or_recall(policy(2))
    assert again.played == run.played


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(503, json={"error": {"message": "overloaded"}}),
        httpx.Response(500, text="oh"),
        httpx.Response(429, json={"error": {"message": "later"}}),
        httpx.Response(404, json={"error": {"message": "unknown model"}}),
        httpx.Response(401, json={"error": {"message": "no key"}}),
        reply("yes", "support@1-another"),
        httpx.Response(200, json={"choices": []}, headers={"x-ratchet-policy": policy(2).name}),
    ],
    ids=["overloaded", "broken", "busy", "unknown", "key", "another policy", "no message"],
)
async def test_what_is_no_answer_of_the_policy_is_no_result(answer: httpx.Response, tmp_path: Path) -> None:
    faulty = heldout(Gateway(lambda _: answer), tmp_path)
    pauses: list[float] = []
    for _ in range(3):
        with pytest.raises(Inconclusive, match="the tasks show nothing yet") as doubt:
            await faulty.play(policy(2))
        pauses.append(doubt.value.again_in_s)
    assert pauses == [1, 2, 4], "an engine that is at fault is asked less and less often"
    assert remembered(tmp_path) == []


async def test_a_store_that_is_away_is_no_result_and_a_bad_file_is_a_problem(tmp_path: Path) -> None:
    gateway = Gateway(lambda _: reply("yes", policy(1).name))
    with pytest.raises(ObjectsUnavailable):
        await heldout(gateway, tmp_path, FakeObjects(None)).play(policy(1))
    run = await heldout(gateway, tmp_path, FakeObjects(b'{"id": "a"}')).play_or_recall(policy(1))
    assert run.problem is not None
    assert run.problem.startswith(f"{URI}: line 1: ")
    assert gateway.bodies == []


async def test_a_policy_that_does_not_finish_has_a_problem(tmp_path: Path) -> None:
    async def hangs(_: httpx.Request) -> httpx.Response:
        await asyncio.Event().wait()
        raise AssertionError

    run = await heldout(hangs, tmp_path, deadline_s=0.05).play(policy(2))
    assert run.problem == "not all tasks were answered after 0.05 s"


async def test_a_deadline_after_a_fault_of_the_engine_is_no_result(tmp_path: Path) -> None:
    async def fails_once_and_hangs(request: httpx.Request) -> httpx.Response:
        if "0?" in request.content.decode():
            return httpx.Response(503, json={"error": {"message": "overloaded"}})
        await asyncio.Event().wait()
        raise AssertionError

    with pytest.raises(Inconclusive, match=r"answered after 0\.5 s, and 1 got no answer: .*overloaded"):
        await heldout(fails_once_and_hangs, tmp_path, deadline_s=0.5).play(policy(2))


async def test_after_rounds_that_took_the_deadline_a_person_is_asked(tmp_path: Path) -> None:
    clock, gateway = Clock(), Gateway(lambda _: httpx.Response(504, json={"error": {"message": "too late"}}))
    faulty = heldout(gateway, tmp_path, clock=clock)
    for _ in range(MOST_ROUNDS):  # five rounds at once: a short fault
        with pytest.raises(Inconclusive):
            await faulty.play(policy(2))
    clock.now = 30.0
    run = await faulty.play(policy(2))
    assert run.problem is not None
    assert run.problem.startswith("played 6 times in 30 s without a result: 3 of 3 tasks got no answer: ")
    assert "too late" in run.problem
    with pytest.raises(Inconclusive):  # of the next check, which begins anew
        await faulty.play(policy(2))


async def test_a_result_ends_the_rounds_without_one(tmp_path: Path) -> None:
    clock, gateway = Clock(), Gateway(lambda _: httpx.Response(503, json={"error": {"message": "overloaded"}}))
    played = heldout(gateway, tmp_path, clock=clock)
    for _ in range(MOST_ROUNDS):
        with pytest.raises(Inconclusive):
            await played.play(policy(1))
    gateway.answers = lambda _: reply("yes", policy(1).name)
    assert (await played.play(policy(1))).problem is None
    clock.now, gateway.answers = 1000.0, lambda _: httpx.Response(503, json={"error": {"message": "overloaded"}})
    with pytest.raises(Inconclusive) as doubt:
        await played.play(policy(1))
    assert doubt.value.again_in_s == 1


async def test_an_answer_has_a_limit_that_its_task_may_set(tmp_path: Path) -> None:
    gateway = Gateway(lambda _: reply("yes", policy(2).name))
    lines = tasks(2).split(b"\n")
    own = json.dumps(json.loads(lines[1]) | {"max_tokens": 7}).encode()
    await heldout(gateway, tmp_path, FakeObjects(lines[0] + b"\n" + own)).play(policy(2))
    assert sorted(body["max_tokens"] for body in gateway.bodies) == [7, MOST_TOKENS]


def test_task_files_are_named_by_role_or_one_for_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own = tmp_path / "tasks.jsonl"
    own.touch()
    by_role = {"support": str(own), "*": "s3://b/c.jsonl"}
    monkeypatch.setenv("RATCHET_CANARY_TASK_FILES", json.dumps(by_role))
    assert Settings().task_files == by_role
    monkeypatch.setenv("RATCHET_CANARY_TASK_FILES", str(own))
    assert Settings().task_files == {"*": str(own)}
    for wrong in (json.dumps({"No Role": str(own)}), '{"support": 1}', '{"support"'):
        monkeypatch.setenv("RATCHET_CANARY_TASK_FILES", wrong)
        with pytest.raises(ValidationError):
            Settings()


async def test_a_cache_entry_that_is_damaged_is_played_again(tmp_path: Path) -> None:
    gateway = Gateway(lambda _: reply("yes", policy(1).name))
    await heldout(gateway, tmp_path).play(policy(1))
    for entry in remembered(tmp_path):
        entry.write_text("{")
    assert not (await heldout(gateway, tmp_path).play_or_recall(policy(1))).cached


async def test_a_cache_on_a_full_disk_costs_the_entry_and_not_the_run(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.write_text("a file where the directory should be")
    run = await heldout(Gateway(lambda _: reply("yes", policy(1).name)), folder).play_or_recall(policy(1))
    assert (run.problem, run.cached) == (None, False)


async def test_bundle_without_a_model_is_played_again_where_another_answers(tmp_path: Path) -> None:
    polite = policy(1, kind="bundle", base_model="")
    gateway = Gateway(lambda _: reply("yes", polite.name))
    cached: list[bool] = []
    for gateway.answered_by in ("openai/small", "openai/large", "openai/small", None, None):
        cached.append((await heldout(gateway, tmp_path).play_or_recall(polite)).cached)
    assert cached == [False, False, True, False, False]
    assert len(remembered(tmp_path)) == 2


async def test_model_that_changed_while_tasks_were_played_is_not_remembered(tmp_path: Path) -> None:
    polite = policy(1, kind="bundle", base_model="")

    def changed(_: dict[str, Any]) -> httpx.Response:
        gateway.answered_by = "openai/large"
        return reply("yes", polite.name)

    gateway = Gateway(changed)
    gateway.answered_by = "openai/small"
    assert (await heldout(gateway, tmp_path).play_or_recall(polite)).played.successes == 3
    assert remembered(tmp_path) == []


async def test_candidate_that_was_made_from_a_task_is_for_a_person(tmp_path: Path) -> None:
    """By itself or by an ancestor, whatever became of its kind since."""
    blobs, known = MemoryBlobs(), [*tasks_by_digest(tasks(2), "tasks")]
    sets = TaskSets(train=known[:1], validation=known[1:], held_out=[])
    ref = blobs.put(msgspec.json.encode(snapshot_manifest(tasks=sets)), "snapshots", ".json")
    versions = Bucket(fake_bus(), POLICIES, PolicyVersion)
    searched = policy(1, kind="bundle", dataset_digest=ref.sha256)
    child, grandchild, other = policy(2, parent=1), policy(3, kind="bundle", parent=2), policy(4)
    for one in (searched, child, grandchild, other):
        await versions.put(f"{one.role}.{one.version}", one)
    gateway = Gateway(lambda body: reply("yes", body["model"]))
    client = AsyncApiClient(gateway_peer("http://gateway", None), httpx.MockTransport(gateway))
    store: Any = FakeObjects(tasks())
    behind = SearchedTasks(Snapshots(blobs, "test"), versions)
    plays = TaskFileHeldout(TaskPlan(URI, 400, 0.0), client, store, HeldoutCache(tmp_path), searched=behind)
    for made in (searched, child, grandchild):
        assert (await plays.play(made)).problem == f"{made.name} was made from 2 of its tasks, such as 't0'"
    assert gateway.bodies == []
    assert (await plays.play(other)).problem is None


async def test_policy_whose_ancestor_is_lost_is_for_a_person(tmp_path: Path) -> None:
    behind = SearchedTasks(Snapshots(MemoryBlobs(), "test"), Bucket(fake_bus(), POLICIES, PolicyVersion))
    client = AsyncApiClient(gateway_peer("http://gateway", None), httpx.MockTransport(Gateway(pytest.fail)))
    store: Any = FakeObjects(tasks())
    plays = TaskFileHeldout(TaskPlan(URI, 400, 0.0), client, store, HeldoutCache(tmp_path), searched=behind)
    for made, reason in (
        (policy(2, parent=1), "support@1 is not"),
        (policy(2, dataset_digest="d" * 64), "no such obj"),
    ):
        problem = (await plays.play(made)).problem
        assert problem is not None
        assert f"cannot be seen which tasks {made.name} was made from: " in problem
        assert reason in problem
