"""The gates before traffic, in the order in which they are asked: cheap ones first, then people.

`shadow_replay` is asked after all others, and only where little traffic is all that keeps a candidate from starting.
"""

from ratchet.canary_deployer.gates import approval, heldout_tasks, probe, shadow_replay, warmup
from ratchet.canary_deployer.gates.base import BuildGate

GATES: dict[str, BuildGate] = {
    probe.NAME: probe.build,
    warmup.NAME: warmup.build,
    heldout_tasks.NAME: heldout_tasks.build,
    approval.NAME: approval.build,
    shadow_replay.NAME: shadow_replay.build,
}
"""Name -> how to build it. A new gate is a new file and a line here."""

__all__ = ["GATES"]
