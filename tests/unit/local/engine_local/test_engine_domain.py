"""The engine's rules: requests, control tokens, prefixes, admission, eviction."""

import pytest
from hypothesis import given, strategies as st
from structlog.testing import capture_logs

from ratchet.bus.message import JsonObject
from ratchet.core.chat_templates.control_tokens import MARKS, ControlTokens, Marks
from ratchet.core.chat_templates.messages import Form, template_messages
from ratchet.core.chat_templates.tool_formats import Reply
from ratchet.core.errors import RatchetError
from ratchet.core.service.problems import http_error
from ratchet.local.engine_local.domain.answers import Completion, Given, Stamp, text_answer
from ratchet.local.engine_local.domain.prefix_index import BLOCK, PrefixIndex
from ratchet.local.engine_local.domain.requests import AnswerOptions, Sampling, read_chat, read_completion
from ratchet.local.engine_local.registry import Entry, Registry, to_evict
from ratchet.local.engine_local.torch_worker import admissible

ASKED: list[JsonObject] = [{"role": "user", "content": "hi"}]


def chat(**members: object) -> JsonObject:
    return {"model": "a@1-12345678", "messages": ASKED, **members}


def test_everything_that_is_honoured_is_read() -> None:
    call = read_chat(
        chat(temperature=0.7, top_p=0.9, top_k=5, seed=3, max_tokens=9, stop="x", logprobs=True, return_token_ids=True)
    )
    assert call.sampling == Sampling(0.7, 0.9, 5, 3, 9, ("x",))
    assert (call.options.logprobs, call.options.token_ids) == (True, True)


def test_a_disabled_top_k_is_no_top_k() -> None:
    assert read_chat(chat(top_k=-1)).sampling.top_k == 0


def test_neutral_values_of_unsupported_members_are_taken() -> None:
    neutral = chat(n=1, presence_penalty=0, stream=False, bad_words=[], tool_choice="auto", user="u-1")
    assert read_chat(neutral).messages == ASKED


def test_tools_are_hidden_when_the_agent_wants_no_calls() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert read_chat(chat(tools=tools)).tools == tools
    assert read_chat(chat(tools=tools, tool_choice="none")).tools == []


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("n", 0),
        ("n", 129),
        ("stream", "yes"),
        ("stream_options", {"include_usage": True}),
        ("stream_options", "all"),
        ("presence_penalty", 2.5),
        ("frequency_penalty", "x"),
        ("repetition_penalty", 0),
        ("min_p", 1.1),
        ("min_tokens", 5),
        ("logit_bias", {"5": 1}),
        ("response_format", {"type": "xml"}),
        ("tool_choice", "required"),
        ("guided_regex", 3),
        ("guided_decoding_backend", "outlines"),
        ("allowed_token_ids", [5]),
        ("bad_words", ["no"]),
        ("stop_token_ids", ["x"]),
        ("stop_token_ids", 5),
        ("vllm_xargs", {"processor": "mine"}),
        ("temperature", -1),
        ("temperature", "hot"),
        ("temperature", True),
        ("top_p", 0),
        ("top_p", 1.1),
        ("top_k", 1.5),
        ("max_tokens", 0),
        ("seed", "x"),
        ("stop", [1]),
        ("stop", [""]),
        ("stop", ["x"] * 17),
        ("messages", []),
        ("messages", "hi"),
        ("messages", ["hi"]),
        ("tools", {"a": 1}),
        ("model", ""),
        ("model", 3),
        ("logprobs", 1),
        ("top_logprobs", 21),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(member: str, value: object) -> None:
    with pytest.raises(RatchetError) as refused:
        read_chat(chat(**{member: value}))
    assert (http_error(refused.value).status, refused.value.param) == (400, member)


@pytest.mark.parametrize("prompt", [None, [], ["text"], [1, "x"], [-1], [True]])
def test_a_completion_needs_one_prompt(prompt: object) -> None:
    with pytest.raises(RatchetError):
        read_completion({"model": "a", "prompt": prompt})


def test_a_completion_takes_text_or_token_ids() -> None:
    assert read_completion({"model": "a", "prompt": "once"}).prompt == "once"
    assert read_completion({"model": "a", "prompt": [1, 2], "logprobs": 0}).options.logprobs


