"""`python -m ratchet.rl_coordinator`"""

from ratchet.core.service.runtime import run
from ratchet.rl_coordinator.app import build
from ratchet.rl_coordinator.settings import Settings

if __name__ == "__main__":
    run("rl_coordinator", build, Settings)
