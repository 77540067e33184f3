"""`python -m ratchet.rl_coordinator`"""

from ratchet.rl_coordinator.app import build
from ratchet.rl_coordinator.settings import Settings
from ratchet.service.runtime import run

if __name__ == "__main__":
    run("rl_coordinator", build, Settings)
