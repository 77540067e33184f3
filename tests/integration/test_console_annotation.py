"""People's opinions on the real ClickHouse: what to rate next, pairs in a hidden order, choices, and agreement."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any, cast

import pytest

from ratchet.bus.clock import utc_now
from ratchet.core.contract import PolicyClaim, Preference, named_id
from ratchet.core.rules.access import Caller
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.warehouse import Warehouse
from tests.support.console_data import NoBus, console, store
from tests.support.consoles import consoling
from tests.support.consuming import messages_of
from tests.support.messages import AT, trajectory
from tests.support.preferences import tried
from tests.support.rewards import feedback
from tests.support.running import connected, prepared_warehouse

ADA = Caller("key_aaaaaaaaaa", "ada", frozenset({"annotate"}))
BOB = Caller("key_bbbbbbbbbb", "bob", frozenset({"annotate"}))
ROLE = "support"
NOW = AT + timedelta(days=1)


@pytest.fixture
async def warehouse(shared_settings: SharedSettings) -> AsyncIterator[Warehouse]:
    async with prepared_warehouse(shared_settings) as made:
        yield made


def tries() -> list[Any]:
    """Two tasks with two answers each, one task with two equal ones, and one that was tried once."""
    return [
        *tried("a", "It is at 1.", 0.9, task="one", number=1),
        *tried("b", "<script>alert(1)</script>", 0.1, task="one", number=2),
        *tried("c", "It is at 2.", 0.9, task="two", number=3),
        *tried("d", "No idea.", 0.1, task="two", number=4),
        *tried("e", "Same.", 0.5, task="three", number=5),
        *tried("f", "Same.", 0.5, task="three", number=6),
        *tried("g", "Alone.", 0.5, task="four", number=7),
    ]


async def facts(warehouse: Warehouse) -> str:
    """Stores the tries; returns their role."""
    messages = tries()
    await store(warehouse, *messages)
    return str(messages[0].role)


async def test_pairs_are_judged_once_by_each_rater_and_in_a_hidden_order(warehouse: Warehouse) -> None:
    role, bus = await facts(warehouse), NoBus()
    async with console(warehouse, ADA, NOW, bus) as http:
        first = (await http.get("/v1/annotation/pair", params={"role": role})).json()["pair"]
        again = (await http.get("/v1/annotation/pair", params={"role": role})).json()["pair"]
        assert again == first, "the order is the rater's own, each time"
        assert [message["text"] for message in first["question"]][-1].startswith("Where is")
        judgement = {"pair_id": first["pair_id"], "choice": "left", "confidence": 0.8, "comment": "mail me: a@b.org"}
        changed = await http.post("/v1/annotation/judgements", json={**judgement, "digest": "of other texts"})
        assert (changed.status_code, bus.published) == (409, [])
        assert "was reported anew" in changed.json()["error"]["message"]
        judgement["digest"] = first["digest"]
        taken = await http.post("/v1/annotation/judgements", json=judgement)
        assert taken.status_code == 200, taken.text
        twice = await http.post("/v1/annotation/judgements", json=judgement)
        assert twice.json() == taken.json()
        (published, *others) = cast("list[Preference]", bus.published)
        assert {other.preference_id for other in others} <= {published.preference_id}
        assert (published.rater, published.source, published.confidence) == ("ada (key_aaaaaaaaaa)", "human", 0.8)
        assert published.chosen[-1]["content"] == first["left"][-1]["text"]  # type: ignore[index]
        assert published.rejected[-1]["content"] == first["right"][-1]["text"]  # type: ignore[index]
        second = (await http.get("/v1/annotation/pair", params={"role": role})).json()["pair"]
        assert second["pair_id"] != first["pair_id"]
        assert second["remaining"] == first["remaining"] - 1
        skipped = await http.post("/v1/annotation/judgements", json={"pair_id": second["pair_id"], "choice": "neither"})
        assert skipped.json() == {"preference_id": None}
        last = (await http.get("/v1/annotation/pair", params={"role": role})).json()
        assert (last["pair"], last["why"]) == (None, "there is no pair left whose answers differ")
    await store(warehouse, published, first=500)
    async with console(warehouse, ADA, NOW, bus) as http:
        last = (await http.get("/v1/annotation/pair", params={"role": role})).json()
        assert last["pair"] is None, "what was judged and what was skipped are stored: a restart forgets neither"
    async with console(warehouse, BOB, NOW, NoBus()) as http:
        assert (await http.get("/v1/annotation/pair", params={"role": role})).json()["pair"] is not None
        nothing = (await http.get("/v1/annotation/pair", params={"role": "none"})).json()
        assert nothing == {"pair": None, "why": "no task of none was tried twice in the last 90 days"}


async def test_a_rater_whose_key_is_named_by_an_address_meets_no_pair_again(warehouse: Warehouse) -> None:
    role, bus = await facts(warehouse), NoBus()
    rater = Caller("key_cccccccccc", "cy@example.org", frozenset({"annotate"}))
    async with console(warehouse, rater, NOW, bus) as http:
        first = (await http.get("/v1/annotation/pair", params={"role": role})).json()["pair"]
        judgement = {"pair_id": first["pair_id"], "choice": "left"}
        assert (await http.post("/v1/annotation/judgements", json=judgement)).status_code == 200
    (published,) = cast("list[Preference]", bus.published)
    assert published.rater == "cy@example.org (key_cccccccccc)"
    await store(warehouse, published, first=600)
    async with console(warehouse, rater, NOW, bus) as http:  # another console, or this one after a restart
        second = (await http.get("/v1/annotation/pair", params={"role": role})).json()["pair"]
    assert second["pair_id"] != first["pair_id"]


async def test_a_choice_reaches_the_broker_once_as_the_contract_has_it(
    warehouse: Warehouse, shared_settings: SharedSettings
) -> None:
    role = await facts(warehouse)
    async with connected(shared_settings) as bus:
        # The service's own clock: the tries of the fixture are as old as they say, so they are stored again, now.
        await store(warehouse, *tries(), at=utc_now())
        async with consoling(shared_settings) as http:
            shown = (await http.get("/v1/annotation/pair", params={"role": role})).json()["pair"]
            judgement = {"pair_id": shown["pair_id"], "choice": "right", "confidence": 1.0}
            taken = [await http.post("/v1/annotation/judgements", json=judgement) for _ in range(2)]
        assert [one.status_code for one in taken] == [200, 200], taken[0].text
        (stored,) = await messages_of(bus, Preference)
        assert {one.json()["preference_id"] for one in taken} == {stored.preference_id}
        assert (stored.rater, stored.source, stored.role) == ("anonymous", "human", role)


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"pair_id": "x", "choice": "left"}, 400, "pair_id"),
        ({"pair_id": "x", "choice": "both"}, 400, "choice"),
        ({"pair_id": "", "choice": "left"}, 400, "pair_id"),
        ({"pair_id": "x", "choice": "left", "confidence": 2}, 400, "confidence"),
        ({"pair_id": "x", "choice": "left", "rater": "eve"}, 400, "rater"),
        ({"pair_id": "WyJzdXBwb3J0IiwiYSIsImIiXQ", "choice": "left"}, 404, None),
    ],
)
async def test_a_wrong_judgement_is_refused_in_one_line(
    warehouse: Warehouse, body: dict[str, Any], status: int, param: str | None
) -> None:
    async with console(warehouse, ADA, AT, NoBus()) as http:
        refused = await http.post("/v1/annotation/judgements", json=body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (status, param)
    assert "\n" not in refused.json()["error"]["message"]


async def test_queue_begins_with_disagreements_without_ones_own_ratings(
    warehouse: Warehouse,
) -> None:
    role = await facts(warehouse)
    ids = {name: named_id(role, name) for name in "abcdefg"}

    def rated(number: int, name: str, **changes: Any) -> Any:
        return feedback(number, trajectory_id=ids[name], role=role, **changes)

    await store(
        warehouse,
        rated(1, "a", value=True, rater="eve"),
        rated(2, "a", value=False, rater="mallory"),
        rated(3, "g", value=True, rater="ada (key_aaaaaaaaaa)"),
        rated(4, "f", value=True, rater="a display", key_id="key_aaaaaaaaaa"),
        first=600,
    )
    played = PolicyClaim(role=role, version=1, digest="a" * 64, arm="pinned", weight=0.0)
    await store(warehouse, *(trajectory(f"exam {n}", role=role, policy=played) for n in range(3)), first=700)
    async with console(warehouse, ADA) as http:
        queue = (await http.get("/v1/annotation/queue", params={"role": role})).json()
        shown = [one["trajectory_id"] for one in queue["trajectories"]]
        assert shown == [ids[name] for name in "aedcb"]
        assert queue["remaining"] == 5
        few = (await http.get("/v1/annotation/queue", params={"role": role, "limit": 2})).json()
        assert (len(few["trajectories"]), few["remaining"]) == (2, 5)


async def test_agreement_is_that_of_the_stored_preferences(warehouse: Warehouse) -> None:
    some = [
        Preference(
            preference_id=named_id("preference", rater, n),
            prompt=f"question {n}",
            chosen="good" if (rater, n) != ("eve", 0) else "bad",
            rejected="bad" if (rater, n) != ("eve", 0) else "good",
            source="human",
            role=ROLE,
            rater=rater,
        )
        for rater in ("ada", "bob", "eve")
        for n in range(4)
    ]
    await store(warehouse, *some)
    async with console(warehouse, ADA) as http:
        answer = (await http.get("/v1/annotation/agreement", params={"role": ROLE})).json()
        assert (answer["questions"], answer["role"]) == (4, ROLE)
        assert {rater["rater"]: rater["disagreed"] for rater in answer["raters"]}["human/eve"] == 1
        none = (await http.get("/v1/annotation/agreement", params={"role": "none"})).json()
        assert (none["questions"], none["alpha"], none["raters"]) == (0, None, [])
