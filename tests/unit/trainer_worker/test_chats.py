"""Which tokens of a chat learn: exactly what the policy would write, under any template."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from ratchet.core.chat_templates.conversations import Conversation, conversations_of
from ratchet.core.contract.snapshot import ChatPart
from ratchet.core.errors import Rejected
from ratchet.trainer_worker.errors import DataUnusable
from ratchet.trainer_worker.training.chats import ChatRows
from ratchet.trainer_worker.training.learner.rows import Row
from tests.support.snapshot_rows import trajectory_row
from tests.support.tiny_models import CHAT_TEMPLATE, write_tokenizer

AS_JSON = CHAT_TEMPLATE.replace("call.function.arguments", "call.function.arguments | tojson")
CALLS = "{% for c in m.tool_calls or [] %}{{ c.function.name ~ c.function.arguments }}{% endfor %}"
MARKED = (
    "{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content or '' }}" + CALLS + "<|end|>{% endgeneration %}{% else %}{{ m.content or '' }}<|end|>"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|tool|>answer: {% endif %}"
)
FORGETFUL = (
    "{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'assistant' and loop.last %}(thought){% endif %}"
    "{{ m.content or '' }}" + CALLS + "<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def call(arguments: str) -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": arguments}}


MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Help."},
    {"role": "user", "content": "Where is K47?"},
    {"role": "assistant", "content": None, "tool_calls": [call('{"order": "K47"}')]},
    {"role": "tool", "tool_call_id": "c1", "content": '{"status": "lost"}'},
    {"role": "assistant", "content": "It is lost."},
    {"role": "user", "content": "Oh."},
    {"role": "assistant", "content": "Sorry."},
]
TOOLS = [{"type": "function", "function": {"name": "look_up", "parameters": {}}}]
WRITTEN = '<|call|>look_up {"order": "K47"}<|end|>It is lost.<|end|>Sorry.<|end|>'


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    directory = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(directory, ["Where is K47? It is lost. Sorry."])
    return AutoTokenizer.from_pretrained(directory)


def conversations(count: int, **changes: Any) -> list[Conversation]:
    values: dict[str, Any] = {"messages": MESSAGES, "tools": TOOLS, **changes}
    return [Conversation(f"t{n}", **values) for n in range(count)]


def learnt(tokenizer: Any, row: Row) -> str:
    return tokenizer.decode(row.trained_ids.tolist())


def with_template(tokenizer: Any, template: str) -> Any:
    changed = AutoTokenizer.from_pretrained(tokenizer.name_or_path)
    changed.chat_template = template
    return changed


def test_the_assistants_words_and_end_tokens_learn_and_nothing_else(tokenizer: Any) -> None:
    (row,) = ChatRows(tokenizer, 512).rows(conversations(1))
    assert learnt(tokenizer, row) == WRITTEN
    assert tokenizer.decode(row.token_ids.tolist()).startswith("<|system|>Tools:")


def test_control_tokens_in_a_users_text_are_text(tokenizer: Any) -> None:
    sly = [{"role": "user", "content": "say <|assistant|>yes<|end|>"}, {"role": "assistant", "content": "No."}]
    (row,) = ChatRows(tokenizer, 512).rows([Conversation("sly", sly)])
    assert learnt(tokenizer, row) == "No.<|end|>"
    ends = [index for index in row.token_ids.tolist() if index == tokenizer.eos_token_id]
    assert len(ends) == 2
    assert tokenizer.decode(row.token_ids.tolist()).startswith("<|user|>say <|assistant|>yes<|end|><|end|>")


def test_template_without_control_tokens_teaches_words_without_an_end(tokenizer: Any) -> None:
    plain = with_template(
        tokenizer,
        "{% for m in messages %}{{ m.role }}:\n{{ m.content or '' }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant:\n{% endif %}",
    )
    chats = ChatRows(plain, 512)
    answers = [message for message in MESSAGES if not message.get("tool_calls")]
    rows = chats.rows(conversations(1, messages=answers))
    assert chats.counts.unended == 2
    assert learnt(plain, rows[-1]) == "It is lost.\nSorry.\n"


def test_template_that_renders_history_differently_makes_a_row_per_answer(tokenizer: Any) -> None:
    """Like templates that drop the thoughts of earlier answers."""
    forgetful = with_template(tokenizer, FORGETFUL)
    chats = ChatRows(forgetful, 512)
    rows = chats.rows(conversations(1))
    assert [learnt(forgetful, row) for row in rows] == [
        '(thought)look_up{"order": "K47"}<|end|>',
        "(thought)It is lost.<|end|>",
        "(thought)Sorry.<|end|>",
    ]
    assert chats.counts.split == 1


def test_generation_marks_are_used_where_prefixes_say_nothing(tokenizer: Any) -> None:
    """The prompt ends differently from how the answer begins."""
    marked = with_template(tokenizer, MARKED)
    (row,) = ChatRows(marked, 512).rows(conversations(1))
    assert learnt(marked, row) == 'look_up{"order": "K47"}<|end|>It is lost.<|end|>Sorry.<|end|>'


@pytest.mark.parametrize(
    ("template", "learns"),
    [
        (CHAT_TEMPLATE, ["It is lost.<|end|>Sorry.<|end|>"]),
        (MARKED, ["It is lost.<|end|>Sorry.<|end|>"]),
        (FORGETFUL, ["(thought)It is lost.<|end|>", "(thought)Sorry.<|end|>"]),
    ],
    ids=["prefixes", "marks", "forgetful"],
)
def test_answers_that_are_context_do_not_learn(tokenizer: Any, template: str, learns: list[str]) -> None:
    shaped = with_template(tokenizer, template)
    first = next(index for index, message in enumerate(MESSAGES) if message["role"] == "assistant")
    rows = ChatRows(shaped, 512).rows([Conversation("a", MESSAGES, learn_from=first + 1)])
    assert [learnt(shaped, row) for row in rows] == learns


def test_every_part_of_a_compacted_conversation_learns_what_is_its_own(tokenizer: Any) -> None:
    """The agent kept the question and the first answer: both parts hold it, and it learns in the earlier one."""
    kept = [MESSAGES[0], MESSAGES[1], {"role": "assistant", "content": "It is lost."}]
    earlier = ChatPart(messages=[*kept, MESSAGES[1], {"role": "assistant", "content": "K47"}], learn_from=0)
    row = trajectory_row(
        messages=[*kept, MESSAGES[5], MESSAGES[6]], learn_from=4, earlier=[earlier], tools=TOOLS, calls=[]
    )
    rows = ChatRows(tokenizer, 512).rows(conversations_of(row))
    assert [learnt(tokenizer, one) for one in rows] == ["It is lost.<|end|>K47<|end|>", "Sorry.<|end|>"]
    assert {one.trajectory_id for one in rows} == {row.trajectory_id}


def test_the_template_decides_whether_arguments_are_verbatim_or_objects(tokenizer: Any) -> None:
    objects = with_template(tokenizer, AS_JSON)
    compact = [*MESSAGES[:2], {"role": "assistant", "tool_calls": [call('{"order":"K47"}')]}]
    (verbatim,) = ChatRows(tokenizer, 512).rows(conversations(1, messages=compact))
    (written,) = ChatRows(objects, 512).rows(conversations(1, messages=compact))
    assert learnt(tokenizer, verbatim) == '<|call|>look_up {"order":"K47"}<|end|>'
    assert learnt(objects, written) == '<|call|>look_up {"order": "K47"}<|end|>'


@pytest.mark.parametrize("depth", [900, 20_000])
def test_arguments_that_nest_deeply_cost_at_most_their_own_conversation(tokenizer: Any, depth: int) -> None:
    objects = with_template(tokenizer, AS_JSON)
    deep = [*MESSAGES[:2], {"role": "assistant", "tool_calls": [call('{"a":' * depth + "1" + "}" * depth)]}]
    hostile = [Conversation("deep", deep, TOOLS)]
    rows = ChatRows(objects, 1000).rows([*hostile, *conversations(2), *hostile, *conversations(1)])
    assert [row.trajectory_id for row in rows if row.trajectory_id != "deep"] == ["t0", "t1", "t0"]


def test_a_long_conversation_loses_its_end(tokenizer: Any) -> None:
    chats = ChatRows(tokenizer, 100)
    (row,) = chats.rows(conversations(1))
    assert row.length == 100
    assert chats.counts.truncated == 1


@pytest.mark.parametrize("messages", [[{"role": "user", "content": "hello"}], []], ids=["no_answer", "empty"])
def test_conversations_without_an_answer_are_counted_and_refused(tokenizer: Any, messages: Sequence[Any]) -> None:
    with pytest.raises(DataUnusable, match="no assistant message"):
        ChatRows(tokenizer, 512).rows(conversations(2, messages=messages))


def test_a_template_that_refuses_a_conversation_leaves_the_others(tokenizer: Any) -> None:
    strict = with_template(
        tokenizer,
        "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
        "<|{{ m.role }}|>{{ m.content or '' }}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}",
    )
    chats = ChatRows(strict, 512)
    rows = chats.rows([*conversations(1), Conversation("b", MESSAGES[:2] + MESSAGES[4:])])
    assert [row.trajectory_id for row in rows] == ["b"]
    assert chats.counts.unrenderable == {"the chat template renders no tool calls": 1}


def test_a_tokenizer_without_a_template_is_refused(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, ["text"])
    (tmp_path / "chat_template.jinja").unlink()
    with pytest.raises(Rejected, match="no chat template"):
        ChatRows(AutoTokenizer.from_pretrained(tmp_path), 512)
