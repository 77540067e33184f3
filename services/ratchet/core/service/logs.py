"""Structured logs: one JSON object per line on standard error, without the content of messages.

Prompts, answers, credentials and personal data pass through our variables, and errors quote them. Every line therefore
goes through the same steps, whatever logs it (structlog, the standard library's loggers, an uncaught exception):

- an exception is its type, the place that raised it (file, line, function), and its message without what stands in
  quotes and without long numbers: what its author wrote there without quotes stays. Never a local variable, never the
  `repr` of an object;
- texts lose secrets and personal data that `redaction` recognises by their form, and end after `LONGEST` characters;
- a value that is no text, number, list or object is shown as the name of its type.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, TextIO, cast

import structlog

from ratchet.bus import failures
from ratchet.bus.failures import LONGEST_REASON, causes_of, frames, unquoted
from ratchet.core.errors import RatchetError
from ratchet.core.rules.redaction import masked

FRAMES = 20
"""Innermost frames of an exception that are shown."""
DEPTH = 4
"""Levels of a structure inside a line that are shown."""

Line = MutableMapping[str, Any]
"""Members of one line. `Any`: a caller may log any object."""


class _Output:
    """Standard error. A disk that is full takes no line: the work that logs it goes on."""

    def write(self, text: str) -> None:
        """Write a line, if that is possible."""
        with suppress(OSError):
            sys.stderr.write(text)

    def flush(self) -> None:
        """Flush, if that is possible."""
        with suppress(OSError):
            sys.stderr.flush()


def configure_logs(service: str, level: str) -> None:
    """Set up structlog, `logging` and the hooks for uncaught exceptions. `service` is a member of every line."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            without_content,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        logger_factory=structlog.WriteLoggerFactory(cast("TextIO", _Output())),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(service=service)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LibraryLines(service))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    sys.excepthook = _log_uncaught
    threading.excepthook = _log_uncaught_in_thread


def failure(error: BaseException) -> dict[str, str]:
    """An exception as members of a log line, without secrets that have a known form."""
    return failures.failure(error, masked)


def reason_of(error: BaseException) -> str:
    """The message of an exception; a foreign one without the values that it quotes and without long numbers."""
    text = str(error)
    return masked(text if isinstance(error, RatchetError) else unquoted(text)[:LONGEST_REASON])


def without_content(_logger: object, _method: str, line: Line) -> Line:
    """A structlog processor: replaces `exc_info` by a description without content, and makes every value printable."""
    exc_info = line.pop("exc_info", None)
    if isinstance(exc_info, tuple):
        parts = cast("tuple[object, ...]", exc_info)
        error = next((part for part in parts if isinstance(part, BaseException)), None)
    elif isinstance(exc_info, BaseException):
        error = exc_info
    else:
        error = sys.exc_info()[1] if exc_info else None
    shown = {name: _safe(value, DEPTH) for name, value in line.items()}
    if error is not None:
        # The exception and its causes, newest first.
        shown["exception"] = [
            {
                "type": type(cause).__name__,
                "reason": reason_of(cause),
                "frames": frames(cause.__traceback__)[-FRAMES:],
            }
            for cause in (error, *causes_of(error, DEPTH - 1))
        ]
    return shown


class LibraryLines(logging.Formatter):
    """Lines of the standard library's loggers. Only the first line of a message: the others show objects."""

    def __init__(self, service: str) -> None:
        """`service`: a member of every line."""
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        """One JSON object."""
        first, _, _ = record.getMessage().partition("\n")
        line: Line = {
            "service": self._service,
            "logger": record.name,
            "level": record.levelname.lower(),
            "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat().replace("+00:00", "Z"),
            "event": unquoted(first)[:LONGEST_REASON],
            "exc_info": record.exc_info,
        }
        return json.dumps(without_content(None, "", line))


def _safe(value: object, depth: int) -> object:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return masked(value)
    if isinstance(value, BaseException):
        return f"{type(value).__name__}: {reason_of(value)}"
    if depth > 0 and isinstance(value, Mapping):
        members = cast("Mapping[object, object]", value)
        return {masked(str(name)): _safe(member, depth - 1) for name, member in members.items()}
    if depth > 0 and isinstance(value, list | tuple | set | frozenset):
        return [_safe(item, depth - 1) for item in cast("list[object]", value)]
    return f"<{type(value).__name__}>"


def _log_uncaught(_kind: type[BaseException], error: BaseException, _traceback: TracebackType | None) -> None:
    if isinstance(error, KeyboardInterrupt):
        return
    structlog.get_logger().critical("uncaught exception", exc_info=error)


def _log_uncaught_in_thread(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is not None:
        _log_uncaught(args.exc_type, args.exc_value, args.exc_traceback)
