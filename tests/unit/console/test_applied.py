"""What the engine got of a call beside what its agent sent."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ratchet.bus.message import JsonObject
from ratchet.console.applied import LETTERS, applied_out
from ratchet.core.contract import Turn
from ratchet.core.contract.turn import Applied
from ratchet.core.errors import NotFound
from tests.support.messages import turn

DIGEST, TOOLS = "a" * 64, "b" * 64
REFUND: JsonObject = {"type": "function", "function": {"name": "refund", "description": "Pay back."}}
DELETE: JsonObject = {"type": "function", "function": {"name": "delete", "description": "Delete all."}}


def changed(**members: Any) -> Turn:
    """A first call of which the bundle changed something."""
    return turn(applied=Applied(digest=DIGEST, **{"replaced": 0, "head": [], **members}))


def parts_of(call: Turn, *run: Turn) -> dict[str, tuple[str | None, str | None]]:
    """By part: what was sent, and what the engine got."""
    return {part.name: (part.sent, part.got) for part in applied_out(call, [call, *run]).parts}


def test_instructions_and_examples_stand_beside_those_of_the_agent() -> None:
    head: list[JsonObject] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "hello"},
    ]
    parts = parts_of(changed(replaced=1, head=head))
    assert parts == {"instructions": ("Be helpful.", "Be brief."), "examples": (None, "user: hi\nassistant: hello")}


@pytest.mark.parametrize("error", [None, "the engine is away"])
def test_a_later_call_has_the_changes_of_an_earlier_one(error: str | None) -> None:
    first = changed(replaced=1, head=[{"role": "system", "content": "Be brief."}])
    later = turn(
        index=1, applied=Applied(digest=DIGEST), error=error, response=None if error else {"role": "assistant"}
    )
    assert parts_of(later, first) == {"instructions": ("Be helpful.", "Be brief.")}
    with pytest.raises(NotFound, match="earlier call"):
        applied_out(later, [later])


def test_only_tools_that_differ_are_parts() -> None:
    got = msgspec.convert(msgspec.to_builtins(REFUND), dict)
    call = msgspec.structs.replace(changed(tools=[got]), tools=[REFUND, DELETE], tools_digest=TOOLS)
    ((name, (sent, kept)),) = parts_of(call).items()
    assert (name, kept) == ("tool delete", None)
    assert sent is not None
    assert '"Delete all."' in sent


def test_a_response_format_stands_beside_the_agents() -> None:
    call = msgspec.structs.replace(
        changed(parameters={"response_format": {"type": "json_object"}}), parameters={"response_format": None}
    )
    assert parts_of(call) == {"response format": (None, '{\n  "type": "json_object"\n}')}


def test_a_call_as_it_was_sent_has_nothing_to_show() -> None:
    with pytest.raises(NotFound, match="as the agent sent it"):
        applied_out(turn(), [turn()])


def test_a_very_long_text_is_cut_and_the_answer_names_it() -> None:
    answer = applied_out(call := changed(replaced=1, head=[{"role": "system", "content": "x" * (LETTERS + 1)}]), [call])
    assert answer.is_cut
    assert len(answer.parts[0].got or "") == LETTERS
