"""Finds every `ratchet ...` in texts, and checks it against the parser."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from typer.main import get_command

from ratchet.cli.__main__ import app
from ratchet.cli.commands import imported

FENCE = re.compile(r"^[ \t]*```[^\n]*\n(.*?)^[ \t]*```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`((?:ratchet|\.venv/bin/ratchet)(?:\s[^`]*)?)`")
CALL = re.compile(r"(?:^|&&|\|\||;|\$\(|<\(|\| )\s*(?:\$ )?(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?(ratchet(?: [^\n]*)?)$")
SHELL_ENDS = re.compile(r'\)"(?:\s+#.*)?$')
"""What closes a `"$(ratchet ...)"`, also before a comment."""
ENDS = frozenset({"|", "||", "&&", ";", "&", ">", ">>", "<", "2>"})
WHATEVER = frozenset({"...", "OPTIONS"})
"""Stand for any number of words."""
PLACEHOLDER = re.compile(r"[A-Z_]{2,}\d?|\.\.\.|<.*>|\[.*")


@dataclass(frozen=True)
class Mention:
    """A command line in a text."""

    where: str
    line: str


def mentions(path: Path, text: str) -> Iterator[Mention]:
    """Command lines in code blocks, and those in line with the words."""
    for block in FENCE.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            call = CALL.search(line)
            if call:
                yield Mention(path.name, SHELL_ENDS.sub("", call[1]))
    yield from inline(path, FENCE.sub("", text))


def inline(path: Path, text: str) -> Iterator[Mention]:
    """Command lines between backticks, also where they are wrapped."""
    for code in INLINE.findall(text):
        yield Mention(path.name, " ".join(code.split()).removeprefix(".venv/bin/"))


def complaint(line: str) -> str | None:
    """The reason why the parser rejects a command line; None when it accepts it."""
    words = _words(line)
    if "|" in (alternatives := words[2] if len(words) > 2 else ""):
        problems = (complaint(shlex.join([*words[:2], part, *words[3:]])) for part in alternatives.split("|"))
        return next((problem for problem in problems if problem), None)
    return _walk(_command(), words[1:], line)


@cache
def _command() -> Any:  # `Any`: a command of typer's own parser
    return get_command(app)


def _walk(command: Any, words: list[str], line: str) -> str | None:  # `Any`: a command of typer's own parser
    """Follow the words through groups; check the options and arguments of the command they lead to."""
    given = 0
    while words:
        word, words = words[0], words[1:]
        if word.startswith("-") and word != "-":
            if word == "--help":
                continue
            option = _option(command, word)
            if option is None:
                return f"{line!r}: no option {word}"
            words = words if option.is_flag or "=" in word else words[1:]
            continue
        below = getattr(command, "commands", None)
        if below is None:
            given += word not in WHATEVER
            if given > (most := _most_arguments(command)):
                return f"{line!r}: {word} is one more than the {most} arguments of {command.name}"
            continue
        if PLACEHOLDER.fullmatch(word):
            continue
        if word not in below:
            return f"{line!r}: no command {word}"
        command = imported(below[word])
    return None


def _most_arguments(command: Any) -> float:
    """How many words the command takes besides its options."""
    numbers = [param.nargs for param in command.params if param.param_type_name == "argument"]
    return math.inf if -1 in numbers else sum(numbers)


def _option(command: Any, word: str) -> Any:
    """The option that the word names, with or without a value; None when the command has no such option."""
    name = word.partition("=")[0]
    known = [param for param in command.params if param.param_type_name == "option"]
    return next((one for one in known if name in (*one.opts, *one.secondary_opts)), None)


def _words(line: str) -> list[str]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&><")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in lexer:
        if word in ENDS:
            break
        words.append(word.strip("[]()").rstrip(",") if not word.startswith("[") else word.strip("[]"))
    return [word for word in words if word]
