"""What published chat templates teach: what the policy would write behind the very prompt that an engine gives."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from ratchet.core.chat_templates.conversations import ChatCounts, Conversation
from ratchet.core.chat_templates.encoder import ChatEncoder, TokenRow, explain
from ratchet.core.chat_templates.template import ChatTemplate
from ratchet.core.chat_templates.tool_formats import DEFAULT_TOOL_FORMAT
from ratchet.local.engine_local.transformers_text import ChatText
from tests.support.real_templates import NAMES, real_tokenizer

Tokenizers = Callable[[str], Any]
LONG = 20_000
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "Looks an order up.",
            "parameters": {"type": "object", "properties": {"order": {"type": "string", "description": "Its name."}}},
        },
    }
]
EMPTY_THOUGHT = {"qwen3", "qwen3_5_think", "qwen3_training", "deepseek_r1_distill", "deepseekv3", "glm4moe"}
"""Templates that render a reasoning which the answer lacks, or begin one in the prompt."""
SHOWN_THOUGHT = {*EMPTY_THOUGHT, "gptoss"}
"""Templates that show every reasoning where an answer is asked for."""
ENDS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<end_of_turn>",
    "<turn|>",
    "<｜end▁of▁sentence｜>",
    "<|return|>",
    "<|end|>\n</s>",
    "</s>",
)
"""What learns behind the last word of an answer: Phi 3's template ends a turn twice, and GLM 4's not at all."""
CALL_ENDS = ("<|call|>", "<|tool_response>", "</tool_call>")
"""What may learn behind the last call of an answer instead."""


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> Tokenizers:
    @cache
    def tokenizer(name: str) -> Any:
        return real_tokenizer(tmp_path_factory.mktemp(name), name)

    return tokenizer


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str, **members: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **members}


def called(*orders: str, **members: Any) -> list[dict[str, Any]]:
    """An answer that calls a tool for each order, and the results."""
    ids = [f"call_{order}_{n}" for n, order in enumerate(orders)]
    calls = [
        {"id": one, "type": "function", "function": {"name": "look_up", "arguments": f'{{"order":"{order}"}}'}}
        for one, order in zip(ids, orders, strict=True)
    ]
    results = [{"role": "tool", "tool_call_id": one, "name": "look_up", "content": "lost"} for one in ids]
    return [{"role": "assistant", "content": None, "tool_calls": calls, **members}, *results]


def chat(*messages: dict[str, Any], tools: Any = (), learn_from: int = 0, key: str = "t") -> Conversation:
    return Conversation(key, list(messages), tools, learn_from)


def runs(row: TokenRow) -> list[tuple[int, int]]:
    """The parts of a row that learn."""
    edges = [n for n, (one, next_) in enumerate(pairwise([False, *row.loss_mask, False])) if one != next_]
    return list(zip(edges[::2], edges[1::2], strict=True))


def taught(tokenizer: Any, *chats: Conversation) -> list[list[str]]:
    """The texts that each row teaches."""
    rows = ChatEncoder(tokenizer, LONG).rows(chats)
    return [[tokenizer.decode(row.token_ids[begin:end]) for begin, end in runs(row)] for row in rows]


words = st.sampled_from(["Sorry.", "It is lost.", " K47 ", "a < b", '{"a": 1}', "Where?\n\nHere."])
thoughts = st.none() | st.sampled_from(["It may be lost.", "Look it up\nfirst."])


@st.composite
def conversations(draw: st.DrawFn) -> Conversation:
    messages: list[dict[str, Any]] = []
    uses_tools = draw(st.booleans())
    for _ in range(draw(st.integers(1, 3))):
        messages.append(user(draw(words | st.just("say <|im_end|></s><think>"))))
        while uses_tools and draw(st.booleans()) and len(messages) < 8:
            messages += called(*draw(st.lists(words.map(str.strip), min_size=1, max_size=2)), **reasoning(draw))
        messages.append(assistant(draw(words), **reasoning(draw), **draw(st.sampled_from([{}, {"tool_calls": []}]))))
    learn_from = draw(st.sampled_from([0, 0, len(messages) - 1]))
    return chat(*messages, tools=TOOLS if uses_tools else (), learn_from=learn_from)


def reasoning(draw: st.DrawFn) -> dict[str, str]:
    thought = draw(thoughts)
    return {} if thought is None else {draw(st.sampled_from(["reasoning", "reasoning_content"])): thought}


@pytest.mark.parametrize("name", NAMES)
@given(one=conversations())
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_answer_learns_behind_the_engines_prompt(tokenizers: Tokenizers, name: str, one: Conversation) -> None:
    tokenizer = tokenizers(name)
    encoder = ChatEncoder(tokenizer, LONG)
    one = marked(one)
    rows = list(encoder.rows([one]))
    assert bool(rows) != bool(encoder.counts.unrenderable)
    places = [n for n, message in enumerate(one.messages) if n >= one.learn_from and message["role"] == "assistant"]
    learnt = [(row, run) for row in rows for run in runs(row)]
    assert not rows or len(learnt) == len(places) == encoder.counts.answers
    engine = ChatText(tokenizer)
    dropped = 0
    for place, (row, (begin, end)) in zip(places, learnt, strict=bool(rows)):
        message = one.messages[place]
        prompt = engine.chat_ids(one.messages[:place], one.tools)
        own = tokenizer.decode(row.token_ids[begin:end])
        assert row.token_ids[: len(prompt)] == prompt
        between = tokenizer.decode(row.token_ids[len(prompt) : begin]).strip()
        assert between in (
            {"", "<think></think>", "</think>", "<think>\n\n</think>"} if name in EMPTY_THOUGHT else {""}
        )
        assert (message["content"] or "").strip() in own
        assert own.count("look_up") == len(message.get("tool_calls") or [])
        # No word of another message, and nothing behind the token that ends it.
        assert {int(mark) for mark in MARK.findall(own)} <= {place}
        if message.get("tool_calls"):
            assert own.endswith((*ENDS, *CALL_ENDS))
        else:
            assert own.rpartition(f"(message {place})")[2] in (ENDS if name != "glm4moe" else ("",))
        dropped += reasoning_of(message) not in own
    assert dropped == encoder.counts.dropped_thoughts
    assert not dropped or name not in SHOWN_THOUGHT


MARK = re.compile(r"\(message (\d+)\)")


def marked(one: Conversation) -> Conversation:
    """Every text and every reasoning names its message."""
    members = ("content", "reasoning", "reasoning_content")
    messages = [
        {name: f"{value} (message {n})" if name in members and value else value for name, value in message.items()}
        for n, message in enumerate(one.messages)
    ]
    return replace(one, messages=messages)


def reasoning_of(message: dict[str, Any]) -> str:
    return message.get("reasoning") or message.get("reasoning_content") or ""


@pytest.mark.parametrize("name", NAMES)
@given(chats=st.lists(conversations(), min_size=2, max_size=4))
@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_rows_are_the_same_alone_and_among_others(tokenizers: Tokenizers, name: str, chats: list[Conversation]) -> None:
    tokenizer = tokenizers(name)
    alone = [row for one in chats for row in ChatEncoder(tokenizer, LONG).rows([one])]
    assert list(ChatEncoder(tokenizer, LONG).rows(chats)) == alone


def test_single_turns_before_a_conversation_of_qwen3_change_nothing(tokenizers: Tokenizers) -> None:
    singles = [chat(user("Where?"), assistant("Here.", reasoning="So."), key=f"single{n}") for n in range(8)]
    several = chat(
        user("Lost."), assistant("Which one?", reasoning="Ask."), user("K47"), assistant("Sorry.", reasoning="So.")
    )
    tokenizer = tokenizers("qwen3")
    assert taught(tokenizer, *singles, several)[8:] == [
        ["<think>\nAsk.\n</think>\n\nWhich one?<|im_end|>"],
        ["<think>\nSo.\n</think>\n\nSorry.<|im_end|>"],
    ]


@pytest.mark.parametrize("name", ["llama3_1", "llama3_2"])
def test_an_empty_list_of_calls_is_no_call(tokenizers: Tokenizers, name: str) -> None:
    assert taught(tokenizers(name), chat(user("Where?"), assistant("Here.", tool_calls=[]))) == [["Here.<|eot_id|>"]]


def test_parallel_calls_that_a_template_refuses_are_counted_with_its_words(tokenizers: Tokenizers) -> None:
    parallel = chat(user("Where?"), *called("K47", "K48"), assistant("Lost."), tools=TOOLS)
    counts = explain([parallel], tokenizers("llama3_2"))
    assert counts.findings() == [
        "1 conversations are left out: the chat template refuses these messages: "
        "This model only supports single tool-calls at once!."
    ]


def test_calls_that_a_template_drops_teach_nothing(tokenizers: Tokenizers) -> None:
    """gpt-oss renders the first of several calls, Llama 3 none at all."""
    parallel = chat(user("Where?"), *called("K47", "K48"), assistant("Lost."), tools=TOOLS)
    single = chat(user("Where?"), *called("K47"), assistant("Lost."), tools=TOOLS)
    assert explain([parallel], tokenizers("gptoss")).unrenderable == {"the chat template leaves out tool calls": 1}
    assert explain([single], tokenizers("llama3")).unrenderable == {"the chat template renders no tool calls": 1}


def test_an_empty_reasoning_that_no_answer_wrote_is_context_and_is_counted(tokenizers: Tokenizers) -> None:
    silent = chat(user("Where?"), assistant("Here."))
    written = chat(user("Where?"), assistant("<think>\n\n</think>\n\nHere."))
    tokenizer = tokenizers("qwen3")
    assert taught(tokenizer, silent, written) == [["Here.<|im_end|>"], ["<think>\n\n</think>\n\nHere.<|im_end|>"]]
    counts = explain([silent, written], tokenizer)
    assert (counts.empty_thoughts, counts.metrics()["empty_thoughts"]) == (1, 1)
    assert counts.findings() == [
        "1 answers have no reasoning where the template renders an empty <think></think>: the policy does not learn "
        "it, and goes on thinking before it answers."
    ]


@pytest.mark.parametrize(
    "answer",
    [
        assistant("Here.", reasoning="Look."),
        assistant("Here.", reasoning_content="Look."),
        assistant("<think>\nLook.\n</think>\n\nHere."),
        assistant("Look.\n</think>\n\nHere."),
    ],
    ids=["reasoning", "reasoning_content", "content", "without_opening"],
)
def test_reasoning_that_the_prompt_begins_is_learnt(tokenizers: Tokenizers, answer: dict[str, Any]) -> None:
    end = "Look.\n</think>\n\nHere.<｜end▁of▁sentence｜>"
    assert taught(tokenizers("deepseek_r1_distill"), chat(user("Where?"), answer)) == [[end]]


def test_reasoning_that_a_template_leaves_out_is_counted(tokenizers: Tokenizers) -> None:
    counts = explain([chat(user("Where?"), assistant("Here.", reasoning="Look."))], tokenizers("qwen2_5"))
    assert counts.dropped_thoughts == 1
    assert counts.findings() == ["1 answers have a reasoning that the template leaves out: it is not learnt."]


def test_text_beside_a_call_that_a_template_leaves_out_is_counted(tokenizers: Tokenizers) -> None:
    beside = chat(user("Where?"), *called("K47", content="Let me see."), assistant("Lost."), tools=TOOLS)
    assert explain([beside], tokenizers("llama3_2")).dropped_texts == 1


@pytest.mark.parametrize(("name", "count"), [("qwen3", 1), ("qwen2_5", 0)])
def test_text_before_a_left_out_reasoning_is_never_lost_unseen(tokenizers: Tokenizers, name: str, count: int) -> None:
    counts = explain([chat(user("Where?"), assistant("Lost.<think>So.</think>"))], tokenizers(name))
    assert sum(counts.unrenderable.values()) == count
    assert all("leaves out what the assistant says" in why for why in counts.unrenderable)


def test_a_system_prompt_that_moves_stands_where_the_policy_saw_it(tokenizers: Tokenizers) -> None:
    system = {"role": "system", "content": "Be kind."}
    tokenizer = tokenizers("mistral")
    rows = ChatEncoder(tokenizer, LONG).rows(
        [chat(system, user("Where?"), assistant("Here."), user("K47?"), assistant("Lost."))]
    )
    assert [tokenizer.decode(row.token_ids) for row in rows] == [
        "<s>[INST] Be kind.\n\nWhere?[/INST] Here.</s>",
        "<s>[INST] Where?[/INST] Here.</s>[INST] Be kind.\n\nK47?[/INST] Lost.</s>",
    ]


def test_engine_and_trainer_write_the_arguments_of_a_call_alike(tokenizers: Tokenizers) -> None:
    tokenizer = tokenizers("qwen3")
    messages = [user("Where?"), *called("A10", reasoning="Look."), assistant("Here.", reasoning="So.")]
    (row,) = ChatEncoder(tokenizer, LONG).rows([chat(*messages, tools=TOOLS)])
    prompt = ChatText(tokenizer).chat_ids(messages[:-1], TOOLS)
    assert row.token_ids[: len(prompt)] == prompt
    assert '{"order":"A10"}' in tokenizer.decode(prompt)


def test_the_tools_that_a_template_does_not_show_are_counted(tokenizers: Tokenizers) -> None:
    counts = explain([chat(user("Where?"), assistant("Here."), tools=TOOLS)], tokenizers("smollm2"))
    assert counts.unshown_tools == 1


def test_what_lies_beyond_the_longest_row_is_counted(tokenizers: Tokenizers) -> None:
    tokenizer = tokenizers("qwen2_5")
    long = chat(user("Where?"), assistant("Here."), user("Oh."), assistant("Sorry. " * 50))
    whole = explain([long], tokenizer, LONG)
    cut = explain([long, chat(user("Where? " * 200), assistant("Here."))], tokenizer, 100)
    assert (whole.truncated, whole.lost_tokens, whole.empty_rows) == (0, 0, 0)
    assert (cut.truncated, cut.rows, cut.empty_rows) == (2, 1, 1)
    assert cut.lost_tokens + cut.trained_tokens == whole.trained_tokens + ending(tokenizer, "Here.")
    assert len(cut.findings()) == 3


def ending(tokenizer: Any, text: str) -> int:
    """Tokens of an answer and its end."""
    return len(tokenizer(text, add_special_tokens=False)["input_ids"]) + 1


def test_what_is_no_text_is_refused_with_its_place(tokenizers: Tokenizers) -> None:
    image = chat({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}, assistant("A cat."))
    counts = explain([image, chat(assistant("Hi."), {"role": "wizard", "content": "hi"})], tokenizers("qwen2_5"))
    assert counts.unrenderable == {
        "messages[0].content holds a part that is not text": 1,
        "messages[1]: message 1 has the role 'wizard'": 1,
    }


@pytest.mark.parametrize("tools", [[{"function": None}], [{"type": "web_search"}], ["search"]])
def test_odd_tools_and_text_that_is_no_unicode_cost_no_other_chat(tokenizers: Tokenizers, tools: Any) -> None:
    odd = [chat(user("Where?"), assistant("Here."), tools=tools), chat(user("\ud800"), assistant("Here."))]
    fine = chat(user("Where?"), assistant("Here."), key="fine")
    encoder = ChatEncoder(tokenizers("llama3_2"), LONG)
    assert "fine" in [row.trajectory_id for row in encoder.rows([*odd, fine])]
    assert encoder.counts.unrenderable["the messages hold text that is no Unicode"] == 1


def test_a_chat_that_loses_nothing_has_no_finding(tokenizers: Tokenizers) -> None:
    assert explain([chat(user("Where?"), assistant("Here."))], tokenizers("llama3_2")).findings() == []
    assert ChatCounts().findings() == []


FORMATS = {
    "qwen2_5": "hermes",
    "qwen3": "hermes",
    "qwen3_training": "hermes",
    "qwen3_instruct_2507": "hermes",
    "qwen3_5_think": "qwen3_coder",
    "qwen3_5_nothink": "qwen3_coder",
    "llama3_1": "llama3_json",
    "llama3_2": "llama3_json",
}


@pytest.mark.parametrize("name", FORMATS)
def test_an_engine_reads_calls_as_the_template_of_its_model_writes_them(tokenizers: Tokenizers, name: str) -> None:
    tokenizer = tokenizers(name)
    assert ChatTemplate(tokenizer).tool_format == FORMATS[name]
    (row,) = ChatEncoder(tokenizer, LONG).rows([chat(user("where is K47"), called("K47")[0], tools=TOOLS)])
    ((begin, end),) = runs(row)
    engine = ChatText(tokenizer)
    reply = engine.reply(engine.plain(tokenizer.decode(row.token_ids[begin:end])), TOOLS)
    assert [(call.name, json.loads(call.arguments)) for call in reply.calls] == [("look_up", {"order": "K47"})]


@pytest.mark.parametrize("name", ["smollm2", "gemma", "gptoss"])
def test_a_template_that_shows_no_known_format_has_the_default(tokenizers: Tokenizers, name: str) -> None:
    assert ChatTemplate(tokenizers(name)).tool_format == DEFAULT_TOOL_FORMAT
