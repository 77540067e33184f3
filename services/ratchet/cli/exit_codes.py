"""The exit codes of commands."""

from __future__ import annotations

from enum import IntEnum

from ratchet.core.errors import RatchetError


class ExitCode(IntEnum):
    """The same for every command; the reference in docs/cli.md prints these lines."""

    DONE = 0, "it worked"
    FAILED = 1, "it did not, and one line on standard error says why"
    USAGE = 2, "the command line itself is wrong"
    PARTLY = 3, "it worked in part: some records were skipped, something is not ready, a job that was waited for failed"
    NO_STACK = 4, "no stack runs in this directory, and no address of one is in the environment"
    INTERRUPTED = 130, "interrupted"

    meaning: str

    def __new__(cls, value: int, meaning: str) -> ExitCode:
        made = int.__new__(cls, value)
        made._value_ = value
        made.meaning = meaning
        return made


class NoStack(RatchetError):
    """No system runs that the command could use."""
