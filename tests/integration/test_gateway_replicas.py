"""A gateway in front of several engines and replicas: one dies, hangs, is busy or comes back; agents get answers."""

from __future__ import annotations

import asyncio
import itertools
import json
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai
import pytest

from ratchet.bus.testing import eventually
from ratchet.core.contract import Turn
from ratchet.gateway.domain.identity import trajectory_id_of
from ratchet.gateway.domain.replicas import FAILURES
from ratchet.gateway.settings import UpstreamSettings
from ratchet.local.local_stack.ports import free_ports
from tests.support.fake_engine import FakeEngine, FakeProvider, providing, serving
from tests.support.gateway_scene import ROLE, Scene, ask, put_routes, scene, version
from tests.support.running import http_client
from tests.support.servers import Broker

HI: list[Any] = [{"role": "user", "content": "where is it?"}]
CHUNK = {
    "object": "chat.completion.chunk",
    "choices": [{"index": 0, "delta": {"content": "It"}, "finish_reason": None}],
}
HEAD = b"HTTP/1.1 %s\r\nconnection: close\r\n%s\r\n"
STREAM = HEAD % (b"200 OK", b"content-type: text/event-stream\r\n")
CORE = b'data: {"error": {"message": "EngineCore encountered an issue.", "code": 500}}\n\n'
SPEAKER = b'data: {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}\n\n'
EVENT = b"data: %s\n\n" % json.dumps(CHUNK).encode()


@dataclass
class BadReplica:
    """Answers every call with the same bytes and breaks the connection off; with none at all where `hangs`."""

    answer: bytes = b""
    hangs: bool = False
    well: bool = True
    """What it says of its health."""
    calls: int = 0
    asked: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"GET"):
                writer.write(HEAD % (b"200 OK" if self.well else b"503 Dead", b"content-length: 0\r\n"))
                return
            self.calls += 1
            self.asked.set()
            writer.write(self.answer)
            await writer.drain()
            if self.hangs:
                await reader.read()  # until the gateway leaves
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def listening(replica: BadReplica, port: int = 0) -> AsyncIterator[str]:
    async with await asyncio.start_server(replica.serve, "127.0.0.1", port) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def well() -> FakeEngine:
    return FakeEngine(resident={version(1).name})


@asynccontextmanager
async def two(
    nats: Broker, folder: Path, bad: BadReplica, **options: Any
) -> AsyncIterator[tuple[Scene, FakeEngine, str]]:
    """A gateway in front of a bad replica and a good one; yields the name of the good one too."""
    good = well()
    async with (
        listening(bad) as bad_url,
        serving(good) as good_url,
        scene(nats, folder, engine_url=f"{bad_url},{good_url}", **options) as here,
    ):
        yield here, good, good_url.removeprefix("http://")


def alternating() -> Iterator[str]:
    """Names of trajectories whose own replicas, of two, take turns."""
    place = 0
    for name in map("trajectory {}".format, itertools.count()):
        if zlib.crc32(trajectory_id_of(name).encode()) % 2 == place:
            yield name
            place = 1 - place


TRAJECTORIES = list(itertools.islice(alternating(), 20))


async def every(
    client: openai.AsyncOpenAI, calls: int = 12, *, trajectories: list[str] = TRAJECTORIES, **options: Any
) -> list[str]:
    """What calls of some trajectories get, which meet both replicas first."""
    answers = list[str]()
    for name in trajectories[:calls]:
        answer = await client.chat.completions.create(
            model=ROLE, messages=HI, extra_headers={"x-ratchet-trajectory": name}, **options
        )
        if options.get("stream"):
            parts = [chunk.choices[0].delta.content or "" async for chunk in answer if chunk.choices]
            answers.append("".join(parts))
        else:
            answers.append(answer.choices[0].message.content)
    return answers


