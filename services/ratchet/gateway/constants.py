"""What no installation has had to change, each with its reason; tests choose other values."""

from __future__ import annotations

from dataclasses import dataclass

from ratchet.gateway.domain.routing import LEASE_S

MIB = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Constants:
    """Times in seconds, memory in bytes."""

    engine_connect_timeout_s: float = 2.0
    """For one connection: a refused or timed-out one is tried three times, while the agent waits."""
    engine_idle_s: float = 120.0
    """Longest silence within a stream, neither an event nor a comment: engines write comments every few seconds."""
    keep_alive_s: float = 5.0
    """A stream begins after this long at the latest, and gets a comment as often: proxies cut silent ones off after 30
    s or more. An error before that has a status of its own."""
    header_s: float = 10.0
    """For a client to send its request's headers: a slow line takes one second."""
    body_s: float = 60.0
    """For a client to send its request's body: 32 MiB at half a megabyte a second."""
    bodies_bytes: int = 512 * MIB
    """Of all open requests; beyond it requests get 503. Sixteen bodies of the largest size."""
    conversation_bytes: int = 256 * MIB
    """Of all recorders, for trajectories between their calls: 1,000 with eight calls of 8,000 tokens (32 KB) each. The
    next call of one that was forgotten records its whole prompt."""
    arms_bytes: int = 64 * MIB
    """For the arms of 64,000 trajectories between their calls."""
    identity_bytes: int = 64 * MIB
    """For what calls without a name are recognised by: 90,000 answers, those of other gateways included."""
    conversation_rest_s: float = 3600.0
    """How long a conversation may rest and be recognised by what was said in it: equal ones come again after longer."""
    lease_s: float = LEASE_S
    """A canary weight lapses after so long without an observed renewal."""
    queue_limit: int = 20_000
    """Turns in memory on their way to the broker: some seconds of the fastest traffic; the spool takes more."""
    spool_bytes: int = 512 * MIB
    """On disk for turns while the broker is away: half of the room that a start asks for."""
    close_s: float = 3.0
    """How long a stop waits for the broker to take what is queued; the rest is in the spool."""
