"""Where a command lives that people look for elsewhere: a hint with the whole line to paste.

Hints and no aliases: `resume` at the top is a training's and below `rollout` a canary's, so a verb has one place.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from typer.core import TyperGroup

_ROLLOUT = {
    verb: f"rollout {verb}" for verb in ("approve", "pause", "promote", "rollback", "revert", "history", "audit")
}
ELSEWHERE: Mapping[str, Mapping[str, str]] = {
    "": _ROLLOUT,
    "policies": {**_ROLLOUT, "resume": "rollout resume", "start": "rollout start"},
    "jobs": {"cancel": "cancel", "resume": "resume", "start": "train"},
}
"""By group, the words that it does not have and where they lead; the empty name stands for `ratchet` itself."""


def require_here(group: TyperGroup, context: Any, words: Sequence[str]) -> None:
    """End with a usage error for a word that is a command elsewhere. `context`: typer keeps its type to itself."""
    name = group.name if group.name in ELSEWHERE else ""
    if words and words[0] not in group.commands and (there := ELSEWHERE[name or ""].get(words[0])):
        context.fail(f"there is no command {words[0]!r} here: `{shlex.join(['ratchet', *there.split(), *words[1:]])}`")


class Hinting(TyperGroup):
    """A group that names the place of commands that are not its own."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the words call. Raises `typer.TyperException` for an unknown one."""
        require_here(self, ctx, args)
        return super().resolve_command(ctx, args)
