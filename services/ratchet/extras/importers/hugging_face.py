"""Imports data sets of the Hugging Face hub from files on this machine: Parquet, Arrow, JSON lines. No hub is asked.

What a row holds follows from its columns, in the forms that TRL's page "Dataset formats" names, and in two older ones:

- `chosen`, `rejected`, with or without `prompt`: a preference; without one, what both share is the prompt;
- `messages`, `conversations`, `conversation` or `chat`: a chat, of `role`/`content` or ShareGPT's `from`/`value`;
- `prompt` with `completion`, `response` or `answer`; `instruction` (and `input`) with `output`: one answer.

`system` and `tools` beside them are read too, as lists or as JSON text; `task_id` or `prompt_id` names the task.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from ratchet.core.contract import JsonObject
from ratchet.dialects.foreign_messages import chat_of_prompt, message_of, tools_of
from ratchet.dialects.foreign_values import number_of, parsed_json, text_or_none
from ratchet.extras.importers.base import (
    Imported,
    ImportedPreference,
    ImportedTrajectory,
    Importer,
    ImportOptions,
    MalformedRecord,
)
from ratchet.extras.importers.building import fields_of, preference_from, trajectory_from

SOURCE = "hugging-face"
CHATS = ("messages", "conversations", "conversation", "chat")
ANSWERS = ("completion", "response", "answer", "output")


def messages_of(row: object, options: ImportOptions) -> Iterator[Imported]:
    """The trajectory or the preference of a row. Raises a `ValueError` or `Rejected`."""
    fields = fields_of(row)
    if fields.get("chosen") is not None and fields.get("rejected") is not None:
        yield preference_from(_pair(fields), options, SOURCE)
    else:
        yield trajectory_from(_conversation(fields, options), options, SOURCE)


def _pair(fields: JsonObject) -> ImportedPreference:
    prompt, chosen, rejected = (parsed_json(fields.get(name)) for name in ("prompt", "chosen", "rejected"))
    tools = tools_of(fields.get("tools"))
    texts = [value for value in (prompt, chosen, rejected) if isinstance(value, str)]
    if len(texts) == 3:
        return ImportedPreference(prompt=texts[0], chosen=texts[1], rejected=texts[2], tools=tools)
    good, bad = _answer(chosen), _answer(rejected)
    if good == bad:
        raise MalformedRecord("chosen and rejected are the same")
    shorter = min(len(good), len(bad))
    shared = next((place for place in range(shorter) if good[place] != bad[place]), shorter - 1)
    asked = _with_system([_plain(message) for message in chat_of_prompt(prompt)] if prompt else [], fields)
    if shared > 0:
        asked, good, bad = _asked(asked, good[:shared]), good[shared:], bad[shared:]
    if not asked:
        raise MalformedRecord("has no prompt, and chosen and rejected share no message")
    return ImportedPreference(prompt=asked, chosen=good, rejected=bad, tools=tools)


def _asked(prompt: list[JsonObject], shared: list[JsonObject]) -> list[JsonObject]:
    """The prompt of two answers that begin alike: with the prompt once more, or with the same first step."""
    if _spoken(shared)[: len(_spoken(prompt))] != _spoken(prompt):
        return [*prompt, *shared]
    system = prompt[:1] if prompt and prompt[0]["role"] == "system" and shared[0].get("role") != "system" else []
    return [*system, *shared]


def _spoken(chat: list[JsonObject]) -> list[JsonObject]:
    """The messages but those of the system, without the blanks around texts: a column `prompt` often lacks both."""
    texts = ((message, message.get("content")) for message in chat if message.get("role") != "system")
    return [{**message, "content": text.strip() if isinstance(text, str) else text} for message, text in texts]


def _answer(value: object) -> list[JsonObject]:
    """The messages of an answer: a text is one of the assistant."""
    if isinstance(value, str):
        return [{"role": "assistant", "content": value}]
    items = cast("list[object]", value) if isinstance(value, list) else [value]
    return [_plain(message_of(item)) for item in items]


def _plain(message: JsonObject) -> JsonObject:
    """A message without empty members: a table has every column in every row."""
    return {name: value for name, value in message.items() if value is not None or name == "content"}


def _conversation(fields: JsonObject, options: ImportOptions) -> ImportedTrajectory:
    whole = next((fields[name] for name in CHATS if fields.get(name)), None)
    if whole is not None:
        chat = chat_of_prompt(whole)
    else:
        instruction, more = text_or_none(fields.get("instruction")), text_or_none(fields.get("input"))
        asked = fields.get("prompt") or (f"{instruction}\n\n{more}" if instruction and more else instruction)
        answer = next((fields[name] for name in ANSWERS if fields.get(name)), None)
        if not asked or answer is None:
            raise MalformedRecord(f"has no conversation: its columns are {', '.join(sorted(map(str, fields)))[:200]}")
        chat = [*chat_of_prompt(asked), *_answer(parsed_json(answer))]
    score = number_of(fields.get(options.outcome)) if options.outcome else None
    return ImportedTrajectory(
        messages=_with_system([_plain(message) for message in chat], fields),
        task=text_or_none(fields.get("task_id")) or text_or_none(fields.get("prompt_id")),
        model=text_or_none(fields.get("model")),
        tools=tools_of(fields.get("tools")),
        scores={options.outcome: score} if options.outcome and score is not None else {},
    )


def _with_system(chat: list[JsonObject], fields: JsonObject) -> list[JsonObject]:
    system = text_or_none(fields.get("system"))
    if system is None or any(message.get("role") == "system" for message in chat):
        return chat
    return [{"role": "system", "content": system}, *chat]


HUGGING_FACE = Importer(
    summary="data sets of the Hugging Face hub: conversations, preferences", messages_of=messages_of
)
