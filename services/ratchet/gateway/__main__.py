"""`python -m ratchet.gateway`"""

from ratchet.core.service.runtime import run
from ratchet.gateway.app import build
from ratchet.gateway.settings import Settings

if __name__ == "__main__":
    run("gateway", build, Settings)
