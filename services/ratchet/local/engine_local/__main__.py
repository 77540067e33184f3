"""`python -m ratchet.local.engine_local`."""

from ratchet.core.service.runtime import run
from ratchet.local.engine_local.app import build
from ratchet.local.engine_local.settings import Settings

if __name__ == "__main__":
    run("engine_local", build, Settings)
