"""The gates before traffic, in the order in which they are asked: cheap ones first, then people.

Gates of other packages (`ratchet.plugins`) are asked where the settings name them, before people are.
`shadow_replay` is asked after all others, and only where little traffic is all that keeps a candidate from starting.
"""

from collections.abc import Sequence

from ratchet.canary_deployer.gates import approval, heldout_tasks, probe, shadow_replay, warmup
from ratchet.canary_deployer.gates.base import BuildGate, Gate, GateTools
from ratchet.errors import ConfigError
from ratchet.plugins import PluginTable, callable_with

GATES: PluginTable[BuildGate] = PluginTable(
    "ratchet.gates",
    "gate",
    {
        probe.NAME: probe.build,
        warmup.NAME: warmup.build,
        heldout_tasks.NAME: heldout_tasks.build,
        approval.NAME: approval.build,
        shadow_replay.NAME: shadow_replay.build,
    },
    callable_with(1),
)
"""Name -> how to build it. A new gate is a new file and a line here, or a package."""


def build_gates(further: Sequence[str], tools: GateTools) -> dict[str, Gate]:
    """The gates by name in the order of asking; `further` are those of other packages. Raises `ConfigError`."""
    unknown = sorted(name for name in further if name not in GATES or name in GATES.built_in)
    if unknown:
        brought = ", ".join(name for name in GATES if name not in GATES.built_in) or "none"
        raise ConfigError(f"no package brings the gates {', '.join(unknown)}; installed packages bring: {brought}")
    names = list(GATES.built_in)
    before_people = names.index(approval.NAME)
    return {name: GATES[name](tools) for name in (*names[:before_people], *further, *names[before_people:])}


__all__ = ["GATES", "build_gates"]