def test_penalties_and_bounds_are_read() -> None:
    sampling = read_chat(
        chat(min_p=0.1, presence_penalty=0.5, frequency_penalty=-1, repetition_penalty=1.2, stop_token_ids=[7, 8])
    ).sampling
    assert (sampling.min_p, sampling.stop_token_ids) == (0.1, (7, 8))
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (0.5, -1.0, 1.2)
    assert sampling.penalised
    assert not Sampling().penalised


def test_a_hidden_control_token_comes_back_as_a_part_of_its_own() -> None:
    message = {"role": "tool", "content": "a<|end|>b", "deep": [{"<|end|>": "<|call|>"}]}
    marks = Marks(ControlTokens(["<|end|>", "<|call|>"]), message)
    hidden = marks.hide(message)
    assert "<|" not in str(hidden)
    assert marks.parts("<|tool|>" + hidden["content"] + "<|end|>") == [
        ("<|tool|>a", False),
        ("<|end|>", True),
        ("b<|end|>", False),
    ]


def test_a_mark_is_never_a_character_that_somebody_has_written() -> None:
    text = chr(MARKS[0]) + "<|end|>"
    marks = Marks(ControlTokens(["<|end|>"]), text)
    assert marks.parts(marks.hide(text)) == [(chr(MARKS[0]), False), ("<|end|>", True)]


@given(st.text("<|end>x", max_size=30))
def test_what_is_left_without_control_tokens_holds_none(text: str) -> None:
    control = ControlTokens(["<|end|>", "<|"])
    assert not control.within(control.without(text))


def test_text_offsets_of_a_long_answer_are_sums() -> None:
    done = Completion(list(range(4)), [0.0] * 4, "length", 1)
    stamp, options = Stamp("cmpl-1", 0, "m"), AnswerOptions(logprobs=True)
    given = Given(stamp, [1], options, lambda token: "ab"[: token % 3])
    answer = text_answer(given, [done], [Reply("x")])
    assert answer["choices"][0]["logprobs"]["text_offset"] == [0, 0, 1, 3]


def test_text_parts_become_one_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert template_messages([{"role": "user", "content": parts}], Form())[0]["content"] == "ab"


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": [{"type": "image_url", "image_url": {}}]},
        {"role": "user", "content": 5},
        {"role": "wizard", "content": "hi"},
        {"content": "hi"},
        {"role": "assistant", "tool_calls": [{"id": "1"}]},
        {"role": "assistant", "tool_calls": "x"},
    ],
)
def test_messages_that_cannot_be_rendered_are_refused(message: JsonObject) -> None:
    with pytest.raises(RatchetError):
        template_messages([message], Form())


def test_arguments_become_objects_only_for_templates_that_need_them() -> None:
    message = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": '{"a": 1}'}}]}
    as_text = template_messages([message], Form())[0]["tool_calls"][0]["function"]
    as_object = template_messages([message], Form(arguments_as_objects=True))[0]["tool_calls"][0]["function"]
    assert (as_text["arguments"], as_object["arguments"]) == ('{"a": 1}', {"a": 1})


def test_arguments_that_nest_too_deeply_stay_text() -> None:
    deep = '{"a":' * 100_000 + "1" + "}" * 100_000
    message = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": deep}}]}
    shaped = template_messages([message], Form(arguments_as_objects=True))[0]
    assert shaped["tool_calls"][0]["function"]["arguments"] == deep


ids = st.lists(st.integers(0, 2), max_size=80)


@given(st.lists(ids, max_size=6), ids)
def test_a_match_is_a_prefix_and_leaves_a_token_to_compute(known: list[list[int]], prompt: list[int]) -> None:
    index: PrefixIndex[int] = PrefixIndex(400)
    for number, one in enumerate(known):
        index.add(one, number)
    match = index.longest_prefix(prompt)
    if match is not None:
        assert BLOCK <= match.length < len(prompt)
        assert list(match.stored.ids[: match.length]) == prompt[: match.length]


@given(st.lists(st.integers(0, 5), min_size=BLOCK, max_size=80), st.lists(st.integers(0, 5), min_size=1, max_size=20))
def test_a_continued_sequence_matches_whole(known: list[int], more: list[int]) -> None:
    index: PrefixIndex[str] = PrefixIndex(1000)
    index.add(known, "kept")
    match = index.longest_prefix(known + more)
    assert match is not None
    assert (match.length, match.stored.payload) == (len(known), "kept")


