"""What another project recorded of public agent frameworks becomes the conversations that these had."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import pytest

from ratchet.core.contract import Spans, Trajectory
from ratchet.core.rules.chat import chat_messages
from ratchet.dialects.telemetry.otlp import JSON
from ratchet.dialects.telemetry.span_tree import calls_of, tree_of
from ratchet.gateway.span_records import TakenSpans, take_spans
from tests.support.telemetry import SEALER, batches, folded, job
from tests.support.third_party_spans import ended_at, names, request_of

SYSTEM, USER, CALLS, RESULT, ANSWER = "SUCRA"
"""A message of each kind, as conversations are spelled below."""
CONVERSATIONS = {
    "openai_agents_genai_live": {
        "coordinator": "SUCRCRA",
        "math_specialist": "SUCRCRA",
        "research_specialist": "SUCRA",
    },
    "openai_agents_openinference_live": {"coordinator": "SUCRA", "math_specialist": "SUCRRCRA"},
    "otel_genai_convention": {"WeatherAssistant": "UCRRA"},
    "pydantic_ai_live": {"agent": "SUCRA"},
}
ONLY_IN_TEXTS = {"openai_agents_genai_adot": ["UA"] * 3, "smolagents_live": ["SUAAUA"]}
"""Their calls of tools stand in the texts alone."""
WITHOUT_PROMPTS = {"adk_live": 2, "claude_live": 0}
"""Google's ADK and OpenInference of Claude's agent SDK say what was asked in no dialect; how many calls are counted."""


def taken(name: str) -> TakenSpans:
    return take_spans(job(request_of(name), content_type=JSON, received_at=ended_at(name)), SEALER)


def runs_of(name: str) -> list[list[Spans]]:
    traces: defaultdict[str, list[Spans]] = defaultdict(list)
    for batch in batches(taken(name)):
        traces[batch.trace_id].append(batch)
    return list(traces.values())


def trajectories_of(name: str) -> list[Trajectory]:
    return [made for parts in runs_of(name) for made in folded(parts).assembled.trajectories]


def spelled(trajectory: Trajectory) -> str:
    """The kinds of its messages; every result names a call before it."""
    return "".join(_kinds(trajectory))


def _kinds(trajectory: Trajectory) -> Iterator[str]:
    called: set[str] = set()
    kinds = {"system": SYSTEM, "user": USER, "tool": RESULT, "assistant": ANSWER}
    for message in chat_messages(trajectory):
        calls = message.get("tool_calls") or []
        called |= {call["id"] for call in calls}
        assert message["role"] != "tool" or message["tool_call_id"] in called
        yield CALLS if calls else kinds[message["role"]]


@pytest.mark.parametrize("name", names())
def test_no_span_of_a_recording_is_refused(name: str) -> None:
    assert taken(name).refused == {}


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_recorded_agents_have_their_conversations_and_are_linked(name: str) -> None:
    main, *others = trajectories_of(name)
    expected = CONVERSATIONS[name]
    assert {made.agent_id: spelled(made) for made in (main, *others)} == expected
    assert len(others) == len(expected) - 1
    assert (main.agent_id, main.parent_trajectory_id) == (next(iter(expected)), None)
    assert {made.parent_trajectory_id for made in others} <= {main.trajectory_id}
    assert main.metadata.total_tokens


@pytest.mark.parametrize("name", ONLY_IN_TEXTS)
def test_calls_that_only_a_text_tells_of_stay_in_that_text(name: str) -> None:
    assert [spelled(made) for made in trajectories_of(name)] == ONLY_IN_TEXTS[name]


@pytest.mark.parametrize("name", WITHOUT_PROMPTS)
def test_recordings_without_prompts_make_no_trajectory(name: str) -> None:
    counted = [calls_of(tree_of(parts), frozenset()) for parts in runs_of(name)]
    assert sum(len(calls.whole) for calls in counted) == 0
    assert sum(calls.silent for calls in counted) == WITHOUT_PROMPTS[name]


def test_every_recording_is_tested() -> None:
    assert {*CONVERSATIONS, *ONLY_IN_TEXTS, *WITHOUT_PROMPTS} == {*names()}
