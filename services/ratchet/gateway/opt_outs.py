"""The routes by which people opt out of being recorded, and in again."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from ratchet.core.contract.erasure import AGENT, SESSION, USER
from ratchet.core.contract.http.gateway import KeptOptOut, KeptOptOuts, OptOutTaken
from ratchet.core.contract.opt_out import EVERY_ROLE
from ratchet.core.errors import BadRequest, Unavailable
from ratchet.core.rules.access import EVERY_ROLE as ANY_ROLE, KeyScope
from ratchet.core.rules.arms import ROLE
from ratchet.core.rules.opt_outs import key_of
from ratchet.core.rules.texts import user_ref
from ratchet.core.service.asgi import Request, Response, json_response
from ratchet.gateway.unrecorded import Unrecorded

KINDS = (USER, SESSION, AGENT)
"""What a body may name."""
LISTED = 1000
"""Most that one answer lists."""
LONGEST = 1024
"""Characters of a name."""


@dataclass(frozen=True)
class OptOutRoutes:
    """One method per route."""

    unrecorded: Unrecorded
    user_key: str | None

    async def opt_out(self, request: Request, _: str | None) -> Response:
        """POST /v1/opt-outs. Raises `BadRequest`, and `Forbidden` for a role that is not the key's."""
        return self._taken(request, is_over=False)

    async def opt_in(self, request: Request, _: str | None) -> Response:
        """POST /v1/opt-ins. Raises as `opt_out` does."""
        return self._taken(request, is_over=True)

    async def list_kept(self, request: Request, _: str | None) -> Response:
        """GET /v1/opt-outs: those that concern the key's roles. Raises `BusUnavailable`."""
        total, newest = await self.unrecorded.known.kept(LISTED, request.caller.roles(KeyScope.VIEW))
        rows = [KeptOptOut(key=key, kind=kept.kind, role=_shown(key), at=kept.at) for key, kept in reversed(newest)]
        return json_response(KeptOptOuts(total=total, opt_outs=rows))

    def _taken(self, request: Request, *, is_over: bool) -> Response:
        asked = _asked(request)
        request.caller.require(KeyScope.FEEDBACK, ANY_ROLE if asked.role is None else asked.role)
        ref = asked.name if asked.kind != USER else user_ref(self.user_key, asked.name)
        if ref is None:
            raise BadRequest("this gateway knows no users: RATCHET_GATEWAY_USER_KEY is not set", param=USER)
        by, role = f"{request.caller.actor()} at the gateway", asked.role or EVERY_ROLE
        covers = partial(self.unrecorded.known.covers, role, [(asked.kind, ref)])
        was_opted_out = covers()
        sent = self.unrecorded.send(asked.kind, ref, role, is_over=is_over, by=by)
        if sent is None:
            raise Unavailable("the gateway has no room for this: try again in a moment", code="busy")
        key = key_of(sent)
        taken = OptOutTaken(
            key=key,
            kind=asked.kind,
            ref=ref,
            role=_shown(key),
            opted_out=covers(),
            was_opted_out=was_opted_out,
        )
        return json_response(taken, 202)


class _Asked(NamedTuple):
    """Who opts out, or in."""

    kind: str
    name: str
    role: str | None
    """None: in every role."""


def _asked(request: Request) -> _Asked:
    """What a body says. Raises `BadRequest`."""
    body = request.record()
    named = [(kind, body[kind]) for kind in KINDS if body.get(kind) is not None]
    if len(named) != 1 or body.keys() - {*KINDS, "role"}:
        raise BadRequest("name exactly one of user, session and agent, and a role if it is for one alone")
    (kind, name), role = named[0], body.get("role")
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST:
        raise BadRequest(f"`{kind}` must be a text of 1 to {LONGEST} characters", param=kind)
    if role is not None and not (isinstance(role, str) and ROLE.fullmatch(role) and role != EVERY_ROLE):
        raise BadRequest("`role` is no name of a role", param="role")
    return _Asked(kind, name, role)


def _shown(key: str) -> str | None:
    """The role of an entry, as people know it."""
    role = key.partition(".")[0]
    return None if role == EVERY_ROLE else role