BAD = {
    "dies before it answers": BadReplica(),
    "dies within its head": BadReplica(b"HTTP/1.1 200 OK\r\ncontent-"),
    "dies within a whole answer": BadReplica(HEAD % (b"200 OK", b"content-length: 1000\r\n") + b'{"choices": ['),
    "dies before the first event": BadReplica(STREAM + b": ping\n\n"),
    "is busy": BadReplica(HEAD % (b"503 Busy", b"retry-after: 9\r\ncontent-length: 4\r\n") + b"busy"),
    "has too much to do": BadReplica(HEAD % (b"429 Slow", b"retry-after: 9\r\ncontent-length: 4\r\n") + b"busy"),
    "lacks the policy": BadReplica(HEAD % (b"404 None", b"content-length: 4\r\n") + b"none"),
    "has another base model": BadReplica(HEAD % (b"424 Base", b"content-length: 4\r\n") + b"base"),
    "has another key": BadReplica(HEAD % (b"401 Key", b"content-length: 3\r\n") + b"key"),
    "has lost its core": BadReplica(STREAM + CORE + b"data: [DONE]\n\n"),
    "has lost its core after the role": BadReplica(STREAM + SPEAKER + CORE + b"data: [DONE]\n\n"),
    "speaks another API": BadReplica(STREAM + b'data: {"hello": 1}\n\ndata: [DONE]\n\n'),
    "has a page in its place": BadReplica(HEAD % (b"200 OK", b"content-length: 6\r\n") + b"<html>"),
    "has a proxy that lost it": BadReplica(HEAD % (b"502 Gone", b"content-length: 4\r\n") + b"gone"),
}


STREAMED = {
    "dies before the first event",
    "has lost its core",
    "has lost its core after the role",
    "speaks another API",
}
"""Kinds that have begun a stream."""


@pytest.mark.parametrize(
    ("kind", "stream"),
    [*((kind, True) for kind in BAD), *((kind, False) for kind in BAD if kind not in STREAMED)],
)
async def test_agents_get_the_answer_of_another_replica_and_no_turn_has_failed(
    nats: Broker, tmp_path: Path, kind: str, *, stream: bool
) -> None:
    bad = BadReplica(BAD[kind].answer)
    async with two(nats, tmp_path, bad) as (here, good, name):
        assert await every(here.client(), stream=stream) == [good.answer] * 12
        turns: list[Turn] = await here.published(Turn, 12)
    assert bad.calls >= 1, "every second trajectory is its own"
    assert [(turn.engine.replica, turn.error, turn.policy.arm) for turn in turns] == [(name, None, "stable")] * 12


async def test_a_stream_that_broke_off_after_its_first_event_is_not_begun_anew(nats: Broker, tmp_path: Path) -> None:
    bad = BadReplica(STREAM + EVENT, well=False)
    async with two(nats, tmp_path, bad) as (here, good, _):
        client, broken = here.client(), 0
        for name in TRAJECTORIES[:12]:
            try:
                assert await every(client, trajectories=[name], stream=True) == [good.answer]
            except openai.APIError:
                broken += 1
        turns: list[Turn] = await here.published(Turn, 12)
    assert broken == bad.calls == FAILURES, "then it gets no more calls"
    assert [turn.error is not None for turn in turns].count(True) == broken


async def test_a_replica_that_hangs_does_not_take_all_calls(nats: Broker, tmp_path: Path) -> None:
    bad = BadReplica(hangs=True)
    async with two(nats, tmp_path, bad) as (here, good, _):
        client, calls = here.client(), list[asyncio.Task[list[str]]]()
        for name in TRAJECTORIES:
            before = bad.calls
            calls.append(asyncio.create_task(every(client, trajectories=[name])))
            await eventually(lambda before=before: _settled(calls[-1], bad, before))
        stuck = [call for call in calls if not call.done()]
        assert len(stuck) == bad.calls == 2
        assert all(call.result() == [good.answer] for call in calls if call not in stuck)
        for call in stuck:
            call.cancel()
        await asyncio.gather(*stuck, return_exceptions=True)


async def _settled(call: asyncio.Task[list[str]], bad: BadReplica, before: int) -> bool:
    return call.done() or bad.calls > before


