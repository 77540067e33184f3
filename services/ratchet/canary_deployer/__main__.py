"""Run the canary deployer: `python -m ratchet.canary_deployer`."""

from ratchet.canary_deployer.app import NAME, build
from ratchet.canary_deployer.settings import Settings
from ratchet.core.service.runtime import run

if __name__ == "__main__":
    run(NAME, build, Settings)
