"""The contracts of this installation: `contracts/` with the types and rules that belong to them."""

from __future__ import annotations

from ratchet.bus.contracts import Contracts
from ratchet.bus.upgrades import NO_UPGRADES, Upgrades
from ratchet.contract import MESSAGES
from ratchet.resources import resource_dir
from ratchet.rules.redaction import masked

UPGRADES: Upgrades = NO_UPGRADES
"""How bodies of older topics become newer ones."""


def load_contracts() -> Contracts:
    """Topics, streams, buckets and schemas of the running version."""
    return Contracts.load(resource_dir("contracts"), MESSAGES, UPGRADES, masked)
