"""Run the console: `python -m ratchet.console`."""

from ratchet.console.app import NAME, build
from ratchet.console.settings import Settings
from ratchet.core.service.runtime import run

if __name__ == "__main__":
    run(NAME, build, Settings)
