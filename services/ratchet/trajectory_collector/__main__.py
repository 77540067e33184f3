"""`python -m ratchet.trajectory_collector`"""

from ratchet.core.service.runtime import run
from ratchet.trajectory_collector.app import build
from ratchet.trajectory_collector.settings import Settings

if __name__ == "__main__":
    run("trajectory_collector", build, Settings)
