"""`python -m ratchet.trainer_worker`"""

from ratchet.core.service.runtime import run
from ratchet.trainer_worker.app import NAME, build
from ratchet.trainer_worker.settings import Settings

if __name__ == "__main__":
    run(NAME, build, Settings)
