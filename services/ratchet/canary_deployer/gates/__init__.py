"""The gates before traffic, in the order in which the deployer asks them: cheap ones first, then an operator.

It asks the gates of other packages (`ratchet.core.plugins`) that the settings name before it asks an operator. It asks
`shadow_replay` after all others, and only where little traffic is all that keeps a candidate from starting.
"""

from collections.abc import Sequence

from ratchet.canary_deployer.gates import approval, heldout_tasks, probe, shadow_replay, takes_tools, warmup
from ratchet.canary_deployer.gates.base import BuildGate, Gate, GateTools
from ratchet.core.errors import ConfigError
from ratchet.core.plugins import PluginTable, callable_with

GATES: PluginTable[BuildGate] = PluginTable(
    "ratchet.gates",
    "gate",
    {
        probe.NAME: probe.build,
        warmup.NAME: warmup.build,
        takes_tools.NAME: takes_tools.build,
        heldout_tasks.NAME: heldout_tasks.build,
        approval.NAME: approval.build,
        shadow_replay.NAME: shadow_replay.build,
    },
    callable_with(1),
)
"""Name -> how to build it. A new gate is a new file and a line here, or a package."""


def build_gates(further: Sequence[str], tools: GateTools) -> dict[str, Gate]:
    """The gates by name, in order; `further` are those of other packages. Raises `ConfigError` for unknown ones."""
    unknown = sorted(name for name in further if name not in GATES or name in GATES.built_in)
    if unknown:
        installed = ", ".join(name for name in GATES if name not in GATES.built_in) or "none"
        raise ConfigError(f"no package brings the gates {', '.join(unknown)}; installed packages bring: {installed}")
    names = list(GATES.built_in)
    operator = names.index(approval.NAME)
    return {name: GATES[name](tools) for name in (*names[:operator], *further, *names[operator:])}


__all__ = ["GATES", "build_gates"]
