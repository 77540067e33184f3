"""Run the experiment tracker: `python -m ratchet.experiment_tracker`."""

from ratchet.experiment_tracker.app import NAME, build
from ratchet.experiment_tracker.settings import Settings
from ratchet.service.runtime import run

if __name__ == "__main__":
    run(NAME, build, Settings)
