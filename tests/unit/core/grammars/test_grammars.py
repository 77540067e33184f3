"""Constraints become grammars of exactly their texts; what is hostile is refused within bounds."""

from __future__ import annotations

import json
from typing import Any

import psutil
import pytest
import torch

from ratchet.core.chat_templates.tool_formats import TOOL_FORMATS
from ratchet.core.contract.turn import Constraint
from ratchet.core.errors import Rejected
from ratchet.core.grammars.compiler import Bounds, Compiler, Tokens
from ratchet.core.grammars.sources import CALL_FORMATS
from ratchet.core.grammars.walk import allowed, open_mask
from tests.support.grammars import Language, constraint, tokens_of

SCHEMA = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
TOOLS = [
    {"type": "function", "function": {"name": "send", "parameters": SCHEMA, "strict": True}},
    {"type": "function", "function": {"name": "wait", "parameters": SCHEMA}},
]
SEND, WAIT = '{"id": 7}', '["no schema"]'


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


@pytest.mark.parametrize(
    ("body", "inside", "outside"),
    [
        ({"response_format": {"type": "json_object"}}, ['{"a": [1]}', "{ }"], ["[1]", "{} ", "text", ""]),
        ({"guided_json": SCHEMA}, ['{"id": 7}', '{"id":-70}'], ["{}", '{"id": "7"}', '{"id": 7, "b": 1}']),
        ({"guided_regex": "(yes|no)[0-9]{2}"}, ["yes12", "no34"], ["yes1", "yes123", " yes12"]),
        ({"guided_choice": ["yes", 'a"\\\n\x01b', ""]}, ["yes", 'a"\\\n\x01b', ""], ["no", 'a"']),
        ({"guided_grammar": 'root ::= "a" root | "b"'}, ["b", "aab"], ["a", "ba"]),
        ({"guided_grammar": 'start: "a" b\nb: "c"'}, ["ac"], ["a", "c"]),
        (
            {"response_format": {"type": "structural_tag", "format": {"type": "const_string", "value": "x"}}},
            ["x"],
            ["y", ""],
        ),
    ],
)
def test_a_form_allows_exactly_its_texts(
    compiler: Compiler, tokenizer: Any, body: dict[str, Any], inside: list[str], outside: list[str]
) -> None:
    language = Language(compiler, tokenizer, constraint(**body))
    assert [text for text in inside if not language.holds(text)] == []
    assert [text for text in outside if language.holds(text)] == []


CALLS = {
    "call_token": (f"<|call|>send {SEND}", f"<|call|>wait {WAIT}", "<|call|>send [1]", "<|call|>fly {}"),
    "hermes": (
        f'<tool_call>\n{{"name": "send", "arguments": {SEND}}}\n</tool_call>',
        f'<tool_call>{{"name": "wait", "arguments": {WAIT}}}</tool_call>',
        '<tool_call>{"name": "send", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "fly", "arguments": {}}</tool_call>',
    ),
    "llama3_json": (
        f'{{"name": "send", "parameters": {SEND}}}',
        f'{{"name": "wait", "parameters": {WAIT}}}',
        '{"name": "send", "parameters": [1]}',
        '{"name": "fly", "parameters": {}}',
    ),
    "qwen3_coder": (
        "<tool_call>\n<function=send>\n<parameter=id>7</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=wait>\n<parameter=no>schema</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=send>\n<parameter=id>x</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=fly>\n</function>\n</tool_call>",
    ),
}


def test_every_format_that_is_read_can_be_forced() -> None:
    assert CALLS.keys() == CALL_FORMATS.keys() == TOOL_FORMATS.keys()


