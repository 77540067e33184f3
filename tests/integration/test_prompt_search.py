"""A search for a better prompt on real servers: from the request to the bundle's manifest and the held-out gate."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket
from ratchet.bus.testing import eventually
from ratchet.canary_deployer.gates.heldout_tasks import HeldoutGate
from ratchet.canary_deployer.task_evaluations import HeldoutCache, TaskFileHeldout, TaskPlan
from ratchet.canary_deployer.task_sets import HeldOutFiles
from ratchet.core.contract import Feedback, Turn
from ratchet.core.contract.state import HELD_OUT as HELD_OUT_BUCKET, HeldOutTasks
from ratchet.core.contract.training import TokenPrices
from ratchet.core.service.http import HttpServer
from ratchet.core.service.http_client import AsyncApiClient, Peer
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.objects import Objects
from ratchet.core.stores.policies import Policy, read_policy
from ratchet.rl_coordinator.app import build as build_coordinator
from ratchet.rl_coordinator.settings import Settings as CoordinatorSettings, Timing as CoordinatorTiming
from ratchet.trainer_worker.app import build as build_worker
from ratchet.trainer_worker.settings import Settings as WorkerSettings
from ratchet.trainer_worker.training.prompts.gateway_models import AGENT
from ratchet.trainer_worker.training.prompts.prompt_run import AT_ONCE
from ratchet_helpdesk.world import HELD_OUT
from tests.support.consuming import messages_of
from tests.support.coordinator import ROLE, played, stored, tid
from tests.support.gateway_process import gateway_process
from tests.support.prompted_helpdesk import REFLECTOR, RULES, USAGE, Helpdesk, served_helpdesk, task_lines
from tests.support.running import connected, prepared_objects, prepared_warehouse, running_app
from tests.support.servers import RunningServer
from tests.support.service_process import service_process
from tests.support.stored_values import check_objects
from tests.support.trainer_world import FAST
from tests.support.training import NOON, registered

pytestmark = pytest.mark.slow

ANSWER_USD = (USAGE["prompt_tokens"] * 1.0 + USAGE["completion_tokens"] * 2.0) / 1e6
SEED_TEXT = "Help desk. Keep to the house rules."
OVERFITTED = "otherwise decline"
COMMENT = Feedback(
    feedback_id=tid("comment"), trajectory_id=tid("one"), kind="comment", at=NOON, role=ROLE, value="never asked which"
)


@dataclass
class World:
    bus: Bus
    objects: Objects
    helpdesk: Helpdesk
    shared: SharedSettings
    api: httpx.AsyncClient

    def body(self, **changes: Any) -> dict[str, Any]:
        prompts = {
            "reflector": REFLECTOR,
            "train_tasks": self.stored(task_lines(seed=3)),
            "validation_tasks": self.stored(task_lines(seed=7)),
            "budget": {"calls": 1500},
        }
        hyper = {"seed": 3}
        return {"algorithm": "gepa", "role": ROLE, "hyperparameters": hyper, "prompts": prompts | changes}

    def stored(self, content: bytes) -> dict[str, str]:
        ref = self.objects.put(content, "blobs", ".jsonl")
        return {"uri": ref.uri, "sha256": ref.sha256}

    async def job(self, job_id: str) -> dict[str, Any]:
        return (await self.api.get(f"/v1/jobs/{job_id}")).json()

    async def ended(self, job_id: str) -> dict[str, Any]:
        async def over() -> dict[str, Any] | None:
            job = await self.job(job_id)
            return job if job["state"] in ("completed", "failed", "cancelled") else None

        return await eventually(over, 120)

    @asynccontextmanager
    async def working(self, name: str = "one") -> AsyncIterator[None]:
        settings = WorkerSettings(shared=self.shared, worker=name, pool="prompts", gateway_url=self.helpdesk.url)
        async with running_app(build_worker(settings, FAST)):
            yield


@asynccontextmanager
async def searching(shared: SharedSettings, helpdesk: Helpdesk, gateway: str, **chosen: Any) -> AsyncIterator[World]:
    """A coordinator that asks `gateway`, and one rewarded and commented trajectory to learn from."""
    objects = prepared_objects(shared)
    settings = CoordinatorSettings(shared=shared, port=0, gateway_url=gateway, **chosen)
    quick = CoordinatorTiming(tick_s=0.05, trigger_tick_s=0.05)
    async with (
        prepared_warehouse(shared),
        connected(shared) as bus,
        stored(shared, bus, [*played("one", 0.1), COMMENT]),
        running_app(build_coordinator(settings, quick)) as app,
    ):
        server = next(part for part in app.components if isinstance(part, HttpServer))
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=20) as api:
            yield World(bus, objects, helpdesk, shared, api)
    await asyncio.to_thread(check_objects, objects, "snapshots")


@pytest.fixture
async def world(shared_settings: SharedSettings) -> AsyncIterator[World]:
    """The helpdesk answers as the gateway would."""
    async with served_helpdesk() as helpdesk, searching(shared_settings, helpdesk, helpdesk.url) as world:
        yield world


async def keep_out(world: World, folder: Path) -> Path:
    """The gate's tasks, as the deployer makes them known."""
    file = folder / "held-out.jsonl"
    file.write_bytes(task_lines(HELD_OUT, 40, 5))
    await HeldOutFiles({ROLE: [str(file)]}, world.objects, Bucket(world.bus, HELD_OUT_BUCKET, HeldOutTasks)).publish()
    return file


