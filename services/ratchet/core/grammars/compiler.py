"""Compiles constraints for a tokenizer: in a process apart, within bounds, and each of them once."""

from __future__ import annotations

import struct
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import msgspec
import xgrammar

from ratchet.core.contract.turn import Constraint
from ratchet.core.errors import Rejected, Unavailable
from ratchet.core.grammars.compiler_process import LENGTH, Job, Result, Vocabulary
from ratchet.core.grammars.sources import source_of
from ratchet.core.grammars.walk import Grammar


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one grammar may take."""

    cpu_s: int = 5
    """Seconds of processor time to compile."""
    memory: int = 1 << 30
    """Bytes to compile."""
    size: int = 64 << 20
    """Bytes of a compiled grammar."""
    cached: int = 256 << 20
    """Bytes of compiled grammars that are kept."""


class Tokens:
    """The tokens of one model, as grammars see them."""

    def __init__(self, tokenizer: Any, size: int, ends: Sequence[int], tool_format: str) -> None:
        """`tokenizer` is a fast one of transformers (`Any`: its types are not usable); `size` the number of logits;
        `ends` all tokens that end an answer; `tool_format` how the model writes calls. Raises `Rejected` for a
        tokenizer that xgrammar cannot read.
        """
        self.tool_format = tool_format
        self.size = size
        self.ends = sorted(end for end in ends if end < size)
        if not self.ends:
            raise Rejected("the model has no token that ends an answer")
        # With the tokenizer's own end token, and the others per answer: as vLLM does it.
        own = None if tokenizer.eos_token_id is not None else self.ends
        try:
            self.info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=size, stop_token_ids=own)
        except (ValueError, RuntimeError) as error:
            raise Rejected(f"xgrammar cannot read the tokenizer: {error}") from error
        self.serialized = self.info.serialize_json()
        self.key = sha256(f"{self.tool_format} {self.serialized}".encode()).hexdigest()


class Compiler:
    """Compiles in one process, started when it is first needed. Thread-safe; blocks while it compiles."""

    def __init__(self, bounds: Bounds | None = None) -> None:
        self._bounds = bounds or Bounds()
        self._one = threading.Lock()
        """Held while a grammar is compiled: one at a time."""
        self._process: subprocess.Popen[bytes] | None = None
        self._known: set[str] = set()
        self._cache = _Cache(self._bounds.cached)

    def compile(self, tokens: Tokens, constraint: Constraint) -> Grammar:
        """The grammar of a constraint. Raises `Rejected` with the reason why there is none, or `Unavailable`."""
        source = source_of(constraint, tokens.tool_format)
        with self._one:
            known = self.known(tokens, constraint)
            if known is not None:
                return known
            bounds = self._bounds
            job = Job(tokens.key, source.language, source.text, bounds.cpu_s, bounds.memory, bounds.size)
            result, size = self._ask(tokens, job), 0
            outcome: Grammar | str = result.reason or "it cannot be compiled"
            if result.grammar is not None:
                compiled = xgrammar.CompiledGrammar.deserialize_json(result.grammar, tokens.info)
                outcome, size = Grammar(compiled, tokens.size, tokens.ends), len(result.grammar)
            self._cache.put(_key(tokens, constraint), outcome, size)
        if isinstance(outcome, str):
            raise Rejected(outcome)
        return outcome

    def known(self, tokens: Tokens, constraint: Constraint) -> Grammar | None:
        """A grammar that was compiled before; never waits. Raises `Rejected` for one that was refused, or whose
        answers take too long.
        """
        outcome = self._cache.get(_key(tokens, constraint))
        if isinstance(outcome, str):
            raise Rejected(outcome)
        if outcome is not None and outcome.costly:
            raise Rejected("following the grammar takes too long")
        return outcome

    def close(self) -> None:
        """End the process; what compiles now fails."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):  # what was not written yet goes nowhere
                    pipe.close()

    def _ask(self, tokens: Tokens, job: Job) -> Result:
        """The process's answer. When it has died since it was last asked, a new one is asked."""
        try:
            return self._asked(self._running(), tokens, job)
        except _DIED:
            self.close()
        try:
            return self._asked(self._running(), tokens, job)
        except _DIED as error:
            self.close()
            message = "the process that compiles grammars ends; its standard error names the reason"
            raise Unavailable(message, code="grammars_failed") from error

    def _asked(self, process: subprocess.Popen[bytes], tokens: Tokens, job: Job) -> Result:
        if tokens.key not in self._known:
            self._send(process, Vocabulary(tokens.key, tokens.serialized))
            self._known.add(tokens.key)
        self._send(process, job)
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        (length,) = LENGTH.unpack(process.stdout.read(LENGTH.size))
        return msgspec.msgpack.decode(process.stdout.read(length), type=Result)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._known.clear()
            command = [sys.executable, "-m", "ratchet.core.grammars.compiler_process"]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # noqa: S603
        return self._process

    def _send(self, process: subprocess.Popen[bytes], message: Vocabulary | Job) -> None:
        body = msgspec.msgpack.encode(message)
        assert process.stdin is not None  # noqa: S101 - it is a pipe
        process.stdin.write(LENGTH.pack(len(body)) + body)
        process.stdin.flush()


_DIED = (OSError, struct.error, msgspec.DecodeError)
"""What reading from a process that has ended raises."""

_Key = tuple[str, str, str]
"""Tokens, kind, specification."""


def _key(tokens: Tokens, constraint: Constraint) -> _Key:
    return tokens.key, constraint.kind, constraint.specification


class _Cache:
    """Grammars, and the reasons why there is none, within a number of bytes: the least recently used ones leave."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._entries: OrderedDict[_Key, tuple[Grammar | str, int]] = OrderedDict()
        self._size = 0

    def get(self, key: _Key) -> Grammar | str | None:
        """What is known of a key."""
        with self._lock:
            if key not in self._entries:
                return None
            self._entries.move_to_end(key)
            return self._entries[key][0]

    def put(self, key: _Key, outcome: Grammar | str, size: int) -> None:
        """Keep an outcome of so many bytes."""
        with self._lock:
            self._entries[key] = outcome, size + sum(map(len, key))
            self._size += self._entries[key][1]
            while self._size > self._limit and len(self._entries) > 1:
                _, (_, gone) = self._entries.popitem(last=False)
                self._size -= gone
