"""Run the experiment tracker: `python -m ratchet.extras.trackers`."""

from ratchet.core.service.runtime import run
from ratchet.extras.trackers.app import NAME, build
from ratchet.extras.trackers.settings import Settings

if __name__ == "__main__":
    run(NAME, build, Settings)
