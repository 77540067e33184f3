"""`python -m ratchet.reward_computer`"""

from ratchet.reward_computer.app import build
from ratchet.reward_computer.settings import Settings
from ratchet.service.runtime import run

if __name__ == "__main__":
    run("reward_computer", build, Settings)
