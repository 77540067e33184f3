"""The public litellm client, kept from reading its price list off the network when it is imported."""

from __future__ import annotations

import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm

__all__ = ["litellm"]
