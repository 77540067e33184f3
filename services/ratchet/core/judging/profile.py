"""Which judge it is: model, rubric and the way it is asked, each by its digest."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import msgspec

from ratchet.core.judging.questions import FORM, RUBRIC


@dataclass(frozen=True, slots=True)
class JudgeProfile:
    """What a judge's verdicts depend on."""

    model: str
    rubric: str = RUBRIC
    url: str = ""
    """The server of OpenAI's API; empty: the gateway."""
    tries: int = 0
    """Earlier tries of the task that work is compared with; 0: it is scored by the rubric alone."""

    @property
    def rater(self) -> str:
        """Who judges, to people: the model, and which rubric it got where that is one of their own."""
        return self.model if self.rubric == RUBRIC else f"{self.model}, rubric {self.rubric_digest[:8]}"

    @property
    def rubric_digest(self) -> str:
        """sha256 of the rubric."""
        return hashlib.sha256(self.rubric.encode()).hexdigest()

    @property
    def digest(self) -> str:
        """sha256 of all of it, and of the form of the questions."""
        parts = (FORM, self.model, self.rubric, self.url, self.tries)
        return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()
