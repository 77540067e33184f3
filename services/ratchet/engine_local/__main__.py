"""`python -m ratchet.engine_local`."""

from ratchet.engine_local.app import build
from ratchet.engine_local.settings import Settings
from ratchet.service.runtime import run

if __name__ == "__main__":
    run("engine_local", build, Settings)
