"""Takes what is stored out of ClickHouse into one file, in rows that other programs read."""

from ratchet.exporters.base import Kind
from ratchet.exporters.executions import EXECUTIONS
from ratchet.exporters.rewards import REWARDS
from ratchet.exporters.tasks import TASKS
from ratchet.exporters.trajectories import TRAJECTORIES
from ratchet.plugins import PluginTable, instance_of

KINDS: PluginTable[Kind] = PluginTable(
    "ratchet.exporters",
    "kind of export",
    {"trajectories": TRAJECTORIES, "executions": EXECUTIONS, "rewards": REWARDS, "tasks": TASKS},
    instance_of(Kind),
)
"""What can be exported. A further kind is one file and one entry here, or a package."""
