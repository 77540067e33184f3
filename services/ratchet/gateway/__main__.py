"""`python -m ratchet.gateway`"""

from ratchet.core.service.runtime import run
from ratchet.gateway.settings import Settings
from ratchet.gateway.supervisor import build_gateway

if __name__ == "__main__":
    run("gateway", build_gateway, Settings)
