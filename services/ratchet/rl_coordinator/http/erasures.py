"""The HTTP routes of erasures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec
import structlog
import uuid_utils
from pydantic import BaseModel, ConfigDict, Field

from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket
from ratchet.core.contract.erasure import ASKED, AWAITS_APPROVAL, ERASURES, Erasure
from ratchet.core.contract.http.erasures import NOT_ASKED, ErasureIn, ErasureOut, ErasuresOut, ReceiptOut
from ratchet.core.errors import BadRequest, Conflict, NotFound
from ratchet.core.rules.access import Caller, KeyScope
from ratchet.core.service.control_api import ControlApi
from ratchet.core.stores.erased import Erased
from ratchet.core.stores.erasures import ask_erasure
from ratchet.rl_coordinator.erasures import Receipts

log = structlog.get_logger()

ASKED_FOR: Mapping[int, str] = {
    201: "The erasure, which has begun; or waits for a second person who asks for the same (RATCHET_FOUR_EYES).",
    200: "One for the same is under way, or is known by its id: this one. With `dry_run`: what would be erased.",
}
WRONG: Mapping[int, str] = {
    400: "The body is not what this document says.",
    409: "It takes two people (RATCHET_FOUR_EYES), and the request has no key.",
}
WAITS = timedelta(days=1)
"""An erasure that no second person asked for by then is asked for anew."""
SAME = ("kind", "ref", "role")
"""Whose data it is."""
UNKNOWN: Mapping[int, str] = {404: "There is no such erasure."}


class EraseIn(BaseModel):
    """Options of a request for an erasure. A misspelt name is refused: it must not erase anything."""

    model_config = ConfigDict(extra="forbid")

    dry_run: bool = Field(False, description="Only say how much would be erased.")


@dataclass(frozen=True)
class ErasureRoutes:
    """`/v1/erasures` and what is under it."""

    bus: Bus
    erased: Erased
    receipts: Receipts
    now: Callable[[], datetime]
    four_eyes: bool = False
    """Whether an erasure waits until a second person has asked for it too."""

    def add_to(self, api: ControlApi) -> None:
        """Serve them."""
        one = "/v1/erasures/{erasure_id}"
        api.route("POST", "/v1/erasures", self.ask_for_erasure, scope=KeyScope.ADMIN, answers=ASKED_FOR, errors=WRONG)
        api.route("GET", "/v1/erasures", self.list_erasures, scope=KeyScope.ADMIN)
        api.route("GET", one, self.get_erasure, scope=KeyScope.ADMIN, errors=UNKNOWN)
        api.route("GET", f"{one}/receipt", self.get_receipt, scope=KeyScope.ADMIN, errors=UNKNOWN)

    async def ask_for_erasure(self, body: ErasureIn, asked: EraseIn, caller: Caller) -> tuple[int, ErasureOut]:
        """Erase all data of a user, session, agent or trajectory from every store, by ids alone."""
        before = await self._of_receipt(body)
        erasure = Erasure(
            erasure_id=before.erasure_id if before else str(uuid_utils.uuid7()),
            kind=body.kind,
            ref=body.ref,
            role=body.role,
            asked_by=caller.actor(),
            asked_at=before.asked_at if before else self.now(),
            phase=NOT_ASKED if asked.dry_run else AWAITS_APPROVAL if self.four_eyes else ASKED,
            retrain=body.retrain,
        )
        if asked.dry_run:
            return 200, erasure_out(msgspec.structs.replace(erasure, ids=await self.erased.preview(erasure)))
        if self.four_eyes and caller.key_id is None:
            raise Conflict("an erasure takes two people (RATCHET_FOUR_EYES), and without keys no person is known")
        known, is_new = await ask_erasure(self.bus, erasure)
        if self.four_eyes and known.phase == AWAITS_APPROVAL and not is_new:
            known = await self._seconded(known, erasure, caller)
        if is_new:
            log.info("erasure asked for", erasure=known.erasure_id, kind=known.kind, actor=known.asked_by)
        return 201 if is_new else 200, erasure_out(known)

    async def _of_receipt(self, body: ErasureIn) -> Erasure | None:
        """The erasure that is carried out again. Raises `BadRequest` for a receipt that is not ours, or of another."""
        if body.receipt is None:
            return None
        before = await asyncio.to_thread(self.receipts.read, body.receipt, unverified=body.unverified)
        if any(getattr(before, name) != getattr(body, name) for name in SAME):
            raise BadRequest("the receipt is of another erasure", param="receipt")
        return before

    async def _seconded(self, known: Erasure, again: Erasure, caller: Caller) -> Erasure:
        """The erasure that waited, which begins where another caller asks for the same; asked anew after a day."""

        def asked(stored: Erasure | None) -> Erasure:
            if stored is None or stored.phase != AWAITS_APPROVAL:
                return stored or known
            is_of_receipt = again.asked_at == stored.asked_at  # which may be of any age
            if self.now() - stored.asked_at >= WAITS and not is_of_receipt:
                return msgspec.structs.replace(stored, asked_by=again.asked_by, asked_at=again.asked_at)
            same = all(getattr(stored, name) == getattr(again, name) for name in (*SAME, "retrain"))
            if caller.is_named_in(stored.asked_by) or not same:
                return stored
            both = f"{stored.asked_by}, approved by {again.asked_by}"
            log.info("erasure approved", erasure=stored.erasure_id, actor=both)
            until = max(stored.asked_at, again.asked_at)
            return msgspec.structs.replace(stored, phase=ASKED, asked_by=both, asked_at=until)

        return await Bucket(self.bus, ERASURES, Erasure).change(known.erasure_id, asked)

    async def list_erasures(self) -> ErasuresOut:
        """Every erasure that was ever asked for, newest first."""
        entries = await Bucket(self.bus, ERASURES, Erasure).items()
        erasures = sorted((entry.value for entry in entries.values()), key=lambda one: one.erasure_id, reverse=True)
        return ErasuresOut(erasures=[erasure_out(erasure) for erasure in erasures])

    async def get_erasure(self, erasure_id: str) -> ErasureOut:
        """One erasure, and how far it is."""
        return erasure_out(await self._known(erasure_id))

    async def get_receipt(self, erasure_id: str) -> ReceiptOut:
        """What was erased so far, what no command reaches, and which policies had learned from it: signed."""
        return await asyncio.to_thread(self.receipts.keep, await self._known(erasure_id))

    async def _known(self, erasure_id: str) -> Erasure:
        entry = await Bucket(self.bus, ERASURES, Erasure).get(erasure_id)
        if entry is None:
            raise NotFound(f"there is no erasure {erasure_id[:40]}")
        return entry.value


def erasure_out(erasure: Erasure) -> ErasureOut:
    """An erasure as the API shows it."""
    return msgspec.convert(erasure, ErasureOut, from_attributes=True)
