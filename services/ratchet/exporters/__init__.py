"""Takes what is stored out of ClickHouse into one file, in rows that other programs read."""

from collections.abc import Mapping

from ratchet.exporters.base import Kind
from ratchet.exporters.executions import EXECUTIONS
from ratchet.exporters.rewards import REWARDS
from ratchet.exporters.trajectories import TRAJECTORIES

KINDS: Mapping[str, Kind] = {"trajectories": TRAJECTORIES, "executions": EXECUTIONS, "rewards": REWARDS}
"""What can be exported. A further kind is one file and one entry here."""
