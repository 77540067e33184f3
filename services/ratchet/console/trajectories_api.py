"""The HTTP routes of trajectories: the list, one, one message; the tokens of a call, and what was changed of it."""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field

from ratchet.console.applied import applied_out
from ratchet.console.calls import Calls
from ratchet.console.tokens import Tokens
from ratchet.console.trajectories import Trajectories
from ratchet.core.contract.http.console import AppliedOut, TokensOut, TrajectoriesOut, TrajectoryOut
from ratchet.core.errors import BadRequest
from ratchet.core.rules.access import KeyScope, RoleSet
from ratchet.core.service.control_api import ControlApi
from ratchet.core.stores.trajectory_search import FIRST, Place, TrajectoryFilter

UNKNOWN: Mapping[int, str] = {404: "Nothing of such a trajectory is stored."}
SEVERAL: Mapping[int, str] = {400: "The id is used in several roles: name one."}
PAGE = 200


def finite(value: float | None) -> float | None:
    """A number. Raises `ValueError`, as pydantic wants it, for one that is none."""
    if value is not None and not math.isfinite(value):
        raise ValueError("must be a finite number")
    return value


Name = Annotated[str, Field(max_length=200)]
Reward = Annotated[float | None, AfterValidator(finite)]
RoleQuery = Annotated[str | None, Field(max_length=64, description="Needed for an id that is used in several roles.")]
TrajectoryId = Annotated[str, Field(max_length=400)]
TurnId = Annotated[str, Field(max_length=200)]


class FilterQuery(BaseModel):
    """Of which trajectories. A misspelt name is refused: it would show too many."""

    model_config = ConfigDict(extra="forbid")

    role: Name | None = None
    policy: int | None = Field(None, ge=0, lt=2**32, description="Version of the policy.")
    arm: Literal["stable", "canary", "pinned", "mixed"] | None = None
    outcome: Literal["success", "partial", "failure", "none"] | None = None
    source: Name | None = Field(None, description="client, assembled or import:<format>.")
    agent: Name | None = None
    domain: Name | None = None
    model: Name | None = Field(None, description="As the servers that answered name it; without calls, as reported.")
    profile: Name | None = Field(None, description="Of a subordinate agent.")
    since: AwareDatetime | None = Field(None, description="Of the end; of an open one, of its last call.")
    until: AwareDatetime | None = None
    evaluation: bool = Field(
        False, description="Also runs whose calls asked for a version by name; `arm=pinned` lists them alone."
    )


class ListQuery(FilterQuery):
    """Which trajectories."""

    reward_min: Reward = None
    reward_max: Reward = None
    reason: Name | None = Field(None, description="Keeps at least one of its calls from policy gradients.")
    text: str | None = Field(
        None, max_length=1000, description="Words, each of which stands in the conversation; 16 of them count."
    )
    state: Literal["open", "ended", "all"] = "all"
    limit: int = Field(50, ge=1, le=PAGE)
    after: str | None = Field(None, max_length=2000, description="`next` of the page before.")

    def filter(self, roles: RoleSet) -> TrajectoryFilter:
        """As the stores take it, of these roles."""
        names = TrajectoryFilter.__dataclass_fields__.keys() - {"version", "within"}
        members = {name: getattr(self, name) for name in names}
        return TrajectoryFilter(version=self.policy, within=roles.pattern, **members)


def cursor_of(place: Place) -> str:
    """A place in the list as an opaque text."""
    return base64.urlsafe_b64encode(msgspec.json.encode(place)).decode().rstrip("=")


def place_at(cursor: str) -> Place:
    """The place of a cursor. Raises `BadRequest`."""
    try:
        body = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        place = msgspec.json.decode(body, type=Place)
    except (binascii.Error, ValueError, msgspec.DecodeError) as error:
        raise _damaged() from error
    if abs(place.at) > FIRST.at:
        raise _damaged()
    return place


def _damaged() -> BadRequest:
    return BadRequest("`after` is not what a page gave as `next`: ask for the first page without it", param="after")


def add_routes(api: ControlApi, trajectories: Trajectories, calls: Calls, tokens: Tokens) -> None:
    """Serve `/v1/trajectories` and what is under it, and `/v1/calls`."""

    async def list_trajectories(asked: ListQuery, roles: RoleSet) -> TrajectoriesOut:
        """Find trajectories, newest first, open ones too."""
        after = place_at(asked.after) if asked.after else FIRST
        page = await trajectories.listing.page(asked.filter(roles), asked.limit, after)
        return TrajectoriesOut(
            trajectories=list(page.trajectories),
            next=cursor_of(page.after) if page.after else None,
            searched_since=page.searched_since,
        )

    async def get_trajectory(
        trajectory_id: TrajectoryId,
        roles: RoleSet,
        role: RoleQuery = None,
        first_message: Annotated[int, Field(ge=0, lt=2**31, description="Index of the first message shown.")] = 0,
    ) -> TrajectoryOut:
        """Show one trajectory, with its conversation, rewards and feedback; also one that has not ended."""
        return await trajectories.get(trajectory_id, role, first_message, roles)

    async def get_message(
        trajectory_id: TrajectoryId,
        index: Annotated[int, Field(ge=0, lt=2**31)],
        roles: RoleSet,
        role: RoleQuery = None,
    ) -> str:
        """Fetch the whole text of one message: never a page, whatever it holds."""
        return await trajectories.message(trajectory_id, role, index, roles)

    async def get_tokens(
        turn_id: TurnId,
        roles: RoleSet,
        offset: Annotated[int, Field(ge=0, lt=2**31, description="Index of the first token shown.")] = 0,
    ) -> TokensOut:
        """Show the tokens of a call's answer, and which of them teach."""
        return await tokens.get(turn_id, offset, roles)

    async def get_applied(turn_id: TurnId, roles: RoleSet) -> AppliedOut:
        """Show what the engine got of a call beside what the agent sent, where the policy's bundle changed it."""
        return await calls.shown(turn_id, applied_out, roles)

    one = {**UNKNOWN, **SEVERAL}
    damaged = {400: "The cursor is damaged."}
    api.route("GET", "/v1/trajectories", list_trajectories, scope=KeyScope.VIEW, errors=damaged, reads=True)
    api.route("GET", "/v1/trajectories/{trajectory_id}", get_trajectory, scope=KeyScope.VIEW, errors=one, reads=True)
    whole = "/v1/trajectories/{trajectory_id}/messages/{index}"
    api.text_route(whole, get_message, scope=KeyScope.VIEW, errors=one)
    no_tokens = {404: "No such call is stored, or it has no token ids."}
    api.route("GET", "/v1/calls/{turn_id}/tokens", get_tokens, scope=KeyScope.VIEW, errors=no_tokens, reads=True)
    as_sent = {404: "No such call is stored, or the engine got it as the agent sent it."}
    api.route("GET", "/v1/calls/{turn_id}/applied", get_applied, scope=KeyScope.VIEW, errors=as_sent, reads=True)
