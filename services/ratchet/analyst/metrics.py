"""Metrics of self-learning."""

from __future__ import annotations

from prometheus_client import Counter, Gauge

LEADING = Gauge("ratchet_analyst_leading", "1 while this analyst leads, 0 while it is a standby.")
EPISODES = Counter("ratchet_analyst_episodes_total", "Trajectories that were looked at.", ["role"])
PATTERNS = Gauge("ratchet_analyst_patterns", "Patterns by state.", ["role", "state"])
