"""From chat messages to training rows: which tokens of a rendered conversation the policy itself would write."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from transformers import PreTrainedTokenizerBase

from ratchet.core.chat_templates.conversations import ChatCounts, Conversation
from ratchet.core.chat_templates.encoder import MAX_LENGTH, ChatEncoder
from ratchet.trainer_worker.errors import DataUnusable
from ratchet.trainer_worker.job import JobSpec
from ratchet.trainer_worker.training.learner.rows import Row
from ratchet.trainer_worker.training.policy import TrainedPolicy


class ChatRows:
    """Makes rows with one tokenizer. Raises `Rejected` for a tokenizer that cannot."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, max_length: int, *, keep_end: bool = False) -> None:
        self._tokenizer = tokenizer
        self.max_length = max_length
        self._keep_end = keep_end
        self._encoder = ChatEncoder(tokenizer, max_length, keep_end=keep_end)

    @property
    def counts(self) -> ChatCounts:
        """What became of the conversations."""
        return self._encoder.counts

    def afresh(self) -> ChatRows:
        """The same, with counts of its own."""
        return ChatRows(self._tokenizer, self.max_length, keep_end=self._keep_end)

    def rows(self, conversations: Iterable[Conversation]) -> list[Row]:
        """Rows in which something learns, in order; a few conversations are in memory at a time.

        Raises `DataUnusable` when there is none.
        """
        made = self._encoder.rows(conversations)
        rows = [Row.of(row.trajectory_id, row.token_ids, row.loss_mask) for row in made]
        if not rows:
            reasons = "; ".join(f"{reason} ({count})" for reason, count in self.counts.unrenderable.most_common(3))
            raise DataUnusable(f"no conversation has an answer to learn from. {reasons}".strip())
        return rows


def chat_rows(spec: JobSpec, policy: TrainedPolicy) -> ChatRows:
    """For the conversations of a job: rows as long as it asks for, or as the policy can read."""
    longest = chat_length(policy.model, spec.config.hyperparameters.max_length)
    return ChatRows(policy.tokenizer, longest, keep_end=spec.loop.keep_end)


def chat_length(model: Any, requested: int | None) -> int:
    """The longest row: what a job asks for, at most the positions that the model (`Any`: wrapped or not) has."""
    positions = getattr(model.config, "max_position_embeddings", None) or MAX_LENGTH
    return min(requested or MAX_LENGTH, positions)
