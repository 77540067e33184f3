"""Filters of what goes to a model and of what comes back: those of this product, and those of other packages.

A filter is a function from a text to a `Verdict`, or None where the text may pass.

| file | holds |
|---|---|
| `base.py` | what a filter is, and what it says |
| `injection.py` | tool results that give orders to the model |
| `content.py` | requests and answers that tell how to do great harm |
| `places.py` | where the texts of requests, answers and streams stand |
| `judge.py` | asks one of them, bounded in time; those of other packages in processes of their own |
"""

from collections.abc import Mapping

from ratchet.core.plugins import PluginTable, callable_with
from ratchet.gateway.filters.base import Filter, Rules, Verdict
from ratchet.gateway.filters.content import content
from ratchet.gateway.filters.injection import injection

RULES: Mapping[str, Rules] = {"injection": injection, "content": content}
FILTERS: PluginTable[Filter] = PluginTable("ratchet.filters", "filter", RULES, callable_with(1))
"""By name: the settings of a role choose among them."""

__all__ = ["FILTERS", "Filter", "Verdict"]
