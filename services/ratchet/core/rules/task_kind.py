"""What kind of task a trajectory was, where its agent did not say: its domain and how complex it was, from its words.

Simple, and the same for everyone who asks: a hint for filters and curves, no fact. A domain is the one of `HINTS` of
which the user's first words name the most; where they name none, the one that the instructions name; else `general`.
The words are English. Complexity is the mean of three parts, each 0..1: model calls (1: 0, 32 and more: 1, by the
logarithm), different tools that were called (8 and more: 1), and the length of the user's first words (4,000 characters
and more: 1). So it says how much a task took, also where another policy would have needed less.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache

from ratchet.core.contract.trajectory import Trajectory
from ratchet.core.rules.chat import text_of

GENERAL = "general"
HINTS: Mapping[str, str] = {
    "debugging": "debug debugging bug bugs traceback stacktrace exception exceptions error errors crash crashes crashed"
    " failing fix fixes fixed broken",
    "coding": "code coding program function functions class classes python javascript typescript java rust golang"
    " implement refactor compile compiles repository api algorithm",
    "data_analysis": "csv dataset dataframe data spreadsheet chart charts plot plots statistics average averages median"
    " sql table tables analyse analyze analysis correlation",
    "research": "research paper papers source sources cite citation citations literature investigate survey study"
    " studies evidence compare",
    "writing": "write writes draft essay article blog letter poem story translate summarise summarize proofread rewrite"
    " rephrase",
}
"""Domain -> the words that name it; of two that are named as often the first counts."""
READ = 500
"""Characters of a text that are looked at for a domain."""
CALLS, TOOLS, CHARACTERS = 32, 8, 4000
"""From here on a part of the complexity is 1."""

_DOMAINS = {word: domain for domain, words in HINTS.items() for word in words.split()}
_WORD = re.compile(r"[a-z]+")


def domain_of(trajectory: Trajectory) -> str:
    """The domain that its agent named, else the one of its words."""
    task = trajectory.task_context
    return task.domain or _named_in(_request(trajectory)[:READ]) or _named_in(task.instructions[:READ]) or GENERAL


def complexity_of(trajectory: Trajectory) -> float:
    """How complex it was, 0..1: as its agent measured it, else as it went."""
    given = trajectory.task_context.complexity_score
    if given is not None:
        return given
    calls = len({turn.turn_ref or f"turn {turn.turn_id}" for turn in trajectory.turns})
    tools = len({turn.action.tool_name for turn in trajectory.turns if turn.action.tool_name})
    parts = (
        min(1.0, math.log2(max(1, calls)) / math.log2(CALLS)),
        min(1.0, tools / TOOLS),
        min(1.0, len(_request(trajectory)) / CHARACTERS),
    )
    return round(math.fsum(parts) / len(parts), 3)


def _request(trajectory: Trajectory) -> str:
    """The user's first words."""
    asked = (turn.observation for turn in trajectory.turns if turn.observation.type == "user_message")
    content = next((observation.content for observation in asked), "")
    return text_of(content)


@lru_cache(maxsize=256)  # a role's instructions are those of its last trajectory
def _named_in(text: str) -> str | None:
    """The domain that a text names most often."""
    named = Counter(_DOMAINS[word] for word in _WORD.findall(text.lower()) if word in _DOMAINS)
    return max(HINTS, key=lambda name: named[name]) if named else None
