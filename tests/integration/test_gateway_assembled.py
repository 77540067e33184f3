"""An agent that only sets a base url: its streamed, tool-calling run becomes a trajectory."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

from ratchet.core.contract import Trajectory
from ratchet.core.rules.chat import chat_messages
from ratchet.core.service.settings import SharedSettings
from ratchet.trajectory_collector.app import build as build_collector
from ratchet.trajectory_collector.settings import Settings as CollectorSettings
from tests.support.fake_engine import TOOLS, tool_call
from tests.support.gateway_scene import ROLE, Scene, scene
from tests.support.running import http_client, prepared_objects, prepared_warehouse, running_app
from tests.support.servers import Broker

CALLED = [tool_call("call_x")]


async def test_a_run_known_only_by_its_base_url_is_assembled(
    shared_settings: SharedSettings, nats: Broker, tmp_path: Path
) -> None:
    trajectory = str(uuid.uuid4())
    prepared_objects(shared_settings)
    async with (
        prepared_warehouse(shared_settings),
        scene(nats, tmp_path) as here,
        running_app(build_collector(CollectorSettings(shared=shared_settings, linger_s=0.01))),
    ):
        talk = await played(here, trajectory)
        async with http_client() as http:
            end = {"outcome": {"status": "success"}, "task": {"task_id": "t-1", "instructions": ""}}
            answer = await http.post(f"{here.url}/t/{trajectory}/v1/trajectories/{trajectory}/end", json=end)
            assert answer.status_code == 202
        (made,) = await here.published(Trajectory, 1)
        assert (made.trajectory_id, made.role, len(made.turns)) == (trajectory, ROLE, 2)
        assert made.policy is not None
        assert (made.policy.version, made.policy.arm) == (1, "stable")
        assert [turn.action.type for turn in made.turns] == ["tool_call", "response"]
        assert [message["role"] for message in chat_messages(made)] == [message["role"] for message in talk]
        assert chat_messages(made)[-1]["content"] == here.engine.answer


async def played(here: Scene, trajectory: str) -> list[Any]:
    """One streamed call that calls a tool, one that answers; returns the whole chat."""
    client = here.client(base_url=f"{here.url}/t/{trajectory}/v1")
    talk: list[Any] = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "where is K47?"}]
    here.engine.tool_calls = CALLED
    async with client.chat.completions.stream(model=ROLE, messages=talk, tools=TOOLS) as stream:
        message = (await stream.get_final_completion()).choices[0].message
    talk += [
        {"role": "assistant", "content": message.content, "tool_calls": CALLED},
        {"role": "tool", "tool_call_id": "call_x", "content": "sent on Monday"},
    ]
    here.engine.tool_calls = None
    async with client.chat.completions.stream(model=ROLE, messages=talk, tools=TOOLS) as stream:
        answer = (await stream.get_final_completion()).choices[0].message
    return [*talk, {"role": "assistant", "content": answer.content}]
