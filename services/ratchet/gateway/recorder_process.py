"""A recorder: jobs come in on standard input, what became of them goes out on standard output, in their order.

Run by the gateway alone (`Recorders`), as `python -m ratchet.gateway.recorder_process BYTES`. It ends when its input
does, so it never outlives its gateway.
"""

from __future__ import annotations

import os
import signal
import struct
import sys
from typing import BinaryIO

import msgspec

from ratchet.bus.clock import utc_now
from ratchet.bus.envelope import Sealer
from ratchet.gateway.recording import SOURCE, Job, Recording
from ratchet.rules.redaction import Redactor
from ratchet.service.contracts import load_contracts

LENGTH = struct.Struct("<I")
"""In front of every frame: how many bytes it has."""
NICENESS = 5
"""Agents who wait for an answer go before what is written down of it."""


def main() -> None:
    """Record until the input ends."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # meant for the gateway, which still has jobs for us
    os.nice(NICENESS)
    recording = Recording(Sealer(load_contracts(), SOURCE, utc_now), Redactor(), int(sys.argv[1]))
    serve(sys.stdin.buffer, sys.stdout.buffer, recording)


def serve(source: BinaryIO, sink: BinaryIO, recording: Recording) -> None:
    """Say with an empty frame that work begins, then answer each job with one frame."""
    sink.write(LENGTH.pack(0))
    sink.flush()
    encoder, decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(Job)
    while len(header := source.read(LENGTH.size)) == LENGTH.size:
        (length,) = LENGTH.unpack(header)
        recorded = encoder.encode(recording.record(decoder.decode(source.read(length))))
        sink.write(LENGTH.pack(len(recorded)) + recorded)
        sink.flush()


if __name__ == "__main__":
    main()
