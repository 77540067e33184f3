"""The gates before traffic, in the order in which they are asked: cheap ones first, people last."""

from ratchet.canary_deployer.gates import approval, heldout_tasks, probe, warmup
from ratchet.canary_deployer.gates.base import BuildGate

GATES: dict[str, BuildGate] = {
    probe.NAME: probe.build,
    warmup.NAME: warmup.build,
    heldout_tasks.NAME: heldout_tasks.build,
    approval.NAME: approval.build,
}
"""Name -> how to build it. A new gate is a new file and a line here."""

__all__ = ["GATES"]
