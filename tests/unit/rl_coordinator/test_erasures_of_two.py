"""The rule of four eyes for erasures: one begins once another person has asked for the same."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
from msgspec.structs import replace

from ratchet.bus.kv import Bucket
from ratchet.bus.message import named_id
from ratchet.bus.testing import FakeBroker, FakeBus
from ratchet.cli.erase import of_receipt
from ratchet.core.contract.erasure import ASKED, AWAITS_APPROVAL, ERASURES, Erasure
from ratchet.core.rules.access import ANYONE, Caller
from ratchet.core.service.contracts import load_contracts
from ratchet.core.service.control_api import ControlApi
from ratchet.core.stores.erasures import ask_erasure
from ratchet.rl_coordinator.erasures.receipts import Receipts
from ratchet.rl_coordinator.http.erasures import WAITS, ErasureRoutes
from tests.support.callers import called_by
from tests.support.messages import AT

ADA, BOB, ADA_AGAIN = (
    Caller(f"key_000000000{n}", name, frozenset({"admin"})) for n, name in enumerate(("ada", "bob", "ada"))
)
UNUSED: Any = None
SESSION = Erasure(
    erasure_id="01a224cd-ff44-7720-a4be-24a84c5fc31c",
    kind="session",
    ref="s-1",
    asked_by="gateway",
    asked_at=AT,
    phase=ASKED,
)


class People:
    """The routes, and the people who ask."""

    def __init__(self, receipts: Any = UNUSED) -> None:
        self.now, self.bus = AT, FakeBus(FakeBroker(load_contracts()))
        self.api = ControlApi("Coordinator", "", errors={})
        ErasureRoutes(self.bus, UNUSED, receipts, lambda: self.now, four_eyes=True).add_to(self.api)

    async def ask(self, who: Caller, **body: Any) -> tuple[int, dict[str, Any]]:
        transport = httpx.ASGITransport(called_by(self.api, who))
        async with httpx.AsyncClient(transport=transport, base_url="http://coordinator") as http:
            answer = await http.post("/v1/erasures", json={"kind": "session", "ref": "s-1", **body})
        return answer.status_code, answer.json()


async def test_erasure_begins_once_another_person_asks_for_the_same() -> None:
    people = People()
    status, first = await people.ask(ADA)
    assert (status, first["phase"]) == (201, AWAITS_APPROVAL)
    for again in (ADA, ADA_AGAIN):
        assert (await people.ask(again))[1]["phase"] == AWAITS_APPROVAL
    assert (await people.ask(BOB, ref="s-2"))[1]["phase"] == AWAITS_APPROVAL, "another one's"
    _, begun = await people.ask(BOB)
    assert (begun["phase"], begun["erasure_id"]) == (ASKED, first["erasure_id"])
    assert begun["asked_by"] == "ada (key_0000000000), approved by bob (key_0000000001)"


def kept(receipts: Receipts, **changes: Any) -> dict[str, Any]:
    """The request that the command makes of a receipt's file."""
    erasure = replace(SESSION, **changes)
    receipts.keep(erasure)
    return of_receipt(receipts.folder / f"{erasure.erasure_id}.json")


async def test_receipt_of_another_key_or_erasure_is_refused(tmp_path: Path) -> None:
    ours, theirs = Receipts(tmp_path / "ours"), Receipts(tmp_path / "theirs")
    people = People(ours)
    status, refused = await people.ask(ADA, **kept(theirs))
    assert (status, "`--unverified`" in refused["error"]["message"]) == (400, True)
    assert (await people.ask(ADA, **kept(ours) | {"ref": "s-2"}))[0] == 400
    status, again = await people.ask(ADA, **kept(ours))
    assert (status, again["erasure_id"], again["asked_at"]) == (201, SESSION.erasure_id, "2026-01-05T12:00:00Z")
    taken = await people.ask(ADA, unverified=True, **kept(theirs, ref="s-3", erasure_id=named_id("other")))
    assert (taken[0], taken[1]["ref"]) == (201, "s-3")


async def test_approval_is_of_no_more_than_was_asked_for(tmp_path: Path) -> None:
    receipts = Receipts(tmp_path)
    people = People(receipts)
    _, first = await people.ask(ADA, retrain=True)
    assert (await people.ask(BOB))[1]["phase"] == AWAITS_APPROVAL, "without the training"
    other = kept(receipts, erasure_id=first["erasure_id"], ref="s-9")
    assert (await people.ask(BOB, **other))[1]["phase"] == AWAITS_APPROVAL
    assert (await people.ask(BOB, retrain=True))[1]["phase"] == ASKED


async def test_request_that_waited_too_long_is_asked_anew() -> None:
    people = People()
    await people.ask(ADA)
    people.now += WAITS + timedelta(seconds=1)
    _, anew = await people.ask(BOB)
    assert (anew["phase"], anew["asked_by"]) == (AWAITS_APPROVAL, "bob (key_0000000001)")
    assert (await people.ask(ADA))[1]["phase"] == ASKED


async def test_receipt_of_long_ago_is_carried_out_again_by_two(tmp_path: Path) -> None:
    receipts = Receipts(tmp_path)
    people, old = People(receipts), kept(receipts)
    people.now += WAITS * 30
    for again in (ADA, ADA_AGAIN):
        assert (await people.ask(again, **old))[1]["phase"] == AWAITS_APPROVAL
    _, begun = await people.ask(BOB, **old)
    assert (begun["phase"], begun["asked_at"]) == (ASKED, "2026-01-05T12:00:00Z")


async def test_approval_takes_in_what_came_since_it_was_asked_for() -> None:
    people = People()
    await people.ask(ADA)
    people.now += timedelta(hours=2)
    _, begun = await people.ask(BOB)
    kept = await Bucket(people.bus, ERASURES, Erasure).get(begun["erasure_id"])
    assert kept is not None
    assert (kept.value.phase, kept.value.asked_at) == (ASKED, AT + timedelta(hours=2))


async def test_without_keys_nobody_is_a_second_person() -> None:
    status, body = await People().ask(ANYONE)
    assert (status, body["error"]["code"] is not None) == (409, True)


async def test_erasure_that_a_program_asks_for_waits_for_nobody() -> None:
    people = People()
    await people.ask(ADA)
    assert await ask_erasure(people.bus, SESSION) == (SESSION, True)
