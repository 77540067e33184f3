"""Logged conversations, and what becomes of them: the counts of a job, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from ratchet.bus.message import JsonObject
from ratchet.core.contract.snapshot import ExecutionRow, LabelRow, PairRow, Row
from ratchet.core.rules.figures import CONVERSATIONS_WITHOUT_TOOLS

CHOSEN, REJECTED = ":chosen", ":rejected"
"""Ends of the ids of a pair's two conversations."""
NAMED = 3
"""Conversations that a finding names."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """One logged conversation in OpenAI's form."""

    trajectory_id: str
    messages: Sequence[JsonObject]
    tools: Sequence[JsonObject] = ()
    learn_from: int = 0
    """Index of the first message that may learn; what the assistant said before it is context."""


def conversations_of(row: Row) -> list[Conversation]:
    """What learns in a row of a snapshot: a trajectory's parts, both sides of a pair, a labelled answer; nothing in an
    execution of a workflow, which holds no conversation.
    """
    if isinstance(row, ExecutionRow):
        return []
    if isinstance(row, PairRow):
        sides = ((CHOSEN, row.chosen), (REJECTED, row.rejected))
        return [
            Conversation(f"{row.preference_id}{name}", [*row.prompt, *side], row.tools, len(row.prompt))
            for name, side in sides
        ]
    if isinstance(row, LabelRow):
        return [Conversation(row.trajectory_id, [*row.prompt, *row.completion], row.tools, len(row.prompt))]
    parts = [(part.messages, part.learn_from) for part in row.earlier]
    return [
        Conversation(row.trajectory_id, messages, row.tools, learn_from)
        for messages, learn_from in [*parts, (row.messages, row.learn_from)]
    ]


@dataclass(slots=True)
class ChatCounts:
    """What became of the conversations. `max_length`: tokens of the longest row; which end a longer one loses."""

    max_length: int = 0
    keep_end: bool = False
    conversations: int = 0
    rows: int = 0
    """Sequences to train on."""
    answers: int = 0
    """Assistant messages that learn."""
    trained_tokens: int = 0
    longest: int = 0
    """Tokens of the longest row, before it is cut."""
    unrenderable: Counter[str] = field(default_factory=Counter[str])
    split: int = 0
    """Conversations whose history is rendered differently from what was said: they make several rows."""
    empty_thoughts: int = 0
    dropped_thoughts: int = 0
    dropped_texts: int = 0
    unshown_tools: int = 0
    unended: int = 0
    truncated: int = 0
    first_truncated: list[str] = field(default_factory=list[str])
    """Ids of the first conversations that lost a part of a row."""
    lost_tokens: int = 0
    empty_rows: int = 0

    def metrics(self) -> dict[str, float]:
        """As a job reports them."""
        return {
            "split_conversations": self.split,
            "unrenderable_conversations": sum(self.unrenderable.values()),
            "truncated_rows": self.truncated,
            "truncated_tokens": self.lost_tokens,
            "empty_thoughts": self.empty_thoughts,
            "dropped_thoughts": self.dropped_thoughts,
            "dropped_texts": self.dropped_texts,
            "answers_without_end": self.unended,
            CONVERSATIONS_WITHOUT_TOOLS: self.unshown_tools,
        }

    def findings(self) -> list[str]:
        """One sentence for everything that is lost, or learnt by mistake; empty when nothing is."""
        findings = [f"{count} conversations are left out: {why}." for why, count in self.unrenderable.most_common()]
        if self.truncated:
            end = "beginning" if self.keep_end else "end"
            longer = f"{self.truncated} rows are longer than {self.max_length} tokens, and lose their {end}"
            findings.append(
                f"{longer}: the longest has {self.longest}, the first are of {', '.join(self.first_truncated)}."
            )
        counted = [(sentence, getattr(self, name)) for name, sentence in _SENTENCES.items()]
        return findings + [sentence.format(count) for sentence, count in counted if count]

    def truncate(self, conversation_id: str) -> None:
        """Count a row that is longer than the longest one."""
        self.truncated += 1
        if len(self.first_truncated) < NAMED and conversation_id not in self.first_truncated:
            self.first_truncated.append(conversation_id)


_SENTENCES = {
    "empty_thoughts": (
        "{} answers have no reasoning where the template renders an empty <think></think>: the policy does not learn "
        "it, and goes on thinking before it answers."
    ),
    "dropped_thoughts": "{} answers have a reasoning that the template leaves out: it is not learnt.",
    "dropped_texts": "{} answers have a text beside their tool calls that the template leaves out: it is not learnt.",
    "unended": "{} answers end without a control token: the policy does not learn from them when to stop.",
    "unshown_tools": "{} conversations offer tools that the template does not show to the policy.",
    "split": (
        "{} conversations look different as history than when they were written: they make one row for each part that "
        "stays as it was, which repeats what came before."
    ),
    "lost_tokens": "{} tokens of answers lie beyond the longest row: they are not learnt.",
    "empty_rows": "{} rows have no answer within the longest row, and are left out.",
}
"""Name of a count -> what it means."""
