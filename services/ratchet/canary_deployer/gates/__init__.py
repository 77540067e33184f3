"""The gates before traffic, in the order in which the deployer asks them: cheap ones first, then an operator.

It asks the gates of other packages (`ratchet.core.plugins`) that the settings name before it asks an operator. It asks
`shadow_replay` after all others, and only where little traffic is all that keeps a candidate from starting.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from ratchet.canary_deployer.domain.gating import (
    APPROVAL,
    HELDOUT,
    OFF_POLICY,
    PROBE,
    RENDER,
    REPLAY,
    SAFETY_SUITE,
    SHADOW_TRAFFIC,
    TAKES_TOOLS,
    WARMUP,
)
from ratchet.canary_deployer.domain.rollout import FAILED, NOT_RUN, GateResult
from ratchet.canary_deployer.gates.approval import ApprovalGate
from ratchet.canary_deployer.gates.base import BuildGate, Gate, GateTools
from ratchet.canary_deployer.gates.heldout_tasks import HeldoutGate
from ratchet.canary_deployer.gates.off_policy import OfCalls, OffPolicyGate
from ratchet.canary_deployer.gates.probe import ProbeGate
from ratchet.canary_deployer.gates.render import RenderGate
from ratchet.canary_deployer.gates.safety_suite import SafetyGate
from ratchet.canary_deployer.gates.shadow_replay import ReplayGate
from ratchet.canary_deployer.gates.shadow_traffic import ShadowTrafficGate
from ratchet.canary_deployer.gates.takes_tools import TakesToolsGate
from ratchet.canary_deployer.gates.warmup import WarmupGate
from ratchet.core.contract.state import PolicyVersion
from ratchet.core.errors import ConfigError, DigestMismatch, NotFound, Rejected
from ratchet.core.evaluation.suites import HELDOUT as HELDOUT_SUITE, REGRESSION
from ratchet.core.plugins import PluginTable, callable_with

NO_ENGINE = "an upstream answers for it, which is no engine of Ratchet's: there is nothing to compare"


@dataclass(frozen=True, slots=True)
class OnWeights:
    """A gate that asks engines, for policies of every kind: it gets the adapter or model that answers for a bundle."""

    name: str
    gate: Gate
    weights_of: Callable[[PolicyVersion], Awaitable[PolicyVersion | None]]

    async def check(self, candidate: PolicyVersion, stable: PolicyVersion | None) -> GateResult:
        """It does not run where no engine holds the candidate."""
        try:
            weights = await self.weights_of(candidate)
        except (Rejected, NotFound, DigestMismatch) as error:
            return GateResult(self.name, FAILED, f"its model cannot be read: {error}")
        if weights is None:
            return GateResult(self.name, NOT_RUN, NO_ENGINE)
        return await self.gate.check(weights, await self._of_stable(stable))

    async def _of_stable(self, stable: PolicyVersion | None) -> PolicyVersion | None:
        try:
            return await self.weights_of(stable) if stable is not None else None
        except (Rejected, NotFound, DigestMismatch):
            return None


GATES: PluginTable[BuildGate] = PluginTable(
    "ratchet.gates",
    "gate",
    {
        RENDER: lambda tools: RenderGate(tools.bundles),
        PROBE: lambda tools: _on_weights(PROBE, ProbeGate(tools.checks, tools.read_manifest), tools),
        WARMUP: lambda tools: WarmupGate(tools.checks, tools.warmup_prompts, tools.bundles),
        TAKES_TOOLS: lambda tools: _on_weights(TAKES_TOOLS, TakesToolsGate(tools.checks), tools),
        HELDOUT: lambda tools: HeldoutGate(tools.task_files),
        SAFETY_SUITE: lambda tools: SafetyGate(
            tools.safety_plans,
            tools.suite_players,
            {HELDOUT_SUITE: tools.task_files, REGRESSION: tools.regression},
            tools.bundles.weights_of if tools.bundles else None,
        ),
        SHADOW_TRAFFIC: lambda tools: ShadowTrafficGate(tools.shadow),
        OFF_POLICY: lambda tools: OffPolicyGate(tools.planners),
        APPROVAL: lambda tools: ApprovalGate(tools.approval),
        REPLAY: lambda tools: ReplayGate(tools.replay),
    },
    callable_with(1),
)
"""Name -> how to build it. A new gate is a new file and a line here, or a package."""


def _on_weights(name: str, gate: Gate, tools: GateTools) -> Gate:
    return OnWeights(name, gate, tools.bundles.weights_of) if tools.bundles else gate


def build_gates(further: Sequence[str], tools: GateTools) -> dict[str, Gate]:
    """The gates by name, in order; `further` are those of other packages. Raises `ConfigError` for unknown ones."""
    unknown = sorted(name for name in further if name not in GATES or name in GATES.built_in)
    if unknown:
        installed = ", ".join(name for name in GATES if name not in GATES.built_in) or "none"
        raise ConfigError(f"no package brings the gates {', '.join(unknown)}; installed packages bring: {installed}")
    names = list(GATES.built_in)
    operator = names.index(APPROVAL)
    return {name: _built(name, tools) for name in (*names[:operator], *further, *names[operator:])}


def _built(name: str, tools: GateTools) -> Gate:
    """Of the gates that ship, two alone are for planners of workflows, too."""
    gate = GATES[name](tools)
    for_planners = name in (OFF_POLICY, APPROVAL) or name not in GATES.built_in
    return gate if for_planners or tools.bundles is None else OfCalls(name, gate, tools.bundles.bundle_of)


__all__ = ["GATES", "OnWeights", "build_gates"]