def wishes(lines: bytes) -> set[str]:
    """What the customers of a task file write."""
    return {msgspec.json.decode(line)["messages"][1]["content"] for line in lines.splitlines()}


def assert_unseen(held_out: Path, helpdesk: Helpdesk) -> None:
    """Nothing of the gate's tasks was asked. Customers who name no order may write the same in any file."""
    own = {wish for wish in wishes(held_out.read_bytes()) if "#" in wish}
    words = "\n".join(str(message.get("content")) for asked in helpdesk.asked for message in asked["messages"])
    assert len(own) > 20
    assert [wish for wish in sorted(own) if wish in words] == []


async def gate_result(world: World, file: Path, folder: Path, **prompts: str) -> tuple[str, str]:
    """What the held-out gate says of the policy 2 against the policy 1, whose bundles say these prompts."""
    stable, candidate = (registered(number, role=ROLE) for number in (1, 2))
    world.helpdesk.system = {stable.name: prompts["stable"], candidate.name: prompts["candidate"]}
    async with AsyncApiClient(Peer("the gateway", world.helpdesk.url, {}, 60)) as client:
        heldout = TaskFileHeldout(TaskPlan(str(file), 40, 0.0), client, world.objects, HeldoutCache(folder / "cache"))
        result = await HeldoutGate({ROLE: heldout}).check(candidate, stable)
    return result.outcome, result.reason


@pytest.mark.timeout(400)
async def test_search_makes_a_bundle_that_does_better_on_held_out_tasks(world: World, tmp_path: Path) -> None:
    file = await keep_out(world, tmp_path)
    async with world.working():
        job = (await world.api.post("/v1/jobs", json=world.body())).json()
        done = await world.ended(job["training_job_id"])
    assert done["state"] == "completed", done
    assert (done["pool"], done["artifacts"]["kind"]) == ("prompts", "bundle")
    figures = done["metrics"]
    assert (figures["validation_score"], figures["calls"]) == (1.0, len(world.helpdesk.asked))
    made = read_policy(world.objects, done["artifacts"]["final_checkpoint"])
    candidates = candidates_of(world, made)
    assert [line["parents"] for line in candidates[:2]] == [[], [0]]
    snapshot = msgspec.json.decode(world.objects.get(done["snapshot"]["uri"]))
    sets = [set(snapshot["tasks"][name]) for name in ("train", "validation", "held_out")]
    assert [len(one) for one in sets] == [16, 16, 40]
    assert len(set().union(*sets)) == 72
    reflections = [asked["messages"][0]["content"] for asked in world.helpdesk.asked if asked["model"] == REFLECTOR]
    assert "comment: never asked which" in reflections[1]
    assert_unseen(file, world.helpdesk)
    bundle = made.manifest.bundle
    assert bundle is not None
    assert bundle.instructions is not None
    text = bundle.instructions.text
    assert all(rule in text for rule in RULES.values())
    assert (await gate_result(world, file, tmp_path, stable=SEED_TEXT, candidate=text))[0] == "passed"


