"""A preference as a record of a file, `{prompt, chosen, rejected, metadata}`, and back. Pure.

A person's choice may also stand as it was made: `{prompt, a, b, choice, metadata}` with the choice `a` or `b`.
Members of `metadata` that a preference has are taken as such (`rater`, `confidence`, `domain`, `source`, ...), others
become labels.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec

from ratchet.core.contract import DEFAULT_ROLE, JsonObject, Preference
from ratchet.core.contract.reward import preference_id
from ratchet.core.errors import Rejected

SOURCES = ("human", "teacher", "heuristic", "derived", "rag")
CHOICES = ("a", "b")
ANSWERS = ("prompt", "chosen", "rejected")
FIELDS = tuple(name for name in Preference.__struct_fields__ if name not in (*ANSWERS, "labels"))
"""What `metadata` can say of a preference."""


def preference_of(record: object, role: str | None) -> Preference:
    """The preference of a record; the same record always has the same id.

    `role`: its role; by default the one in the metadata. Raises `Rejected` with what is wrong.
    """
    fields = _object(record, "the record")
    texts = _chosen(fields) if "choice" in fields or "a" in fields or "b" in fields else _plain(fields)
    metadata = _object(fields.get("metadata") or {}, "metadata")
    fields_given = {name: value for name, value in metadata.items() if name in FIELDS and value is not None}
    labels = _object(metadata.get("labels") or {}, "metadata.labels")
    more = {name: value for name, value in metadata.items() if name not in (*FIELDS, "labels")}
    if role is not None and fields_given.get("role", role) != role:
        raise Rejected(f"belongs to the role {fields_given['role']!r}, not to {role!r}")
    values = {
        "source": "human",
        "role": role or DEFAULT_ROLE,
        **fields_given,
        **texts,
        "labels": {**labels, **more} or None,
    }
    if values["source"] not in SOURCES:
        raise Rejected(f"source must be one of {', '.join(SOURCES)}, not {values['source']!r}")
    # The same words of the same rater are the same preference.
    own_id = preference_id([values.get(name) for name in ("role", "source", "rater", *ANSWERS)])
    values.setdefault("preference_id", own_id)
    try:
        return msgspec.convert(values, Preference)
    except msgspec.ValidationError as error:
        raise Rejected(str(error)) from error


def record_of(preference: Preference) -> JsonObject:
    """The record of a preference; `preference_of` gives the same preference back."""
    whole: JsonObject = msgspec.to_builtins(preference)
    metadata = {name: value for name, value in whole.items() if name not in ANSWERS and value is not None}
    return {**{name: whole[name] for name in ANSWERS}, "metadata": {"role": preference.role, **metadata}}


def _plain(fields: JsonObject) -> JsonObject:
    _only(fields, (*ANSWERS, "metadata"))
    texts = {name: fields[name] for name in ANSWERS}
    if texts["chosen"] == texts["rejected"]:
        raise Rejected("chosen and rejected are the same")
    return texts


def _chosen(fields: JsonObject) -> JsonObject:
    """A choice between `a` and `b`. A tie, or any other word, is no preference."""
    _only(fields, ("prompt", "a", "b", "choice", "metadata"))
    choice = fields["choice"]
    if choice not in CHOICES:
        raise Rejected(f"choice must be a or b, not {choice!r}")
    other = "b" if choice == "a" else "a"
    return _plain({"prompt": fields["prompt"], "chosen": fields[choice], "rejected": fields[other]})


def _only(fields: JsonObject, names: tuple[str, ...]) -> None:
    missing = [name for name in names if name != "metadata" and fields.get(name) is None]
    if missing:
        raise Rejected(f"the record has no {', '.join(missing)}")
    empty = [name for name in names if name not in ("metadata", "choice") and _is_empty(fields[name])]
    if empty:
        raise Rejected(f"{' and '.join(empty)} must not be empty")
    unknown = sorted(set(fields) - set(names))
    if unknown:
        raise Rejected(f"the record has the unknown members {', '.join(unknown)}: more about a pair goes into metadata")


def _is_empty(text: object) -> bool:
    """Whether there is nothing to read: no message, or no character but blanks."""
    return not text.strip() if isinstance(text, str) else text == []


def _object(value: object, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Rejected(f"{what} is not an object")
    return cast("dict[str, Any]", value)
