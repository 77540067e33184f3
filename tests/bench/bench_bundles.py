"""What applying a bundle to a call costs, in each API.

    python -m tests.bench.bench_bundles

Instructions of 16,000 characters in the place of 8,000, before a question of 8,000: milliseconds of a processor a call.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from ratchet.core.contract.bundle import Bundle, Instructions, SamplingValues
from ratchet.dialects.apis import APIS
from ratchet.dialects.bundles import Applier
from ratchet.dialects.requests import read_fields

OURS, SENT, ASKED = "o" * 16_000, "s" * 8_000, "a" * 8_000
QUESTION = {"role": "user", "content": ASKED}
BODIES: Mapping[str, Mapping[str, Any]] = {
    "chat": {"model": "m", "messages": [{"role": "system", "content": SENT}, QUESTION]},
    "responses": {"model": "m", "instructions": SENT, "input": ASKED},
    "messages": {"model": "m", "max_tokens": 9, "system": SENT, "messages": [QUESTION]},
}
CALLS = 3_000


def main() -> None:
    """Print a line for each API."""
    applier = Applier(Bundle(instructions=Instructions(text=OURS), overrides=SamplingValues(temperature=0.2)))
    for name, body in BODIES.items():
        request = APIS[name].read(read_fields(msgspec.json.encode(body)))
        begun = time.process_time()
        for _ in range(CALLS):
            applier.apply(APIS[name], request)
        sys.stdout.write(f"{name:10s} {(time.process_time() - begun) / CALLS * 1000:.3f} ms\n")


if __name__ == "__main__":
    main()
