"""Streams and several choices over HTTP, called in process: a tiny model answers, token by token."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, cast

import httpx
import pytest
from prometheus_client import REGISTRY

from ratchet.bus.testing import eventually
from ratchet.core.errors import RatchetError, Rejected
from ratchet.core.grammars.compiler import Compiler
from ratchet.core.service.asgi import JsonApi
from ratchet.core.service.problems import HttpError
from ratchet.core.stores.policies import Policy
from ratchet.local.engine_local.domain.answers import Completion, Drawn
from ratchet.local.engine_local.domain.requests import Sampling
from ratchet.local.engine_local.generation import Generations
from ratchet.local.engine_local.grammars import Grammars
from ratchet.local.engine_local.handlers import Engine
from ratchet.local.engine_local.registry import Entry, Registry
from ratchet.local.engine_local.resolving import Resolver
from ratchet.local.engine_local.settings import BODY_LIMIT
from ratchet.local.engine_local.torch_batch import Job, Update
from ratchet.local.engine_local.torch_policies import Served
from ratchet.local.engine_local.torch_worker import Limits, LoadReport, TorchWorker
from tests.support.joined_streams import events_of, joined

NAME = "helpdesk@1-1a2b3c4d"
ASKED = [{"role": "user", "content": "where is my order K47"}]
TOOLS = [{"type": "function", "function": {"name": "look_up"}}]
LIMITS = Limits(rows=8, prefill_tokens=500, prefix_tokens=2000, linger_s=0.0)
ALL: dict[str, Any] = {"return_token_ids": True, "max_tokens": 30, "seed": 3}
USAGE: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}


class Scripted:
    """Takes jobs; a test says what becomes of them."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.taken = asyncio.Event()

    def submit(self, served: Served, job: Job) -> None:
        self.jobs.append(job)
        self.taken.set()


def client(worker: Any, served: Served) -> tuple[httpx.AsyncClient, Registry[Served]]:
    async def never(name: str) -> Any:
        raise AssertionError(name)

    def now() -> datetime:
        return datetime(2026, 1, 5, tzinfo=UTC)

    registry: Registry[Served] = Registry(2, lambda _: None)
    resolver = Resolver(registry, never, never, now)
    engine = Engine(Generations(worker.submit, max_requests=4), registry, resolver, Grammars(Compiler()), now)
    registry.add(Entry(NAME, "0" * 64, "s3://b/p.json", served, 0.0, 0.0))
    app: Any = JsonApi(engine.route, 10_000)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://engine"), registry


@pytest.fixture
async def http(served: Served) -> AsyncIterator[httpx.AsyncClient]:
    worker = TorchWorker(LIMITS, 1, asyncio.get_running_loop().call_soon_threadsafe)
    async with client(worker, served)[0] as made:
        yield made
    await asyncio.to_thread(worker.close)


async def post(http: httpx.AsyncClient, route: str, **members: Any) -> httpx.Response:
    body = {"model": NAME, **({"prompt": "where is"} if route == "completions" else {"messages": ASKED}), **members}
    return await http.post(f"/v1/{route}", json=body)


