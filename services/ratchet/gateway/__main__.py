"""`python -m ratchet.gateway`"""

from ratchet.gateway.app import build
from ratchet.gateway.settings import Settings
from ratchet.service.runtime import run

if __name__ == "__main__":
    run("gateway", build, Settings)
