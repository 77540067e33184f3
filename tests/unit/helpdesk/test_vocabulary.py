"""The tokenizer loses no text, keeps conversations short, and renders an answer back as the tokens it was made of."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st
from jinja2 import Environment
from tokenizers import Tokenizer

from ratchet_helpdesk.base_model import Shape, random_weights, write_base_model
from ratchet_helpdesk.clerk import CARELESS, EXPERT, play
from ratchet_helpdesk.logbook import DRILL_SEED, drills
from ratchet_helpdesk.vocabulary import CALL, CHAT_TEMPLATE, END, SPECIAL_TOKENS, build_tokenizer
from ratchet_helpdesk.world import HELD_OUT, TOOLS, TRAIN, ChatMessage, draw_tasks, order_book, tool_definitions

TEMPLATE = Environment(autoescape=False).from_string(CHAT_TEMPLATE)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return build_tokenizer()


def render(messages: list[ChatMessage], *, tools: bool = True, generate: bool = False) -> str:
    offered = tool_definitions() if tools else None
    return TEMPLATE.render(messages=messages, tools=offered, add_generation_prompt=generate)


def read_back(text: str) -> list[tuple[str, str]]:
    """The calls in a rendered answer, as the engine's `call_token` format reads them."""
    calls = text.removesuffix(END).split(CALL)[1:]
    return [(name, arguments) for name, _, arguments in (call.partition(" ") for call in calls)]


def test_the_vocabulary_is_the_same_every_time(tokenizer: Tokenizer) -> None:
    assert build_tokenizer().to_str() == tokenizer.to_str()


@given(text=st.text())
def test_any_text_survives(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_every_conversation_survives(tokenizer: Tokenizer) -> None:
    draw = random.Random(0)
    chats = [play(task, CARELESS, draw).messages for split in (TRAIN, HELD_OUT) for task in draw_tasks(split, 300, 0)]
    for text in map(render, chats):
        assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_every_order_number_is_two_tokens(tokenizer: Tokenizer) -> None:
    assert {len(tokenizer.encode(number).ids) for number in order_book()} == {2}


def test_an_order_number_is_the_same_two_tokens_wherever_it_stands(tokenizer: Tokenizer) -> None:
    number = tokenizer.encode("K47").ids
    for text in ("it is order #K47", ' {"order":"K47"}', ' {"order":"K47","price":25}', "stop order #K47 please"):
        ids = tokenizer.encode(text).ids
        assert any(ids[place : place + 2] == number for place in range(len(ids)))


def test_the_longest_conversation_fits_easily(tokenizer: Tokenizer) -> None:
    draw = random.Random(0)
    lengths = [
        len(tokenizer.encode(render(play(task, EXPERT, draw).messages)).ids) for task in draw_tasks(TRAIN, 500, 1)
    ]
    assert max(lengths) < 110


def test_a_role_is_one_token_and_no_word_contains_one(tokenizer: Tokenizer) -> None:
    for token in SPECIAL_TOKENS:
        assert len(tokenizer.encode(token).ids) == 1
    assert all("<|" not in text for text in TOOLS)


def test_a_prompt_is_a_prefix_of_the_prompt_after_its_answer(tokenizer: Tokenizer) -> None:
    messages = play(draw_tasks(TRAIN, 1, 2)[0], EXPERT, random.Random(0)).messages
    spoken = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    for place in spoken:
        before = tokenizer.encode(render(messages[:place], generate=True)).ids
        after = tokenizer.encode(render(messages)).ids
        assert after[: len(before)] == before


@given(name=st.sampled_from(sorted(TOOLS)), arguments=st.text().filter(lambda text: "<|" not in text))
def test_arguments_are_rendered_verbatim_whatever_they_are(name: str, arguments: str) -> None:
    call = {"id": "call_0", "type": "function", "function": {"name": name, "arguments": arguments}}
    text = render([{"role": "assistant", "content": None, "tool_calls": [call]}], tools=False)
    assert read_back(text.removeprefix("<|assistant|>")) == [(name, arguments)]


def test_a_drill_names_its_order_copies_facts_and_tells_no_rule() -> None:
    for task, drill in zip(draw_tasks(TRAIN, 200, DRILL_SEED), drills(200, 0), strict=True):
        opening, find, facts, act = drill.messages
        assert f"#{task.order.number}" in opening["content"]
        assert json.loads(find["tool_calls"][0]["function"]["arguments"]) == {"order": task.order.number}
        arguments = json.loads(act["tool_calls"][0]["function"]["arguments"])
        seen = json.loads(facts["content"]) | {"order": task.order.number}
        assert all(value == seen.get(name, value) for name, value in arguments.items())
    chats = [drill.messages for drill in drills(400, 0)]
    assert {chat[3]["tool_calls"][0]["function"]["name"] for chat in chats} == set(TOOLS)


def test_the_base_model_is_written_as_transformers_expects_it(tmp_path: Path) -> None:
    write_base_model(tmp_path, 0, Shape())
    config = json.loads((tmp_path / "config.json").read_text())
    tokenizer = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert (tmp_path / "model.safetensors").stat().st_size > 2_000_000
    assert (config["tie_word_embeddings"], tokenizer["ratchet_tool_format"]) == (True, "call_token")
    assert config["vocab_size"] == Tokenizer.from_file(str(tmp_path / "tokenizer.json")).get_vocab_size()


def test_weights_follow_from_the_seed() -> None:
    shape = Shape(hidden=8, layers=1, heads=2, feed_forward=16)
    first, again, other = (random_weights(shape, 50, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not np.array_equal(first["model.embed_tokens.weight"], other["model.embed_tokens.weight"])


def test_matrices_are_drawn_three_times_wider_than_usual() -> None:
    weights = random_weights(Shape(), 600, 0)
    assert weights["model.embed_tokens.weight"].std() == pytest.approx(0.06, abs=0.002)
    assert (weights["model.norm.weight"] == 1).all()
