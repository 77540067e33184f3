"""Further detectors, by name: those of this product that cost more, and those of other packages (`ratchet.detectors`).

A detector is a function from a text to spans `(start, end, kind)`, which become `[REDACTED:kind]`. The setting
`RATCHET_REDACTION_DETECTORS` names those that search every text after the rules. One that raises, or whose spans are
none, fails closed: nothing is published of what it was to search.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, cast

from ratchet.core.errors import ConfigError, Rejected
from ratchet.core.plugins import PluginTable, callable_with
from ratchet.core.rules.redaction.finders import Span
from ratchet.core.rules.redaction.search import Detector

RULE_PACKAGES = ("detect-secrets", "phonenumbers")
"""Packages whose rules are used: another version of one makes another digest."""
_KIND = re.compile(r"[a-z][a-z_]{0,39}")


def presidio(text: str) -> Sequence[Span]:
    """What Presidio's pattern recognisers notice. Raises `ConfigError` without the extra `presidio`."""
    return import_module("ratchet.extras.presidio_detector").detect(text)


DETECTORS: PluginTable[Detector] = PluginTable(
    "ratchet.detectors", "detector", {"presidio": presidio}, callable_with(1)
)


@dataclass(frozen=True, slots=True)
class Active:
    """The detectors that this process uses beside the rules."""

    names: tuple[str, ...] = ()
    finders: tuple[Detector, ...] = ()


@cache
def active() -> Active:
    """As the environment names them, with commas between. Raises `ConfigError` for a name that nothing has."""
    names = os.environ.get("RATCHET_REDACTION_DETECTORS", "").split(",")
    return chosen([name.strip() for name in names if name.strip()])


def chosen(names: Sequence[str]) -> Active:
    """These detectors. Raises `ConfigError` for a name that nothing has, or a detector that does not fit."""
    if unknown := [name for name in names if name not in DETECTORS]:
        raise ConfigError(f"there is no detector {', '.join(unknown)}; there are: {', '.join(DETECTORS)}")
    return Active(tuple(names), tuple(checked(name, DETECTORS[name]) for name in names))


def checked(name: str, detector: Detector) -> Detector:
    """The detector, which raises `Rejected` for spans that are none."""

    def search(text: str) -> Sequence[Span]:
        spans: list[Span] = []
        for given in cast("Sequence[Any]", detector(text)):  # `Any`: another package made it
            start, end, kind = given
            if not (0 <= start < end <= len(text) and _KIND.fullmatch(kind)):
                raise Rejected(f"cannot redact: the detector {name} gave {given!r}, which is no (start, end, kind)")
            spans.append((start, end, kind))
        return spans

    return search


@cache
def rules_digest() -> str:
    """A name for all that decides what is taken out: the rules, the packages that they use, and the detectors."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.read_bytes())
    for package in RULE_PACKAGES:
        digest.update(f"{package} {version_of(package)}".encode())
    digest.update(" ".join(active().names).encode())
    return digest.hexdigest()[:16]


def version_of(package: str) -> str:
    """The version that is installed; empty for none."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
