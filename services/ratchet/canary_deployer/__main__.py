"""Run the canary deployer: `python -m ratchet.canary_deployer`."""

from ratchet.canary_deployer.app import build
from ratchet.canary_deployer.settings import Settings
from ratchet.kernel.runtime import run

if __name__ == "__main__":
    settings = Settings()
    run("canary_deployer", build(settings), settings.kernel)
