"""`python -m ratchet.gateway`"""

from ratchet.gateway.settings import Settings
from ratchet.gateway.supervisor import build_gateway
from ratchet.service.runtime import run

if __name__ == "__main__":
    run("gateway", build_gateway, Settings)
