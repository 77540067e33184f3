"""SmolLM2 itself, for tests: skipped, with words, where its package is not installed."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from ratchet.local.smollm2 import NoRealModel, smollm2


@cache
def real_model() -> Path:
    """The model's directory, made once for this machine."""
    try:
        return smollm2()
    except NoRealModel as error:
        pytest.skip(str(error))
