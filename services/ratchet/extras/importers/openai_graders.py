"""OpenAI's graders as what a task expects: those that compare an answer with a text. The others have no counterpart.

A template's `{{ item.PATH }}` is filled from the record; what is compared is the text of the answer,
`{{ sample.output_text }}`, or a member of its JSON, `{{ sample.output_json.PATH }}`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence

from ratchet.core.contract import JsonObject
from ratchet.core.contract.evaluation_task import Expected, JsonExpected, PartsExpected, TextExpected
from ratchet.dialects.foreign_values import object_of
from ratchet.extras.importers.base import MalformedRecord

GRADERS = frozenset({"string_check", "text_similarity", "score_model", "label_model", "python", "multi", "endpoint"})
"""Every `type` that OpenAI documents."""
_FIELD = re.compile(r"\{\{\s*(.*?)\s*\}\}", re.DOTALL)
_ANSWER = re.compile(r"\{\{\s*sample\.output_(?:text|json\.(?P<path>[\w.]+))\s*\}\}")
_SIGNS = re.compile(r"[\\.+*?()|\[\]{}^$]")
"""What a regular expression reads as more than itself."""
MOST_PATTERN = 1000


class NoCounterpart(MalformedRecord):
    """A grader that no expectation of a task stands for."""


def expected_of(grader: JsonObject, item: JsonObject) -> Expected:
    """What the grader asks of an answer to this item. Raises `NoCounterpart`, or `MalformedRecord` for the item."""
    named = f"{grader.get('type')} `{grader.get('name') or 'without a name'}`"
    if grader.get("type") != "string_check":
        raise NoCounterpart(f"grader {named}")
    operation, subject, reference = (str(grader.get(name, "")) for name in ("operation", "input", "reference"))
    if operation == "eq" and _ANSWER.fullmatch(reference.strip()):
        subject, reference = reference, subject
    answer = _ANSWER.fullmatch(subject.strip())
    if answer is None or "sample." in reference:
        raise NoCounterpart(f"grader {named}, which compares more than the answer with a text")
    reference = filled(reference, item)
    compare = (_OF_JSON if answer["path"] else _OF_TEXT).get(operation)
    if compare is None or not reference or (operation == "like" and len(_escaped(reference)) > MOST_PATTERN):
        raise NoCounterpart(
            f"grader {named} with operation `{operation}`{' of a long or empty text' if compare else ''}"
        )
    return compare(reference, (answer["path"] or "").split("."))


def filled(template: str, item: JsonObject) -> str:
    """A template with the item's values. Raises `MalformedRecord` for a value that the item does not have."""
    return _FIELD.sub(lambda match: _text(value_at(match[1], item)), template)


def value_at(path: str, item: JsonObject) -> object:
    """The value at `item.a.b`. Raises `MalformedRecord` where there is none."""
    space, *names = path.split(".")
    value: object = item
    for name in names:
        value = object_of(value).get(name)
    if space != "item" or value is None:
        raise MalformedRecord(f"its template needs {path}, which it does not have")
    return value


def joined(one: Expected, other: Expected) -> Expected:
    """Both at once. Raises `NoCounterpart` where they ask for different things of one kind."""
    for name in ("text", "pattern", "json"):
        before, after = getattr(one, name), getattr(other, name)
        if None not in (before, after) and before != after:
            raise NoCounterpart(f"a second grader of an answer that becomes `{name}`")
    parts = [*(one.contains.all_of if one.contains else ()), *(other.contains.all_of if other.contains else ())]
    return Expected(
        text=one.text or other.text,
        pattern=one.pattern or other.pattern,
        json=one.json or other.json,
        contains=PartsExpected(all_of=parts) if parts else None,
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _escaped(text: str) -> str:
    return _SIGNS.sub(r"\\\g<0>", text)


def _nested(path: Sequence[str], schema: JsonObject) -> Expected:
    """JSON whose member at the path keeps a schema."""
    for name in reversed(path):
        schema = {"type": "object", "required": [name], "properties": {name: schema}}
    return Expected(json=JsonExpected(schema=schema))


Compare = Callable[[str, Sequence[str]], Expected]
_OF_TEXT: Mapping[str, Compare] = {
    "eq": lambda reference, _: Expected(text=TextExpected(any_of=[reference], exact=True)),
    "like": lambda reference, _: Expected(pattern=_escaped(reference)),
    "ilike": lambda reference, _: Expected(contains=PartsExpected(all_of=[reference])),
}
_OF_JSON: Mapping[str, Compare] = {
    "eq": lambda reference, path: _nested(path, {"enum": _spellings(reference)}),
    "ne": lambda reference, path: _nested(path, {"not": {"enum": _spellings(reference)}}),
    "like": lambda reference, path: _nested(path, {"type": "string", "pattern": _escaped(reference)}),
}
"""By operation. `ne` of a whole text has no counterpart."""


def _spellings(text: str) -> list[object]:
    """The text, and the JSON value that it spells: a string check compares texts."""
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return [text]
    return [text, value]