def test_the_least_recently_used_sequence_leaves_first() -> None:
    index: PrefixIndex[str] = PrefixIndex(3 * BLOCK)
    first, second, third, fourth = ([number] * BLOCK for number in range(4))
    for name, one in (("first", first), ("second", second), ("third", third)):
        index.add(one, name)
    assert index.longest_prefix([*first, 9])
    index.add(fourth, "fourth")
    assert index.longest_prefix([*second, 9]) is None
    assert [bool(index.longest_prefix([*one, 9])) for one in (first, third, fourth)] == [True] * 3
    assert index.tokens == 3 * BLOCK


def test_a_longer_conversation_replaces_its_beginning() -> None:
    index: PrefixIndex[str] = PrefixIndex(1000)
    index.add([1] * 20, "short")
    longer = [1] * 20 + [2] * 20
    index.add(longer, "long", index.longest_prefix(longer))
    assert index.tokens == 40
    match = index.longest_prefix([1] * 21)
    assert match is not None
    assert match.stored.payload == "long"


@pytest.mark.parametrize(
    ("new_tokens", "free", "budget", "count"),
    [
        ([10, 10, 10], 8, 100, 3),
        ([10, 60, 10], 8, 100, 1),
        ([500], 8, 100, 1),
        ([10, 10], 1, 100, 1),
        ([10], 0, 100, 0),
        ([40, 0, 0, 0, 30], 8, 60, 4),
    ],
)
def test_joining_stays_within_rows_and_padded_tokens(new_tokens: list[int], free: int, budget: int, count: int) -> None:
    assert admissible(new_tokens, free, budget) == count


def resident(name: str, used_at: float, own_bytes: int = 0, users: int = 0) -> Entry[str]:
    return Entry(name, "digest", "s3://", name, 0.0, used_at, own_bytes, users)


def test_least_recently_used_policies_make_room_but_busy_ones_stay() -> None:
    residents = [resident("a", 1.0, users=1), resident("b", 2.0), resident("c", 3.0, users=2), resident("d", 4.0)]
    assert to_evict(residents, 5) == []
    assert to_evict(residents, 4) == ["b"]
    assert to_evict(residents, 3) == ["b", "d"]
    assert to_evict(residents, 2) is None


def test_policies_leave_until_the_bytes_of_new_one_fit_but_busy_ones_stay() -> None:
    residents = [
        resident("a", 1.0, users=1, own_bytes=900),
        resident("b", 2.0, own_bytes=10),
        resident("c", 3.0, own_bytes=200),
        resident("d", 4.0, own_bytes=200),
    ]
    assert to_evict(residents, 9, surplus_bytes=0) == []
    assert to_evict(residents, 9, surplus_bytes=11) == ["b", "c"]
    assert to_evict(residents, 4, surplus_bytes=-500) == ["b"]
    assert to_evict(residents, 9, surplus_bytes=5000) == ["b", "c", "d"]
    assert to_evict(residents[1:], 9, surplus_bytes=5000) == ["b", "c"]


def test_a_registry_counts_the_bytes_of_what_it_keeps() -> None:
    forgotten: list[str] = []
    registry: Registry[str] = Registry(9, forgotten.append, most_bytes=1000)
    assert registry.add(resident("a", 400, 400)) == []
    assert registry.add(resident("b", 600, 600)) == []
    assert registry.add(resident("c", 1, 1)) == ["a"] == forgotten
    assert registry.add(resident("d", 399, 399)) == []
    assert registry.add(resident("larger than all room", 5000, 5000)) == ["c", "d"]


def test_two_policies_that_are_larger_than_the_bytes_stay_and_log_shows_it() -> None:
    registry: Registry[str] = Registry(9, print, most_bytes=1000)
    with capture_logs() as logs:
        assert registry.add(resident("stable", 900, 900)) == []
        assert logs == []
        assert registry.add(resident("canary", 901, 901)) == []
    assert [one.name for one in registry] == ["stable", "canary"]
    assert [(one["log_level"], one["policies"], one["taken"]) for one in logs] == [
        ("warning", ["canary", "stable"], 1801)
    ]
    assert registry.add(resident("next", 902, 902)) == ["stable"]
