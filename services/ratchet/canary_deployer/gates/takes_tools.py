"""Gate `takes_tools`: whether the engine's chat template shows a policy the tools that agents offer.

A policy whose template shows none can never call one. What follows depends on whether the role's agents use tools: the
candidate's training counted the conversations that offer some and whose template shows none, and stable's template may
show them.

A template without a place for tools renders a call as if it had none. The replica renders a short chat with and
without a tool, and the token ids are compared.
"""

from __future__ import annotations

from dataclasses import dataclass

from ratchet.bus.message import JsonObject
from ratchet.canary_deployer.domain.gating import TAKES_TOOLS
from ratchet.canary_deployer.domain.rollout import FAILED, NEEDS_APPROVAL, NOT_RUN, PASSED, GateResult
from ratchet.canary_deployer.replicas import MEND, Replica, ReplicaChecks
from ratchet.core.contract.state import PolicyVersion
from ratchet.core.errors import Rejected
from ratchet.core.rules.figures import CONVERSATIONS_WITHOUT_TOOLS

ANSWERED = "the gateway answers calls that offer some with 400"
LACKS = "its engine's chat template shows it no tools"
REPAIR = (
    "train it from a base model whose template does, or start the engine with such a template (vLLM's --chat-template)"
)

TOOL: JsonObject = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks up the weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "Its name."}}},
    },
}


@dataclass(frozen=True, slots=True)
class TakesToolsGate:
    """Compares prompts with and without a tool."""

    checks: ReplicaChecks

    async def check(self, candidate: PolicyVersion, stable: PolicyVersion | None) -> GateResult:
        """Stable is asked only where the candidate's template shows no tools."""
        try:
            shown = (await self.checks.on_each(candidate, stable, shows_tools)).results
        except Rejected as error:
            return GateResult(TAKES_TOOLS, FAILED, f"its engine renders no chat: {error}")
        known = {name: shows for name, shows in shown.items() if shows is not None}
        if not known:
            return GateResult(TAKES_TOOLS, NOT_RUN, "not checked: the engine gives no token ids of a chat (/tokenize)")
        evidence: JsonObject = {"takes_tools": all(known.values()), "replicas": known}
        if all(known.values()):
            return GateResult(TAKES_TOOLS, PASSED, "its engine's chat template shows it tools", evidence)
        if any(known.values()):
            lacking = ", ".join(name for name, shows in known.items() if not shows)
            raise self.checks.inconclusive(candidate, f"{lacking}: {LACKS}; but not on every replica: {MEND}")
        offered = int((candidate.metrics or {}).get(CONVERSATIONS_WITHOUT_TOOLS, 0))
        stable_takes = await self._takes_tools(stable, candidate) if stable is not None else None
        return GateResult(TAKES_TOOLS, *_verdict(offered, stable_takes), evidence)

    async def _takes_tools(self, stable: PolicyVersion, candidate: PolicyVersion) -> bool:
        """Whether any replica's template shows tools to stable. Raises `Unavailable`."""
        try:
            shown = await self.checks.on_each(stable, None, shows_tools)
        except Rejected as error:
            raise self.checks.inconclusive(
                candidate, f"{stable.name}, which serves the role, is refused: {error}"
            ) from error
        return any(shown.results.values())


def _verdict(offered: int, stable_takes: bool | None) -> tuple[str, str]:
    """Outcome and reason for a policy without tools.

    `offered`: conversations of its training that offer tools which were not shown; `stable_takes`: None without stable.
    """
    if stable_takes is False:
        return PASSED, f"{LACKS}, and so it is with stable: {ANSWERED}"
    if offered:
        return FAILED, f"{LACKS}, and {offered} conversations that it learned from offer some: {REPAIR}"
    if stable_takes:
        return NEEDS_APPROVAL, f"{LACKS}, but stable takes them: approve it where no agent of the role offers any"
    return PASSED, f"{LACKS}: {ANSWERED}"


async def shows_tools(replica: Replica, model: str) -> bool | None:
    """Whether a tool changes a prompt; None from an engine that gives no token ids.

    Raises `Unavailable`, and `Rejected` where it renders no chat of the policy.
    """
    plain = await replica.chat_ids(model, ())
    if plain is None:
        return None
    try:
        return await replica.chat_ids(model, [TOOL]) != plain
    except Rejected:  # the template refuses tools
        return False
