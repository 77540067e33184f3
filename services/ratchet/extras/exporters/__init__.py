"""Takes what is stored out of ClickHouse into one file, in rows that other programs read."""

from ratchet.core.plugins import PluginTable, instance_of
from ratchet.extras.exporters.base import Kind
from ratchet.extras.exporters.executions import EXECUTIONS
from ratchet.extras.exporters.rewards import REWARDS
from ratchet.extras.exporters.tasks import TASKS
from ratchet.extras.exporters.trajectories import TRAJECTORIES

KINDS: PluginTable[Kind] = PluginTable(
    "ratchet.exporters",
    "kind of export",
    {"trajectories": TRAJECTORIES, "executions": EXECUTIONS, "rewards": REWARDS, "tasks": TASKS},
    instance_of(Kind),
)
"""What can be exported. A further kind is one file and one entry here, or a package."""
