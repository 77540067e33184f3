"""What the calls of tools within one trajectory show.

| behaviour | the trajectory |
|---|---|
| `repeated_calls` | calls a tool with the same arguments three times or more |
| `call_loop` | goes around two or three different calls, three times in a row |
| `retries` | calls a tool again right after the same tool failed, twice or more |
| `early_quit` | answers right after a call failed, and calls nothing any more |
| `no_tool_called` | was offered tools, and called none |
| `ended_on_call` | ends with a call, and answers nothing |
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import msgspec

from ratchet.analyst.mining.texts import READ_NAME, name_of, signature_of
from ratchet.core.contract.trajectory import TrajectoryTurn, TurnResult

BEHAVIORS = {
    "repeated_calls": "repeat a tool call with the same arguments",
    "call_loop": "go around the same tool calls in a loop",
    "retries": "retry a tool that fails",
    "early_quit": "answer right after a failed tool call, without another",
    "no_tool_called": "call none of the offered tools",
    "ended_on_call": "end with a tool call, without an answer",
}
"""Behaviour -> what its trajectories do."""
TIMES = 3
"""From here on a repetition is one."""
RETRIES = 2
_FAILED = re.compile(
    r"\s*(?:\{\s*\"error\"\s*:\s*(?!null|false|\"\"|\{\})|error\b|exception\b|traceback\b)", re.IGNORECASE
)


def members_of(turns: Sequence[TrajectoryTurn], *, offered: bool) -> dict[str, list[str]]:
    """`tool`, `tool_sequence`, `tool_error` and `behavior` of a trajectory. `offered`: whether tools were."""
    calls = [(turn, turn.action.tool_name) for turn in turns if turn.action.tool_name]
    names = [name_of(tool) for _, tool in calls]
    errors = [_error_of(turn.result) for turn, _ in calls]
    keys = [f"{tool} {_arguments(turn)}" for turn, tool in calls]
    ends_with_call = bool(turns and turns[-1].action.tool_name)
    shown = {
        "repeated_calls": max(Counter(keys).values(), default=0) >= TIMES,
        "call_loop": any(_loops(keys, period) for period in (2, 3)),
        "retries": sum(bool(e) and a == b for (a, b), e in zip(pairwise(names), errors, strict=False)) >= RETRIES,
        "early_quit": bool(errors) and bool(errors[-1]) and not ends_with_call,
        "no_tool_called": offered and not calls,
        "ended_on_call": ends_with_call,
    }
    return {
        "tool": names,
        "tool_sequence": [name_of(f"{first} > {second}") for first, second in pairwise(names)],
        "tool_error": [
            signature_of(name, error[:READ_NAME])
            for name, error in zip(names, errors, strict=True)
            if error is not None
        ],
        "behavior": [behavior for behavior, is_shown in shown.items() if is_shown],
    }


def _loops(keys: Sequence[str], period: int) -> bool:
    """Whether `period` calls, not all of them equal, follow one another `TIMES` times."""
    same = 0
    for place in range(period, len(keys)):
        same = same + 1 if keys[place] == keys[place - period] else 0
        if same >= period * (TIMES - 1) and len(set(keys[place - period : place])) > 1:
            return True
    return False


def _error_of(result: TurnResult) -> str | None:
    """What a call failed with; None where it did not fail. Chats say it in the result alone, which is read then."""
    output = result.output
    if result.error:
        return result.error
    text = output if isinstance(output, str) else ""
    if not result.success:
        return text or "no result"
    reported = output.get("error") if isinstance(output, dict) else None
    if reported:
        return str(reported)
    return text if _FAILED.match(text[:READ_NAME]) else None


def _arguments(turn: TrajectoryTurn) -> str:
    return str(hash(msgspec.json.encode(turn.action.tool_args, order="deterministic")))
