"""`python -m ratchet.analyst`"""

from ratchet.analyst.app import NAME, build
from ratchet.analyst.settings import Settings
from ratchet.core.service.runtime import run

if __name__ == "__main__":
    run(NAME, build, Settings)
