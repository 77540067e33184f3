"""`--record`: what the frameworks did becomes what they are held to, and the guide."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", action="store_true", help="store the results that this run has, instead of comparing")
