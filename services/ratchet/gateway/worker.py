"""One of several gateway processes on one port: its supervisor runs `python -m ratchet.gateway.worker SEAT`."""

import sys
from functools import partial

from ratchet.core.service.runtime import run
from ratchet.core.service.seat import Seat
from ratchet.gateway.app import build
from ratchet.gateway.settings import Settings

if __name__ == "__main__":
    seat = Seat.from_text(sys.argv[1])
    run("gateway", partial(build, seat=seat), Settings, seat)
