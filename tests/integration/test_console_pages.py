"""The console's list of a hundred thousand trajectories on the real ClickHouse, and a hostile message of 20 MB."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest

from ratchet.console.messages import LETTERS
from ratchet.core.contract import named_id
from ratchet.core.contract.trajectory import Action
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.warehouse import Warehouse
from tests.support.console_data import console, store
from tests.support.messages import trajectory
from tests.support.running import prepared_warehouse

MANY = 2_000
CROWD = 100_000
PAGE = 200
PAGE_BYTES = 256 * 1024
"""Above what a page of 200 takes, far below a conversation of 20 MB."""
HOSTILE = "<img src=x onerror=alert(1)>\x1b[31m\x00\u202e"
COPIES = """
INSERT INTO trajectories
SELECT * EXCEPT (number) REPLACE(
    concat('many-', toString(number)) AS trajectory_id,
    concat('many-', toString(number)) AS recorded_as,
    concat('many-', toString(number)) AS event_id,
    sequence + 1 + number AS sequence,
    ended_at - toIntervalSecond(intDiv(number, 1000)) AS ended_at
)
FROM trajectories CROSS JOIN numbers({many:UInt32}) AS numbered
"""
"""A thousand end at the same moment: a page may begin between two of them."""


@pytest.fixture
async def warehouse(shared_settings: SharedSettings) -> AsyncIterator[Warehouse]:
    async with prepared_warehouse(shared_settings) as made:
        yield made


async def test_of_a_hundred_thousand_rows_newest_come_first_and_search_finds_one(
    warehouse: Warehouse,
) -> None:
    action = Action(type="response", raw_response="over the zebra crossing")
    rare = trajectory("rare", turns=[msgspec.structs.replace(trajectory("rare").turns[0], action=action)])
    await store(warehouse, trajectory("first"))
    await warehouse.command(COPIES, {"many": CROWD})
    await store(warehouse, rare)
    async with console(warehouse) as http:
        (match,) = (await http.get("/v1/trajectories", params={"text": "zebra"})).json()["trajectories"]
        assert match["trajectory_id"] == rare.trajectory_id
        seen: list[tuple[str, str]] = []
        after = ""
        while len(seen) < MANY:
            answer = await http.get("/v1/trajectories", params={"limit": PAGE, **({"after": after} if after else {})})
            assert len(answer.content) < PAGE_BYTES
            page = answer.json()
            seen += [(one["ended_at"], one["trajectory_id"]) for one in page["trajectories"]]
            after = page["next"]
    assert len(seen) == len(set(seen)) == MANY
    assert [at for at, _ in seen] == sorted((at for at, _ in seen), reverse=True)


async def test_a_hostile_message_of_20_mb_comes_shortened_and_whole_as_a_file(warehouse: Warehouse) -> None:
    text = HOSTILE * (20_000_000 // len(HOSTILE))
    turn = msgspec.structs.replace(trajectory("one").turns[0], action=Action(type="response", raw_response=text))
    await store(warehouse, trajectory("one", turns=[turn]))
    path = f"/v1/trajectories/{named_id('trajectory', 'one')}"
    async with console(warehouse) as http:
        listed = await http.get("/v1/trajectories")
        assert listed.json()["trajectories"], "the large conversation is in the page"
        answer = await http.get(path)
        shown = answer.json()["messages"][-1]
        assert (shown["text"], shown["letters"]) == (text[:LETTERS], len(text)), "a page sees how much it lacks"
        assert max(len(listed.content), len(answer.content)) < PAGE_BYTES
        whole = await http.get(f"{path}/messages/{shown['index']}")
        assert whole.text == text
        assert whole.headers["content-disposition"].startswith("attachment")
        assert whole.headers["content-type"] == "text/plain; charset=utf-8"