async def test_a_replica_that_comes_back_gets_calls_again(nats: Broker, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    good, back = well(), BadReplica()
    async with (
        serving(good) as good_url,
        scene(nats, tmp_path, engine_url=f"http://127.0.0.1:{port},{good_url}") as here,
    ):
        client = here.client()
        assert await every(client) == [good.answer] * 12
        assert await here.app.notes["engines"]() == f"engine_local: 1 of 2 away (127.0.0.1:{port})"
        async with listening(back, port):

            async def asked() -> bool:
                await every(client, 2)
                return back.calls > 0

            await eventually(asked)


async def test_an_engine_without_any_replica_falls_back_as_one_that_is_away(
    nats: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY_OF_PROVIDER", "provider-key")
    provider = FakeProvider("provider-key")
    ports = free_ports(2)
    away = ",".join(f"http://127.0.0.1:{port}" for port in ports)
    async with providing(provider) as url:
        upstream = UpstreamSettings(name="p", base_url=url, api_key_env="KEY_OF_PROVIDER", models={"*": "big-model"})
        async with scene(nats, tmp_path / "with", engine_url=away, upstreams=[upstream]) as here:
            assert await every(here.client(), 3) == [provider.answer] * 3
    async with scene(nats, tmp_path / "without", engine_url=away) as here:
        for _ in range(3):
            with pytest.raises(openai.InternalServerError, match="none of its 2 replicas answers") as failed:
                await ask(here.client(), HI)
            assert (failed.value.status_code, failed.value.code) == (502, "engine_unavailable")
        assert "2 of 2 away" in str(await here.app.notes["engines"]())


ROLES = [f"role{number}" for number in range(10)]


@asynccontextmanager
async def two_engines() -> AsyncIterator[tuple[FakeEngine, FakeEngine, list[dict[str, Any]]]]:
    """One serves ten roles on its one base model, the other one all others; and their entries in the settings."""
    resident = {version(1, role).name for role in (*ROLES, "sales")}
    small, rest = FakeEngine(set(resident), answer="small"), FakeEngine(set(resident), answer="rest")
    async with serving(small) as small_url, serving(rest) as rest_url:
        mode = "processed_logprobs"
        yield (
            small,
            rest,
            [
                {"name": "small", "kind": "vllm", "urls": [small_url], "roles": ROLES, "logprobs_mode": mode},
                {"name": "rest", "kind": "engine_local", "urls": [rest_url], "roles": ["*"]},
            ],
        )


async def answers(here: Scene, roles: list[str]) -> dict[str, str]:
    client, got = here.client(), dict[str, str]()
    for role in roles:
        answer = await client.chat.completions.create(model=role, messages=HI, temperature=0.5)
        got[role] = str(answer.choices[0].message.content)
    return got


async def knows_all_roles(here: Scene) -> bool:
    names = {model.id async for model in here.client().models.list()}
    return names >= {*ROLES, "sales"}


async def test_ten_roles_are_served_by_one_engine_and_another_by_a_second(nats: Broker, tmp_path: Path) -> None:
    async with two_engines() as (_, rest, entries), scene(nats, tmp_path, engines=entries) as here:
        await put_routes(here.bus, **dict.fromkeys((*ROLES, "sales"), 1))
        await eventually(lambda: knows_all_roles(here))
        assert await answers(here, [*ROLES, "sales"]) == dict.fromkeys(ROLES, "small") | {"sales": "rest"}
        turns = {turn.role: turn for turn in await here.published(Turn, 11)}
        assert [turns[role].engine.name for role in (*ROLES, "sales")] == ["small"] * 10 + ["rest"]
        assert turns["role0"].trainable.ok, "the setting of its engine says what its log-probabilities are"
        assert turns["sales"].trainable.reason == "unknown_logprobs"
        async with http_client() as http:
            body, asked = {"model": "sales", "max_tokens": 1, "messages": HI}, len(rest.asked)
            counted = await http.post(f"{here.url}/v1/messages/count_tokens", json=body)
        assert (counted.headers["x-ratchet-count"], len(rest.asked)) == ("exact", asked + 1)


async def test_a_role_moves_to_another_engine_by_the_settings(nats: Broker, tmp_path: Path) -> None:
    async with two_engines() as (_, _, [small, rest]):
        moved = [{**small, "roles": [*ROLES[1:], "sales"]}, rest]
        for entries, expected in (([small, rest], ["small", "small", "rest"]), (moved, ["rest", "small", "small"])):
            async with scene(nats, tmp_path, engines=entries) as here:
                await put_routes(here.bus, **dict.fromkeys((*ROLES, "sales"), 1))
                await eventually(lambda here=here: knows_all_roles(here))
                assert list((await answers(here, ["role0", "role1", "sales"])).values()) == expected


async def test_a_role_that_no_engine_serves_is_an_error_that_names_the_setting(nats: Broker, tmp_path: Path) -> None:
    async with two_engines() as (_, _, [small, _]), scene(nats, tmp_path, engines=[small]) as here:
        words = f"no engine serves the role {ROLE}: .*RATCHET_ENGINES"
        with pytest.raises(openai.InternalServerError, match=words) as failed:
            await ask(here.client(), HI)
        assert (failed.value.status_code, failed.value.code) == (502, "engine_unavailable")
