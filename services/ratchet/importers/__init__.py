"""Trajectories that other systems logged, published once each."""

from ratchet.importers.base import Importer
from ratchet.importers.tau_bench import TAU_BENCH
from ratchet.plugins import PluginTable, instance_of

IMPORTERS: PluginTable[Importer] = PluginTable(
    "ratchet.importers", "importer", {"tau-bench": TAU_BENCH}, instance_of(Importer)
)
"""Formats by name. A further one is one file and one entry here, or a package."""