def candidates_of(world: World, policy: Policy) -> list[dict[str, Any]]:
    (document,) = [one for one in policy.manifest.documents if one.name == "candidates.jsonl"]
    return [msgspec.json.decode(line) for line in world.objects.get(document.uri, document.sha256).splitlines()]


async def test_overfitted_prompt_is_refused_by_the_held_out_gate(world: World, tmp_path: Path) -> None:
    file = await keep_out(world, tmp_path)
    chosen_by, validation = tmp_path / "validation.jsonl", task_lines(seed=7)
    chosen_by.write_bytes(validation)
    prompt = "\n".join([*map(_ordered, validation.splitlines()), OVERFITTED])
    for tasks, expected in ((chosen_by, "passed"), (file, "failed")):
        outcome, reason = await gate_result(world, tasks, tmp_path, stable=SEED_TEXT, candidate=prompt)
        assert outcome == expected, reason


def _ordered(line: bytes) -> str:
    """The right act for the order of one ticket, by its number."""
    from ratchet_helpdesk.world import Facts, Order, rule  # noqa: PLC0415

    ticket = msgspec.json.decode(line)["expect"]["further"]["helpdesk"]["task"]
    order = Order(ticket["order"]["number"], Facts(**ticket["order"]["facts"]), ticket["order"]["suspicious"])
    act = rule(ticket["wish"], order).act
    return f"{order.number}: {act.tool}({act.text[1:-1]})"


@pytest.mark.timeout(400)
async def test_search_goes_on_at_another_worker_within_its_budget(world: World) -> None:
    async with world.working("one"):
        job = (await world.api.post("/v1/jobs", json=world.body())).json()["training_job_id"]

        async def has_asked() -> bool:
            return len(world.helpdesk.asked) > 150

        await eventually(has_asked, 120)
    before = len(world.helpdesk.asked)
    async with world.working("two"):
        done = await world.ended(job)
    assert (done["state"], done["attempt"]) == ("completed", 2)
    assert before < len(world.helpdesk.asked) <= done["metrics"]["calls"] <= 1500


BUDGET = {"calls": 400, "tokens": 400_000, "usd": 1.0}
PRICE = {"prompt": 1.0, "completion": 2.0}
UPSTREAM = {"name": "provider", "models": {"*": "*"}, "prices": {"*": PRICE}}


@contextmanager
def real_gateway(shared: SharedSettings, helpdesk: Helpdesk, folder: Path) -> Iterator[RunningServer]:
    """A process, whose only upstream is the help desk."""
    upstreams = msgspec.json.encode([{**UPSTREAM, "base_url": f"{helpdesk.url}/v1"}]).decode()
    env = {"RATCHET_GATEWAY_UPSTREAMS": upstreams, "RATCHET_GATEWAY_ROLES": f'["{ROLE}"]'}
    with gateway_process(shared.nats_url, "http://127.0.0.1:9", folder, **env) as gateway:
        yield gateway


