"""A canary beside stable on vLLM: two replicas, the gateway's traffic, and the deployer's own decision."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from ratchet.bus.testing import eventually
from ratchet.core.contract import Turn
from ratchet.core.stores.objects import Objects
from tests.support.consuming import messages_of
from tests.support.engine_process import publish_other_weights
from tests.support.live_canary import QUESTIONS, live_canary, running_deployer
from tests.support.servers import RunningServer
from tests.support.vllm_process import RunningVllm


async def test_worse_canary_is_probed_beside_stable_and_rolled_back(
    replicas: list[RunningVllm], nats: RunningServer, tmp_path: Path
) -> None:
    vllm = replicas[0]
    shared = vllm.shared.model_copy(
        update={"nats_url": nats.url, "data_dir": tmp_path / "data", "engine_kind": "vllm", "health_port": 0}
    )
    urls = [replica.url for replica in replicas]
    objects = Objects(shared)
    stable = vllm.publish(dtype="float32", algorithm="live")
    worse = publish_other_weights(objects, vllm.published, tmp_path)
    async with live_canary(shared, urls, tmp_path) as here:
        await here.finish_job(1, stable)
        first = await here.stage_is(1, "stable")
        right = {one: (await here.ask(one)).parse().choices[0].message.content for one in QUESTIONS}

        await here.finish_job(2, worse)
        await here.approve(2)
        candidate = await here.stage_is(2, "canary")
        assert candidate.gate is not None
        for url in urls:  # probed on each, and resident there before any traffic
            figures = candidate.gate["probe"]["evidence"]["replicas"][f"vllm at {url}"]
            assert figures["worst"] < 1e-4
        assert candidate.takes_tools  # vLLM renders a chat with a tool otherwise than one without
        assert all(candidate.name in replica.listed() for replica in replicas)

        ended = await here.play_until_decided(2, lambda question, answer: answer == right[question])
        assert ended.stage == "rolled_back", ended.reason
        assert "e-value" in (ended.reason or "") or "one after the other" in (ended.reason or "")
        assert set(here.arms) == {"stable", "canary"}

        async def back() -> bool:
            return (await here.route()).canary is None

        await eventually(back)

        async def served_by_stable() -> Any:  # the gateway hears of its route a moment after it is written
            answer = await here.ask(QUESTIONS[0])
            return answer if answer.headers["x-ratchet-policy"] == first.name else None

        again = await eventually(served_by_stable)
        assert again.parse().choices[0].message.content == right[QUESTIONS[0]]
        turns = await messages_of(here.bus, Turn)
        # A canary may be decided after few runs: which replica answers one of them is a matter of chance.
        assert {turn.engine.replica for turn in turns} == {url.removeprefix("http://") for url in urls}
        assert {turn.policy.arm for turn in turns} >= {"stable", "canary"}
        assert not [turn.error for turn in turns if turn.error is not None]
    async with running_deployer(shared, urls):  # a sweep of a new deployer frees the engines at once

        async def freed() -> bool:
            return not any([candidate.name in await asyncio.to_thread(replica.listed) for replica in replicas])

        await eventually(freed)
    assert all(first.name in replica.listed() for replica in replicas)
