"""`python -m ratchet.reward_computer`"""

from ratchet.core.service.runtime import run
from ratchet.reward_computer.app import build
from ratchet.reward_computer.settings import Settings

if __name__ == "__main__":
    run("reward_computer", build, Settings)