@pytest.mark.parametrize("tool_format", list(CALLS))
def test_calls_are_forced_required_or_kept_in_their_form(compiler: Compiler, tokenizer: Any, tool_format: str) -> None:
    send, wait, broken, unknown = CALLS[tool_format]
    between = CALL_FORMATS[tool_format].separator

    def held(**body: Any) -> list[bool]:
        language = Language(compiler, tokenizer, constraint(tools=TOOLS, **body), tool_format)
        return [
            language.holds(text) for text in (send, wait, send + between + wait, f"hi {send}", "hi", broken, unknown)
        ]

    assert held(tool_choice=named("send")) == [True, False, False, False, False, False, False]
    assert held(tool_choice="required") == [True, True, True, False, False, False, False]
    assert held(tool_choice="required", parallel_tool_calls=False) == [True, True, False, False, False, False, False]
    assert held() == [True, True, True, True, True, False, False]
    form = {"response_format": {"type": "json_object"}}
    is_json = broken.startswith("{")
    assert held(**form) == [True, True, True, False, False, is_json, is_json]
    assert Language(compiler, tokenizer, constraint(tools=TOOLS, **form), tool_format).holds("{}")


def test_grammar_ends_only_where_it_may_also_by_stop_tokens(compiler: Compiler, tokenizer: Any) -> None:
    size, end, other = len(tokenizer), tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("<|user|>")
    tokens = Tokens(tokenizer, size, [end], "hermes")
    grammar = compiler.compile(tokens, constraint(guided_regex="ab"))
    a, b = (tokenizer.convert_tokens_to_ids(one) for one in "ab")
    mask = open_mask(2, size)
    walk, stopped = grammar.walk(), grammar.walk([other, size + 5])
    seen: list[list[list[int]]] = []
    for token in (a, b, None):
        for row, one in enumerate((walk, stopped)):
            one.allow(mask, row)
        seen.append([torch.nonzero(row)[:, 0].tolist() for row in allowed(mask, size)])
        if token is not None:
            assert walk.accept(token)
            assert stopped.accept(token)
    assert seen == [[[a], [a]], [[b], [b]], [[end], sorted([end, other])]]
    assert not walk.accept(a)


def test_a_padded_vocabulary_allows_no_token_that_the_tokenizer_lacks(compiler: Compiler, tokenizer: Any) -> None:
    size = len(tokenizer) + 40
    grammar = compiler.compile(
        Tokens(tokenizer, size, [tokenizer.eos_token_id], "hermes"), constraint(guided_regex=".*")
    )
    mask = open_mask(1, size)
    grammar.walk().allow(mask, 0)
    may_follow = allowed(mask, size)[0]
    assert may_follow.shape == (size,)
    assert may_follow[: len(tokenizer)].any()
    assert not may_follow[len(tokenizer) :].any()


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"guided_regex": "(?=a)b"}, "Lookahead"),
        ({"guided_regex": "(" * 20_000}, "Nest|parenthesis|[Pp]arsing"),
        ({"guided_grammar": "root ::= " + "(" * 20_000}, "Nest"),
        ({"guided_grammar": "root ::= missing"}, "missing"),
        ({"guided_grammar": "root ::= root"}, "no answer"),
        ({"guided_grammar": "%%%"}, "."),
        ({"guided_json": {"type": "nonsense"}}, "nonsense"),
        ({"guided_json": {"enum": []}}, "enum"),
        ({"guided_json": {"$ref": "#"}}, "no answer"),
        ({"response_format": {"type": "structural_tag", "format": {"type": "nonsense"}}}, "."),
        (
            {"tools": TOOLS, "response_format": {"type": "structural_tag", "format": {"type": "nonsense"}}},
            ".",
        ),
        ({"tools": TOOLS, "guided_grammar": 'start: "a"'}, "EBNF"),
    ],
)
def test_invalid_grammar_is_refused_with_its_reason(
    compiler: Compiler, tokenizer: Any, body: dict[str, Any], reason: str
) -> None:
    with pytest.raises(Rejected, match=reason):
        Language(compiler, tokenizer, constraint(**body))


MANY = {f"p{number}": {"type": "string"} for number in range(300)}
EXPLODES = {"type": "object", "minProperties": 100, "maxProperties": 2000, "properties": MANY}


