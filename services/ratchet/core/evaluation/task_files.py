"""Task files: JSON lines, each a task. A file with one bad line is no file: a smaller set of tasks is another set."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec

from ratchet.bus.schemas import Schema, load_schema, parse
from ratchet.core.contract.evaluation_task import Task
from ratchet.core.errors import InvalidMessage, NotFound, Rejected
from ratchet.core.evaluation.graders import build_grader
from ratchet.core.evaluation.graders.base import Conversation
from ratchet.core.resources import resource_dir

MOST_BYTES = 64 * 1024 * 1024
"""Of a file, which is read whole."""
MOST_TASKS = 10_000
MOST_PROBLEMS = 10
"""Bad lines that an error names."""


@dataclass(frozen=True, slots=True)
class GradedTask:
    """A task, and how a try of it is graded."""

    task: Task
    begin: Callable[[], Conversation]


@dataclass(frozen=True, slots=True)
class TaskFile:
    """The tasks of a file, in its order."""

    name: str
    digest: str
    """sha256 of its bytes."""
    tasks: Sequence[GradedTask]

    def drawn(self, most: int, seed: int) -> Sequence[GradedTask]:
        """At most so many tasks, the same ones for the same seed."""
        return self.tasks if len(self.tasks) <= most else random.Random(seed).sample(self.tasks, most)


def task_digest(task: Task) -> str:
    """sha256 of what is asked and what is expected: the same task under another id is the same."""
    asked = {"messages": task.messages, "tools": [*task.tools], "expect": msgspec.to_builtins(task.expect)}
    return hashlib.sha256(msgspec.json.encode(asked, order="sorted")).hexdigest()


def tasks_by_digest(content: bytes, name: str) -> dict[str, str]:
    """Digest -> id of the tasks in the content of a file, whose graders need not be installed. Raises `Rejected`."""
    ids: dict[str, str] = {}
    for number, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        if line.strip():
            try:
                task = msgspec.convert(parse(line), Task)
            except (InvalidMessage, msgspec.ValidationError) as error:
                raise Rejected(f"{name}: line {number}: {error}") from error
            ids.setdefault(task_digest(task), task.id)
    if not ids:
        raise Rejected(f"{name} holds no tasks")
    return ids


def read_task_file(path: Path) -> TaskFile:
    """The tasks of a file. Raises `NotFound`, or `Rejected` with its bad lines by number."""
    return parse_tasks(read_content(path), str(path))


def read_content(path: Path) -> bytes:
    """What a task file holds, up to a byte more than one may have. Raises `NotFound`."""
    try:
        with path.open("rb") as file:
            return file.read(MOST_BYTES + 1)
    except FileNotFoundError as error:
        raise NotFound(f"no such file: {path}") from error
    except OSError as error:
        raise NotFound(f"cannot read {path}: {error.strerror}") from error


def parse_tasks(content: bytes, name: str) -> TaskFile:
    """The tasks in the content of a file. Raises `Rejected` with its bad lines by number."""
    if len(content) > MOST_BYTES:
        raise Rejected(f"{name} has more than {MOST_BYTES} bytes")
    lines = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not 0 < len(numbered) <= MOST_TASKS:
        raise Rejected(f"{name} holds {len(numbered)} tasks: it takes 1 to {MOST_TASKS}")
    tasks: dict[str, GradedTask] = {}
    first: dict[str, int] = {}
    problems: list[str] = []
    for number, line in numbered:
        try:
            parsed = parse(line)
            if (breach := _schema().breach(parsed)) is not None:
                raise InvalidMessage(breach.reason, breach.path)
            task = msgspec.convert(parsed, Task)
            graded = GradedTask(task, build_grader(task.expect))
        except (InvalidMessage, Rejected) as error:
            problems.append(f"line {number}: {error}")
            continue
        if (before := first.setdefault(graded.task.id, number)) != number:
            problems.append(f"line {number}: line {before} has the same id")
        tasks[graded.task.id] = graded
    if problems:
        more = f"; and {len(problems) - MOST_PROBLEMS} more" if len(problems) > MOST_PROBLEMS else ""
        raise Rejected(f"{name}: {'; '.join(problems[:MOST_PROBLEMS])}{more}")
    return TaskFile(name, hashlib.sha256(content).hexdigest(), list(tasks.values()))


@cache
def _schema() -> Schema:
    return Schema(load_schema(resource_dir("contracts"), "evaluation.task.v1"))
