"""Calls that continue a kept response, and responses that are kept so that a later call may continue them."""

from __future__ import annotations

import dataclasses

import msgspec
import structlog

from ratchet.core.errors import BadRequest, NotFound
from ratchet.dialects.requests import Body, CallRequest
from ratchet.dialects.responses.dialect import asked_of, call_of, raw_member
from ratchet.dialects.responses.state import History, ResponseState, continued_conversation, not_kept, state_of
from ratchet.gateway.kv_responses import Responses

log = structlog.get_logger()

_NAMES = frozenset({"previous_response_id", "conversation", "input"})


class Continuing:
    """The state of the Responses API, kept for each owner."""

    def __init__(self, responses: Responses) -> None:
        self._responses = responses

    async def opened(self, call: CallRequest, owner: str) -> CallRequest:
        """The call with the whole history that it names.

        A history that is not kept here may be an upstream's own: such a call stays as it is, and only policies refuse
        it. Raises `BusUnavailable`, or `Unreadable`.
        """
        asked = asked_of(call)
        history = History(asked)
        try:
            while (needed := history.needed()) is not None:
                history.add(needed, await self._owned(needed, owner))
            expanded = history.expanded()
        except (NotFound, BadRequest) as error:
            return msgspec.structs.replace(call, as_chat=dataclasses.replace(asked, obstacle=error))
        if expanded is asked:
            return call
        fields = {name: value for name, value in call.fields.items() if name not in _NAMES}
        fields["input"] = raw_member("input", expanded.body["input"])
        return call_of(expanded, fields)

    async def kept(self, response_id: str, owner: str) -> ResponseState:
        """A response that is kept for its owner. Raises `NotFound`, `BusUnavailable`, or `Unreadable`."""
        state = await self._owned(response_id, owner)
        if state is None:
            raise not_kept(response_id)
        return state

    async def forget(self, response_id: str, owner: str) -> None:
        """Keep a response no longer; those that continued it stay. Raises as `kept` does."""
        await self.kept(response_id, owner)
        await self._responses.delete_state(response_id)

    async def keep(self, call: CallRequest, response: Body | bytes, owner: str) -> None:
        """Keep a response that the gateway made of a chat, whole or as the agent gets it, unless its request says
        otherwise."""
        asked = asked_of(call)
        if not asked.store:
            return
        try:
            body: Body = msgspec.json.decode(response) if isinstance(response, bytes) else response
            state = state_of(asked, body, owner=owner)
            await self._responses.put_state(state)
            if asked.conversation is not None:
                await self._responses.put_state(continued_conversation(state, asked.conversation))
        except Exception:  # the boundary: the engine has answered, and no fault in keeping may take that back
            log.exception("a response cannot be kept", response=call.answer_id)

    async def close(self) -> None:
        """Give up what is not stored."""
        await self._responses.close()

    async def _owned(self, state_id: str, owner: str) -> ResponseState | None:
        """A state that is kept for its owner: for all others it does not exist."""
        state = await self._responses.get_state(state_id)
        return state if state is not None and state.owner == owner else None
