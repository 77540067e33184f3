"""The contracts of this installation: the folder `contracts/` with the types and rules that belong to it."""

from __future__ import annotations

import functools

from ratchet.bus.contracts import Contracts, Upgrades
from ratchet.bus.failures import Notice
from ratchet.bus.message import named_id
from ratchet.core.contract import MESSAGES, Alert
from ratchet.core.resources import resource_dir
from ratchet.core.rules.redaction import masked, redacted

UPGRADES: Upgrades = {}
"""The functions that turn bodies of older topics into newer ones: every topic still has its first version."""


@functools.cache
def load_contracts() -> Contracts:
    """Topics, streams, buckets and schemas of the running version, read once a process: nothing in them changes."""
    contracts = Contracts.load(resource_dir("contracts"), MESSAGES, UPGRADES, masked, redacted)
    contracts.report = notice_alert
    return contracts


def notice_alert(notice: Notice) -> Alert:
    """The alert of a notice."""
    return Alert(
        alert_id=named_id("notice", notice.key, notice.program, notice.at.isoformat()),
        key=notice.key,
        severity=notice.severity,
        summary=notice.summary,
        source=notice.program,
        at=notice.at,
    )