def without_identity(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer less what differs from call to call."""
    for choice in answer["choices"]:
        for call in (choice.get("message") or {}).get("tool_calls") or ():
            call["id"] = call["id"].split("_", 2)[2]
    answer["usage"].pop("prompt_tokens_details")
    return answer | {"id": answer["id"].split("-")[0]}


@pytest.mark.parametrize(
    ("route", "members"),
    [
        ("chat/completions", {}),
        ("chat/completions", {"logprobs": True, "top_logprobs": 3, "temperature": 0.7}),
        ("chat/completions", {"tools": TOOLS, "n": 3, "seed": 11, "stop": ["e"]}),
        ("completions", {}),
        ("completions", {"logprobs": 2, "n": 2, "stop": ["a", "<|"]}),
    ],
)
async def test_a_stream_with_a_seed_is_the_whole_answer(
    http: httpx.AsyncClient, route: str, members: dict[str, Any]
) -> None:
    whole = (await post(http, route, **ALL | members)).json()
    answer = await post(http, route, **ALL | members | USAGE)
    chunks = events_of(answer.content)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert without_identity(joined(chunks)) == without_identity(whole)
    assert len(chunks) > 2
    for chunk in chunks:
        for choice in chunk["choices"]:
            assert len(choice.get("token_ids") or ()) <= 1
    assert chunks[0]["logprobs_mode"] == "processed_logprobs"
    assert chunks[-1]["choices"] == []


async def test_a_chunk_holds_only_what_was_asked_for(http: httpx.AsyncClient) -> None:
    chunks = events_of((await post(http, "chat/completions", stream=True, max_tokens=20)).content)
    assert set(chunks[0]) == {"id", "object", "created", "model", "choices", "logprobs_mode"}
    assert not any("logprobs_mode" in chunk for chunk in chunks[1:])
    first = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    assert chunks[0]["choices"] == [first]
    for chunk in chunks[1:-1]:
        (choice,) = chunk["choices"]
        assert choice["delta"]["content"]
        assert "token_ids" not in choice
    assert chunks[-1]["choices"][0]["finish_reason"] in {"stop", "length"}


async def test_every_choice_has_ids_and_a_seed_of_its_own_and_prompt_counts_once(http: httpx.AsyncClient) -> None:
    three = (await post(http, "chat/completions", **ALL, n=3)).json()
    assert [choice["index"] for choice in three["choices"]] == [0, 1, 2]
    for number, choice in enumerate(three["choices"]):
        alone = (await post(http, "chat/completions", **ALL | {"seed": ALL["seed"] + number})).json()
        assert choice["token_ids"] == alone["choices"][0]["token_ids"]
    used = three["usage"]
    assert used["prompt_tokens"] == len(three["prompt_token_ids"])
    assert used["completion_tokens"] == sum(len(choice["token_ids"]) for choice in three["choices"])
    assert used["total_tokens"] == used["prompt_tokens"] + used["completion_tokens"]


async def test_more_choices_than_the_engine_computes_are_refused(http: httpx.AsyncClient) -> None:
    answer = await post(http, "chat/completions", n=5)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "n")


def drawn(served: Served, text: str) -> list[Drawn]:
    return [Drawn(token, -0.5) for token in served.text.text_ids(text)]


async def streaming(served: Served, script: Callable[[Job], None]) -> httpx.Response:
    """The answer to a stream whose one job goes as scripted."""
    worker = Scripted()
    http, _ = client(worker, served)
    async with http:
        asked = asyncio.create_task(post(http, "chat/completions", stream=True))
        await worker.taken.wait()
        script(worker.jobs[0])
        return await asked


async def test_error_has_its_status_before_the_first_token_and_is_an_event_after(served: Served) -> None:
    error = RatchetError("the policy produced NaN", code="not_finite")
    early = await streaming(served, lambda job: job.on_progress(Update(job, end=error)))
    assert (early.status_code, early.json()["error"]["code"]) == (500, "not_finite")

    def late(job: Job) -> None:
        job.on_progress(Update(job, drawn(served, "where")[0]))
        job.on_progress(Update(job, end=error))

    answer = await streaming(served, late)
    assert answer.status_code == 200
    assert events_of(answer.content)[-1] == {"error": early.json()["error"]}


async def test_whole_text_that_begins_otherwise_than_stream_ends_it_with_error(served: Served) -> None:
    def script(job: Job) -> None:
        first, second = drawn(served, "where")[0], drawn(served, "is")[0]
        job.on_progress(Update(job, first))
        job.on_progress(Update(job, second, Completion([second.token], [-0.5], "length", 3)))

    answer = await streaming(served, script)
    assert events_of(answer.content)[-1]["error"]["type"] == "server_error"


async def test_a_client_that_leaves_a_stream_frees_its_row_and_its_policy(served: Served) -> None:
    worker = Scripted()
    http, registry = client(worker, served)
    async with http:
        before = REGISTRY.get_sample_value("ratchet_engine_requests_total", CANCELLED) or 0
        asked = asyncio.create_task(post(http, "chat/completions", stream=True, n=2))
        while len(worker.jobs) < 2:
            worker.taken.clear()
            await worker.taken.wait()
        for job in worker.jobs:
            job.on_progress(Update(job, drawn(served, "where")[0]))
        entry = registry.get(NAME)
        assert entry is not None
        assert entry.users == 1
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        assert [job.cancelled for job in worker.jobs] == [True, True]
        assert entry.users == 0
    assert REGISTRY.get_sample_value("ratchet_engine_open_requests") == 0
    assert REGISTRY.get_sample_value("ratchet_engine_requests_total", CANCELLED) == before + 2


CANCELLED = {"policy": NAME, "outcome": "cancelled"}


async def test_a_pass_wakes_the_loop_once_however_many_rows_stream(served: Served) -> None:
    rows, tokens, wakes = 6, 10, 0
    loop, done = asyncio.get_running_loop(), asyncio.Event()
    progress: list[Update] = []

    def post_counted(call: Callable[[], None]) -> None:
        nonlocal wakes
        wakes += 1
        loop.call_soon_threadsafe(call)

    def on_progress(update: Update) -> None:
        progress.append(update)
        if sum(one.end is not None for one in progress) == rows:
            done.set()

    # It computes as soon as all rows wait, and not before: they are computed in the same passes.
    worker = TorchWorker(Limits(rows=rows, prefill_tokens=500, prefix_tokens=0, linger_s=60), 1, post_counted)
    for _ in range(rows):
        worker.submit(served, Job([20, 21, 22], Sampling(), tokens, on_progress, stream=True))
    await done.wait()
    await asyncio.to_thread(worker.close)
    assert wakes <= tokens
    assert len(progress) == sum(len(one.end.token_ids) for one in progress if isinstance(one.end, Completion))


async def test_the_load_of_each_policy_in_memory_is_a_metric_until_it_leaves(served: Served) -> None:
    """Three rows fit, and their first pass lasts until the test has looked; the fourth waits."""
    looked = threading.Event()

    def held(_: Sequence[int]) -> bool:
        return not looked.wait(30)

    jobs = [Job([20, 21, 22], Sampling(seed=3), 20, lambda _: None, stops_in=held) for _ in range(4)]
    limits = Limits(rows=3, prefill_tokens=500, prefix_tokens=0, linger_s=0.0)
    worker = TorchWorker(limits, 1, asyncio.get_running_loop().call_soon_threadsafe)
    registry: Registry[Served] = Registry(2, worker.forget)
    registry.add(Entry("busy@1", "0" * 64, "s3://b/p.json", served, 0.0, 0.0))
    report = LoadReport(registry, worker.load_of)
    await report.observe()
    assert load_metrics("busy@1") == (0, 0, 0)
    for job in jobs:
        worker.submit(served, job)

    async def full() -> bool:
        await report.observe()
        return load_metrics("busy@1")[:2] == (3, 1)

    await eventually(full)
    looked.set()

    async def idle() -> bool:
        await report.observe()
        return load_metrics("busy@1") == (0, 0, worker.load_of(served).busy_s)

    await eventually(idle)
    assert worker.load_of(served).busy_s > 0
    registry.remove("busy@1")
    await report.observe()
    assert load_metrics("busy@1") == (None, None, None)
    registry.add(Entry("busy@1", "0" * 64, "s3://b/p.json", served, 0.0, 0.0))
    await report.observe()
    assert load_metrics("busy@1") == (0, 0, 0)
    await asyncio.to_thread(worker.close)


def load_metrics(policy: str) -> tuple[float | None, float | None, float | None]:
    """Rows that run, rows that wait, seconds."""
    names = ("running_rows", "waiting_rows", "busy_seconds_total")
    running, waiting, busy = (REGISTRY.get_sample_value(f"ratchet_engine_{one}", {"policy": policy}) for one in names)
    return running, waiting, busy


COUNTED = (
    ("ratchet_engine_loads_total", {"outcome": "loaded"}),
    ("ratchet_engine_loads_total", {"outcome": "refused"}),
    ("ratchet_engine_load_seconds_count", {}),
    ("ratchet_engine_evictions_total", {"reason": "room"}),
    ("ratchet_engine_evictions_total", {"reason": "unloaded"}),
)


def counts() -> list[float]:
    return [REGISTRY.get_sample_value(name, labels) or 0.0 for name, labels in COUNTED]


def now() -> datetime:
    return datetime(2026, 1, 5, tzinfo=UTC)


async def resolver_answers(resolver: Resolver, name: str) -> None:
    with suppress(HttpError):
        await resolver.resolve(name)


async def test_every_load_and_every_eviction_is_counted(served: Served) -> None:
    async def find(name: str) -> Policy:
        return Policy(f"s3://b/policies/{name}.json", "0" * 64, nothing)

    async def load(uri: str) -> Served:
        if "broken" in uri:
            raise Rejected("no such policy")
        return served

    nothing = cast("Any", None)
    registry: Registry[Served] = Registry(2, lambda _: None)
    resolver = Resolver(registry, find, load, now)
    engine = Engine(nothing, registry, resolver, nothing, now)
    transport = httpx.ASGITransport(cast("Any", JsonApi(engine.route, BODY_LIMIT)))
    async with httpx.AsyncClient(transport=transport, base_url="http://engine/v1") as http:
        before = counts()
        for role in ("one", "two", "one", "three", "broken"):
            await resolver_answers(resolver, f"{role}@1-00000000")
        await http.post("/unload_lora_adapter", json={"lora_name": "three@1-00000000"})
    added = [now - then for now, then in zip(counts(), before, strict=True)]
    assert added == [3, 1, 3, 1, 1]
    assert REGISTRY.get_sample_value("ratchet_engine_resident_policies") == 1 == len(registry)
