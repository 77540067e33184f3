"""A file of preferences over HTTP: what is new is published once, and what is no preference is named by its line."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import httpx
import msgspec
import pytest

from ratchet.console.http_api import Subjects, console_api
from ratchet.console.pairs_file import PairsFiles
from ratchet.core.contract import Message, Preference
from ratchet.core.errors import InvalidMessage
from ratchet.core.rules.access import ANYONE, Caller
from tests.support.callers import called_by

ANNOTATOR = Caller("key_a", "ann", frozenset({"annotate:support"}))
VIEWER = Caller("key_v", "val", frozenset({"view:support"}))
TRAINER = Caller("key_t", "tom", frozenset({"train:support"}))


class Stored:
    """A sink whose messages are stored a while after they were sent."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.stored: set[str] = set()

    async def publish_all(self, messages: Sequence[Message]) -> None:
        if any(isinstance(message, Preference) and message.prompt == "too large" for message in messages):
            raise InvalidMessage("it is too large")
        self.sent += messages

    async def known(self, ids: Sequence[str]) -> frozenset[str]:
        return frozenset(self.stored.intersection(ids))

    def store(self) -> None:
        self.stored |= {message.event_id for message in self.sent}


class SlowlySent(Stored):
    """Others have their turn while it sends."""

    async def publish_all(self, messages: Sequence[Message]) -> None:
        for _ in range(1000):
            await asyncio.sleep(0)
        await super().publish_all(messages)


def line(prompt: str, **metadata: Any) -> str:
    return msgspec.json.encode({"prompt": prompt, "chosen": "yes", "rejected": "no", "metadata": metadata}).decode()


async def taken(files: PairsFiles, *lines: str, caller: Caller = ANYONE, role: str = "support") -> httpx.Response:
    others: dict[str, Any] = dict.fromkeys(Subjects.__dataclass_fields__)
    app = called_by(console_api(Subjects(**{**others, "pairs_files": files})), caller)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8084") as http:
        body = {"role": role, "lines": "\n".join(lines)}
        return await http.post("/v1/annotation/preferences", json=body)


async def test_the_same_file_twice_publishes_once_and_counts_what_was_new() -> None:
    stored = Stored()
    files = PairsFiles(stored, stored.known)
    first = await taken(files, line("a", rater="ann"), line("b", rater="ann"))
    again = await taken(files, line("a", rater="ann"), line("b", rater="ann"), line("c", rater="ann"))
    assert first.json() == {"records": 2, "added": 2, "present": 0, "left_out": []}
    assert again.json() == {"records": 3, "added": 1, "present": 2, "left_out": []}
    assert [message.prompt for message in stored.sent if isinstance(message, Preference)] == ["a", "b", "c"]


async def test_the_same_file_twice_at_once_counts_what_was_new_once() -> None:
    stored = SlowlySent()
    files = PairsFiles(stored, stored.known)
    answers = await asyncio.gather(*(taken(files, line("a"), line("b")) for _ in range(6)))
    assert sum(answer.json()["added"] for answer in answers) == len(stored.sent) == 2


async def test_rows_of_an_export_for_trainings_are_preferences_of_people() -> None:
    stored = Stored()
    sides = [
        [{"role": role, "content": text}] for role, text in (("user", "q"), ("assistant", "y"), ("assistant", "n"))
    ]
    row = msgspec.json.encode(dict(zip(("prompt", "chosen", "rejected"), sides, strict=True))).decode()
    assert (await taken(PairsFiles(stored, stored.known), row)).json()["added"] == 1
    [preference] = stored.sent
    assert isinstance(preference, Preference)
    assert (preference.source, preference.rater, preference.chosen) == ("human", None, sides[1])


async def test_what_another_console_took_in_is_known_once_it_is_stored() -> None:
    stored = Stored()
    await taken(PairsFiles(stored, stored.known), line("a"))
    stored.store()
    answer = await taken(PairsFiles(stored, stored.known), line("a"), line("b"))
    assert (answer.json()["added"], answer.json()["present"]) == (1, 1)


async def test_a_line_that_is_no_preference_is_named_and_holds_up_no_other() -> None:
    stored = Stored()
    lines = [line("a"), "{", "", line("b", role="other"), line("too large"), line("c")]
    answer = (await taken(PairsFiles(stored, stored.known), *lines)).json()
    assert (answer["records"], answer["added"]) == (5, 2)
    assert [left["line"] for left in answer["left_out"]] == [2, 4, 5]
    assert "belongs to the role 'other'" in answer["left_out"][1]["reason"]


@pytest.mark.parametrize("role", ["", "Bad!", "../support"])
async def test_file_for_what_is_no_name_of_a_role_is_refused(role: str) -> None:
    stored = Stored()
    answer = await taken(PairsFiles(stored, stored.known), line("a"), role=role)
    assert answer.status_code == 400
    assert "role" in answer.text
    assert not stored.sent


async def test_secrets_of_a_file_are_redacted_before_they_are_published() -> None:
    stored = Stored()
    await taken(PairsFiles(stored, stored.known), line("write to alice@example.com"))
    [preference] = stored.sent
    assert isinstance(preference, Preference)
    assert "alice" not in str(preference.prompt)


@pytest.mark.parametrize(("caller", "status"), [(ANNOTATOR, 200), (VIEWER, 403), (TRAINER, 403)])
async def test_only_who_may_annotate_a_role_adds_to_its_preferences(caller: Caller, status: int) -> None:
    stored = Stored()
    answer = await taken(PairsFiles(stored, stored.known), line("a"), caller=caller)
    other = await taken(PairsFiles(stored, stored.known), line("a"), caller=caller, role="sales")
    assert (answer.status_code, other.status_code) == (status, 403)
    assert len(stored.sent) == (1 if status == 200 else 0)