def test_grammar_that_takes_too_long_is_refused_and_remembered(compiler: Compiler, tokenizer: Any) -> None:
    for _ in range(3):  # within the time limit of the test only when it is remembered
        with pytest.raises(Rejected, match="takes more than 2 s"):
            Language(compiler, tokenizer, constraint(guided_json={**EXPLODES, "additionalProperties": True}))
    assert Language(compiler, tokenizer, constraint(guided_regex="after")).holds("after")


@pytest.mark.slow
def test_what_takes_too_much_memory_or_is_too_large_is_refused(tokenizer: Any) -> None:
    schema = constraint(guided_json={"type": "string", "maxLength": 5000})
    tokens = tokens_of(tokenizer)
    small = Compiler(Bounds(size=10_000))
    try:
        with pytest.raises(Rejected, match="too large"):
            small.compile(tokens, schema)
        assert small.compile(tokens, constraint(guided_regex="a"))
    finally:
        small.close()


@pytest.mark.slow
def test_a_process_that_was_killed_is_started_again(tokenizer: Any) -> None:
    compiler = Compiler()
    try:
        assert Language(compiler, tokenizer, constraint(guided_regex="a")).holds("a")
        for process in psutil.Process().children():
            if "ratchet.core.grammars.compiler_process" in process.cmdline():
                process.kill()
        assert Language(compiler, tokenizer, constraint(guided_regex="b")).holds("b")
    finally:
        compiler.close()


@pytest.mark.slow
def test_an_ambiguous_grammar_ends_its_answer_before_it_holds_up_others(compiler: Compiler, tokenizer: Any) -> None:
    tokens = tokens_of(tokenizer)
    grammar = compiler.compile(tokens, constraint(guided_grammar='root ::= root root | [a-z] | ""'))
    walk, (a,) = grammar.walk(cpu_s=0.05), tokenizer("a")["input_ids"]
    for _ in range(10_000):
        if walk.problem is not None:
            break
        assert walk.accept(a)
    assert "takes more than" in (walk.problem or "")
    assert grammar.costly


def test_a_grammar_without_a_way_out_names_the_problem(compiler: Compiler, tokenizer: Any) -> None:
    tokens = tokens_of(tokenizer)
    grammar = compiler.compile(tokens, constraint(guided_grammar='root ::= "a" trap\ntrap ::= "b" trap'))
    mask = open_mask(1, len(tokenizer))
    walk = grammar.walk()
    walk.allow(mask, 0)
    assert walk.problem is None  # it never ends, but it always has a next token
    dead = compiler.compile(tokens, constraint(guided_grammar='root ::= "a" dead\ndead ::= dead "b"')).walk()
    (a,) = tokenizer("a")["input_ids"]
    dead.accept(a)
    dead.allow(mask, 0)
    assert dead.problem == "the grammar allows no token here"


@pytest.mark.slow
def test_grammars_that_are_not_used_make_room(tokenizer: Any) -> None:
    compiler = Compiler(Bounds(cached=1))
    try:
        tokens = tokens_of(tokenizer)
        first = compiler.compile(tokens, constraint(guided_regex="a"))
        assert compiler.compile(tokens, constraint(guided_regex="a")) is first
        compiler.compile(tokens, constraint(guided_regex="b"))
        assert compiler.compile(tokens, constraint(guided_regex="a")) is not first
    finally:
        compiler.close()


@pytest.mark.parametrize("asked", [("invented", "x"), ("choice", "{"), ("tools", "{}"), ("tools", "[")])
def test_a_record_that_cannot_be_read_is_refused(compiler: Compiler, tokenizer: Any, asked: tuple[str, str]) -> None:
    with pytest.raises(Rejected):
        Language(compiler, tokenizer, Constraint(kind=asked[0], specification=asked[1], member="x"))


def test_an_unknown_format_of_calls_is_refused(compiler: Compiler, tokenizer: Any) -> None:
    with pytest.raises(Rejected, match="smoke"):
        Language(compiler, tokenizer, constraint(tools=TOOLS, tool_choice="required"), "smoke")
    assert Language(compiler, tokenizer, constraint(guided_json=SCHEMA)).holds(json.dumps({"id": 1}))
