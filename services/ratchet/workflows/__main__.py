"""`python -m ratchet.workflows`"""

from ratchet.core.service.runtime import run
from ratchet.workflows.app import NAME, build
from ratchet.workflows.settings import Settings

if __name__ == "__main__":
    run(NAME, build, Settings)
