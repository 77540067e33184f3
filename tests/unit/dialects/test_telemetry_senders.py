"""Every public SDK that sends telemetry says the same of the same run: recorded bytes, from wire to trajectory."""

from __future__ import annotations

import json
from collections import defaultdict

import pytest

from ratchet.core.contract import Spans, Trajectory
from ratchet.core.rules.chat import chat_messages
from ratchet.dialects.telemetry.span_tree import calls_of, tree_of
from ratchet.gateway.span_records import take_spans
from tests.support.telemetry import SEALER, VERSIONS, folded, job, received, sent

WITHOUT_CONTENT = "conventions_without_content"
SENDERS = sorted(json.loads(VERSIONS.read_text()))
ANSWER = "All orders are on their way."
SYSTEM, ASKED = (
    "You answer customers of a shop.",
    "task-parallel: look up K47 and K48 at once, then say where they are.",
)


def runs_of(name: str) -> list[list[Spans]]:
    """The parts of each trace that a sender sent."""
    traces: defaultdict[str, list[Spans]] = defaultdict(list)
    for batch in received(sent(name)):
        traces[batch.trace_id].append(batch)
    return list(traces.values())


def trajectories_of(name: str) -> list[Trajectory]:
    return [made for parts in runs_of(name) for made in folded(parts).assembled.trajectories]


@pytest.mark.parametrize("name", [name for name in SENDERS if name != WITHOUT_CONTENT])
def test_sender_has_its_conversation_tools_usage_and_results(name: str) -> None:
    made = [each for each in trajectories_of(name) if each.task_context.instructions == SYSTEM]
    assert made
    for trajectory in made:
        chat = chat_messages(trajectory)
        assert [message["role"] for message in chat] == ["system", "user", "assistant", "tool", "tool", "assistant"]
        assert [message["content"] for message in chat[:2]] == [SYSTEM, ASKED]
        assert [json.loads(call["function"]["arguments"]) for call in chat[2]["tool_calls"]] == [
            {"order_id": "K47"},
            {"order_id": "K48"},
        ]
        assert [message["content"] for message in chat[3:]] == ["K47-packed", "K48-shipped", ANSWER]
        offered = [tool["function"] for tool in trajectory.task_context.tools or ()]
        assert [tool["name"] for tool in offered] == ([] if name == "older_events" else ["look_up"])
        assert all(tool["parameters"]["required"] == ["order_id"] for tool in offered)
        assert (trajectory.metadata.total_tokens, trajectory.metadata.source) == (58, "telemetry")
        assert trajectory.metadata.model.startswith(("gpt-4.1-mini", "claude"))


@pytest.mark.parametrize("name", SENDERS)
def test_no_span_of_a_sender_is_refused(name: str) -> None:
    assert [take_spans(job(body, signal), SEALER).refused for signal, body in sent(name)] == [{} for _ in sent(name)]


def test_calls_without_content_are_counted_and_make_no_turns() -> None:
    counted = [calls_of(tree_of(parts), frozenset()) for parts in runs_of(WITHOUT_CONTENT)]
    assert [(calls.silent, len(calls.whole)) for calls in counted] == [(2, 0), (2, 0)]
    assert sum(take_spans(job(body, signal), SEALER).silent for signal, body in sent(WITHOUT_CONTENT)) == 4


def test_agents_sessions_and_users_are_named() -> None:
    (langfuse,) = trajectories_of("langfuse_sdk")
    assert (langfuse.agent_id, langfuse.session_id) == ("clerk", "chat-7")
    for name in ("genai_langchain", "openinference_langchain", "traceloop_langchain", "vercel", "vercel_legacy"):
        assert [each.agent_id for each in trajectories_of(name)] == ["clerk"]
    assert {each.agent_id for each in trajectories_of("conventions_in_spans")} == {"shop"}


def test_sub_agents_are_linked_to_the_agent_that_called_them() -> None:
    main, *others = trajectories_of("pydantic_ai_logfire")
    assert (main.agent_id, main.parent_trajectory_id) == ("clerk", None)
    assert [(each.agent_id, each.subordinate_profile) for each in others] == [("warehouse", "warehouse")] * 2
    assert {each.parent_trajectory_id for each in others} == {main.trajectory_id}


def test_tool_calls_have_the_time_of_their_spans() -> None:
    for name in ("genai_langchain", "pydantic_ai_logfire", "vercel", "vercel_legacy"):
        main = trajectories_of(name)[0]
        took = [entry.result.execution_time_ms for entry in main.turns if entry.action.type == "tool_call"]
        assert all(took)
        assert len(took) == 2
