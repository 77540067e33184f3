"""What this process has for the other gateways, until it is sent, and what it knows of them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence

from ratchet.core.contract.gateway_notes import (
    AnswerNote,
    CallNote,
    FailureNote,
    GatewayNotes,
    RepetitionNote,
    UseNote,
)
from ratchet.gateway.domain.past_calls import CallsElsewhere
from ratchet.gateway.domain.routing import Arm


class PeerUpdates:
    """Collects notes for the peers. Until they can be sent it keeps none."""

    def __init__(self, calls_bytes: int = 0) -> None:
        """`calls_bytes`: memory for the calls of other processes."""
        self.calls = CallsElsewhere(calls_bytes)
        """What other processes recorded."""
        self.gateways = 1
        """How many gateways are alive, this one included."""
        self.process = uuid.uuid4().hex
        """Names this process; it is never used again."""
        self.send: Callable[[], None] = lambda: None
        """Sends what is collected, before it returns: for what must be known before an agent's next call."""
        self._soon: Callable[[], None] | None = None
        self._later: Callable[[], None] | None = None
        self._asked: Callable[[], None] | None = None
        """What was asked to send what is collected."""
        self._answers: list[AnswerNote] = []
        self._failures: list[FailureNote] = []
        self._repetitions: list[RepetitionNote] = []
        self._ends: list[str] = []
        self._arms: dict[tuple[str, str], Arm] = {}
        self._calls: list[CallNote] = []
        self._uses: list[UseNote] = []

    def listen(self, send: Callable[[], None], soon: Callable[[], None], later: Callable[[], None]) -> None:
        """From now on have notes sent: `send` does it at once, `soon` after what is being done now, and `later` with
        what comes within a moment."""
        self.send, self._soon, self._later = send, soon, later

    def answered(self, trajectory_id: str, turn_id: str, marks: Sequence[str]) -> None:
        """A later call of the trajectory is recognised by these marks."""
        if marks and self._accepts():
            self._answers.append(AnswerNote(trajectory_id=trajectory_id, turn_id=turn_id, marks=list(marks)))

    def failed(self, trajectory_id: str, mark: str, length: int, parent_turn_id: str | None) -> None:
        """A call failed; its repetition may go to another gateway."""
        if self._accepts():
            note = FailureNote(trajectory_id=trajectory_id, mark=mark, length=length, parent_turn_id=parent_turn_id)
            self._failures.append(note)

    def repeated(self, trajectory_id: str, mark: str, length: int) -> None:
        """A failed call has been repeated."""
        if self._accepts():
            self._repetitions.append(RepetitionNote(trajectory_id=trajectory_id, mark=mark, length=length))

    def ended(self, trajectory_id: str) -> None:
        """An agent has ended a trajectory."""
        if self._accepts():
            self._ends.append(trajectory_id)

    def changed(self, arm: Arm) -> None:
        """A trajectory has another turn, another policy, or an end. The notes have it as it is when they are sent."""
        if self._accepts():
            self._arms[arm.trajectory_id, arm.role] = arm

    def recorded(self, call: CallNote) -> None:
        """A call is recorded. No call waits for that, only records do: notes of several go out together."""
        if self._accepts(self._later):
            self._calls.append(call)

    def used(self, key_id: str, *, tokens: int = 0, requests: int = 0) -> None:
        """A key with a limit used something."""
        if self._accepts():
            self._uses.append(UseNote(key_id=key_id, tokens=tokens, requests=requests))

    def take(self) -> GatewayNotes | None:
        """What is to be sent; None when there is nothing."""
        if self._asked is None:
            return None
        notes = GatewayNotes(
            process=self.process,
            answers=self._answers,
            failures=self._failures,
            repetitions=self._repetitions,
            ends=self._ends,
            arms=[arm.note() for arm in self._arms.values()],
            calls=self._calls,
            uses=self._uses,
        )
        self._answers, self._failures, self._repetitions, self._ends = [], [], [], []
        self._arms, self._calls, self._uses = {}, [], []
        self._asked = None
        return notes

    def heartbeat(self) -> GatewayNotes:
        """Says only that this process is alive."""
        return GatewayNotes(process=self.process)

    def _accepts(self, when: Callable[[], None] | None = None) -> bool:
        """`when`: it goes out then, or with what goes out before; by default soon."""
        when = when or self._soon
        if when is None:
            return False
        if self._asked is not when and self._asked is not self._soon:
            self._asked = when
            when()
        return True