@pytest.mark.timeout(400)
async def test_killed_search_goes_on_through_the_gateway_within_budget(
    shared_settings: SharedSettings, tmp_path: Path
) -> None:
    async with served_helpdesk() as helpdesk, connected(shared_settings):  # the streams are there
        with real_gateway(shared_settings, helpdesk, tmp_path) as gateway:
            async with searching(shared_settings, helpdesk, gateway.url, lease_s=10) as world:
                file = await keep_out(world, tmp_path)
                env = {"RATCHET_GATEWAY_URL": gateway.url}
                with service_process("prompts", shared_settings, tmp_path, **env) as worker:
                    body = world.body(reflector=f"provider/{REFLECTOR}", budget=BUDGET)
                    answer = await world.api.post("/v1/jobs", json=body)
                    assert answer.status_code == 201, answer.text
                    job = answer.json()["training_job_id"]

                    async def has_asked() -> bool:
                        return len(helpdesk.asked) > 150

                    await eventually(has_asked, 120)
                    await asyncio.to_thread(worker.kill)
                    before = len(helpdesk.asked)
                    await asyncio.to_thread(worker.start)
                    done = await world.ended(job)
                turns = [turn for turn in await messages_of(world.bus, Turn) if turn.agent_id == AGENT]
    assert (done["state"], done["attempt"]) == ("completed", 2), done
    figures, asked = done["metrics"], len(helpdesk.asked)
    assert before < asked <= figures["calls"] <= BUDGET["calls"]
    assert asked * USAGE["total_tokens"] <= figures["spent_tokens"] <= BUDGET["tokens"]
    assert asked * ANSWER_USD <= figures["spent_usd"] + 1e-9 <= BUDGET["usd"]
    assert_unseen(file, helpdesk)
    assert {one["model"] for one in helpdesk.asked} == {REFLECTOR, ROLE}
    assert {(turn.policy.role, turn.policy.arm) for turn in turns if turn.policy} == {(ROLE, "pinned")}
    paid = [turn.cost_usd for turn in turns if turn.cost_usd is not None]
    assert {*paid} == {ANSWER_USD}
    assert asked - AT_ONCE <= len(paid) <= len(turns) <= asked  # a worker that is killed leaves some


@pytest.mark.timeout(200)
async def test_search_that_is_cancelled_ends_within_seconds(world: World) -> None:
    async with world.working():
        job = (await world.api.post("/v1/jobs", json=world.body())).json()["training_job_id"]

        async def has_asked() -> bool:
            return bool(world.helpdesk.asked)

        await eventually(has_asked, 120)
        world.helpdesk.at_work.clear()  # a model that takes minutes
        await world.api.post(f"/v1/jobs/{job}/cancel")
        async with asyncio.timeout(60):
            assert (await world.ended(job))["state"] == "cancelled"


async def test_search_without_models_or_prices_is_refused_at_once(world: World) -> None:
    world.helpdesk.unknown = frozenset({f"{ROLE}@nowhere/large"})
    for changes, reason in [
        ({"reflector": "nowhere/large"}, f"prompts.reflector: nothing answers for {ROLE}@nowhere/large"),
        ({"budget": {"calls": 99, "usd": 1.0}}, "provider/reflector has none: set it in `prices` of its upstream"),
        (
            {"budget": {"calls": 99, "usd": 1.0}, "reflector_prices": {"prompt": 1, "completion": 2}},
            f"provider/{ROLE} has none",
        ),
    ]:
        answer = await world.api.post("/v1/jobs", json=world.body(**changes), params={"dry_run": "true"})
        assert (answer.status_code, reason in answer.json()["error"]["message"]) == (422, True), answer.text
    world.helpdesk.prices = TokenPrices(prompt=1, completion=2)
    taken = await world.api.post("/v1/jobs", json=world.body(budget={"calls": 99, "usd": 1.0}))
    assert taken.status_code == 201, taken.text


async def test_sets_that_share_tasks_are_refused_at_once(world: World, tmp_path: Path) -> None:
    file = await keep_out(world, tmp_path)
    same = world.stored(task_lines(seed=3) + b"\n")
    for changes, reason in [
        ({"validation_tasks": same}, "prompts.train_tasks and prompts.validation_tasks share 16 tasks"),
        ({"train_tasks": world.stored(file.read_bytes())}, "the gate's held-out tasks share 40 tasks"),
        ({"train_tasks": {"uri": f"s3://{world.shared.s3_bucket}/blobs/x.jsonl", "sha256": "0" * 64}}, "not exist"),
    ]:
        answer = await world.api.post("/v1/jobs", json=world.body(**changes))
        assert (answer.status_code, reason in answer.json()["error"]["message"]) == (422, True), answer.text
    plan = (await world.api.get("/v1/plan", params={"role": ROLE})).json()
    assert (plan["algorithm"], plan["shape"]["held_out_tasks"]) == ("gepa", 40)
