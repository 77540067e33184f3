"""`python -m ratchet.notifier`"""

from ratchet.core.service.runtime import run
from ratchet.notifier.app import NAME, build
from ratchet.notifier.settings import Settings

if __name__ == "__main__":
    run(NAME, build, Settings)
