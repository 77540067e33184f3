"""Gate `render`: what agents asked for in the last week, with the candidate's bundle.

A variable that a recorded request does not bring, or a tool that none offers, refuses the candidate. Then the longest
request is asked through the gateway, under the candidate's name, for a few tokens: that finds a context that overflows
and a model that no provider knows. What is refused for stable too says nothing of the candidate, and a shorter request
is asked. An operator who knows that agents will bring what they lack now can waive the gate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from ratchet.bus.message import JsonObject
from ratchet.canary_deployer.domain.gating import RENDER
from ratchet.canary_deployer.domain.rollout import FAILED, NOT_RUN, PASSED, GateResult
from ratchet.canary_deployer.gates.base import Asking, BundleTools, LoggedPrompt
from ratchet.core.contract.bundle import NO_BUNDLE, Bundle
from ratchet.core.contract.state import PolicyVersion
from ratchet.core.errors import DigestMismatch, NotFound, Rejected
from ratchet.core.rules.bundles import MissingVariable, template_of

REQUESTS = 400
"""The newest ones, one of each trajectory."""
LONGEST = 3
"""So many of the longest are asked, until one is refused for the candidate alone, or answered."""
TOKENS = 16
"""Of an answer: the fewest that every provider takes."""


@dataclass(frozen=True, slots=True)
class RenderGate:
    """Refuses what could not answer what agents ask for."""

    tools: BundleTools | None

    async def check(self, candidate: PolicyVersion, stable: PolicyVersion | None) -> GateResult:
        """Raises `Unavailable` while history, gateway or provider is away."""
        if self.tools is None or self.tools.recorded is None:
            return _not_run("no recorded request is known: the deployer does not know the coordinator")
        try:
            bundle = await self.tools.bundle_of(candidate)
        except (Rejected, NotFound, DigestMismatch) as error:
            return GateResult(RENDER, FAILED, f"its bundle cannot be read: {error}")
        try:
            logged = await self.tools.recorded(candidate.role, REQUESTS)
        except Rejected as error:
            return _not_run(str(error))
        requests = logged.prompts
        evidence: JsonObject = {"requests": len(requests), "left_out": logged.left_out}
        if bundle == NO_BUNDLE or not requests:
            why = "no request of the last week is recorded" if bundle != NO_BUNDLE else "it changes nothing of calls"
            return _not_run(why, evidence)
        if (why := _unrendered(bundle, requests)) is not None:
            return GateResult(RENDER, FAILED, why, evidence)
        return await _asked(self.tools.asking, candidate, stable, requests, evidence)


def _unrendered(bundle: Bundle, requests: Sequence[LoggedPrompt]) -> str | None:
    """Why some requests cannot be rendered; None where all can."""
    if why := lacking(bundle, {request.turn_id: request.metadata for request in requests}):
        return why
    unknown = unknown_tools(bundle, [request.tools for request in requests])
    if not unknown:
        return None
    newest = f"not that of turn {requests[0].turn_id}, the newest, either"
    return f"none of {len(requests)} recorded requests offers the tool {unknown[0]}: {newest}"


async def _asked(
    asking: Asking,
    candidate: PolicyVersion,
    stable: PolicyVersion | None,
    requests: Sequence[LoggedPrompt],
    evidence: JsonObject,
) -> GateResult:
    rendered = f"{len(requests)} recorded requests are rendered"
    for request in sorted(requests, key=_size, reverse=True)[:LONGEST]:
        asked = f"turn {request.turn_id}, one of the longest recorded requests with {_size(request):,} bytes"
        refusal = await asking.refusal(candidate, request, TOKENS)
        if refusal is None:
            return GateResult(RENDER, PASSED, f"{rendered}, and {asked}, is answered", evidence)
        if stable is None or not await _is_refused(asking, stable, request):
            return GateResult(RENDER, FAILED, f"{asked}, is refused: {refusal}", evidence)
    return GateResult(RENDER, PASSED, f"{rendered}; the longest ones are refused for stable, too", evidence)


async def _is_refused(asking: Asking, stable: PolicyVersion, request: LoggedPrompt) -> bool:
    try:
        await asking.ask(stable, request, TOKENS)
    except NotFound:
        return False
    except Rejected:
        return True
    return False


def _size(request: LoggedPrompt) -> int:
    return len(msgspec.json.encode([request.messages, request.tools]))


def _not_run(why: str, evidence: JsonObject | None = None) -> GateResult:
    return GateResult(RENDER, NOT_RUN, f"nothing was rendered: {why}", evidence or {})


def lacking(bundle: Bundle, metadata: Mapping[str, JsonObject]) -> str | None:
    """What requests lack that the instructions need, with the turn of one of them; None where nothing is missing.

    `metadata`: that of requests, by their turns.
    """
    if bundle.instructions is None:
        return None
    template = template_of(bundle.instructions)
    problems: dict[str, str] = {}
    for turn_id, given in metadata.items():
        try:
            template.expanded("", given)
        except MissingVariable as error:
            problems[turn_id] = str(error)
    if not problems:
        return None
    turn_id, why = next(iter(problems.items()))
    return f"turn {turn_id}: {why}; so it is with {len(problems)} of {len(metadata)} recorded requests"


def unknown_tools(bundle: Bundle, offered: Sequence[Sequence[JsonObject]]) -> list[str]:
    """The tools of a bundle that none of these requests offers."""
    known = {_name_of(tool) for tools in offered for tool in tools}
    return sorted(name for name in bundle.tools if name not in known)


def _name_of(tool: JsonObject) -> object:
    function: Any = tool.get("function")
    return (cast("JsonObject", function) if isinstance(function, dict) else tool).get("name")
