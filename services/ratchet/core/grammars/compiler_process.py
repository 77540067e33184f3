"""A process that compiles grammars within bounds: reads jobs from standard input, answers each, in order.

A specification of a few characters can take xgrammar minutes and gigabytes, and nothing stops its C++ from within. So
every job runs in a fork of this process, which has the tokenizers in memory and no thread: the system ends a fork that
takes too much processor time or memory, and nothing else notices. This process ends when its input does.

Run as `python -m ratchet.core.grammars.compiler_process`; `compiler.Compiler` speaks with it.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import struct
import sys
import time
from typing import BinaryIO

import msgspec
import xgrammar

LENGTH = struct.Struct("<I")
"""In front of every frame: its number of bytes."""
WALL_FACTOR = 10
"""A fork may take this many times its processor time: a loaded machine gives it a share."""


class Vocabulary(msgspec.Struct, frozen=True, array_like=True, tag="vocabulary"):
    """A tokenizer, kept under its key. It has no answer."""

    key: str
    tokenizer: str
    """As xgrammar serializes it."""


class Job(msgspec.Struct, frozen=True, array_like=True, tag="job"):
    """A grammar to compile."""

    key: str
    """Of the vocabulary."""
    language: str
    text: str
    cpu_s: int
    """Seconds of processor time."""
    memory: int
    """Bytes beside what the process has already."""
    size: int
    """Most bytes of the compiled grammar."""


class Result(msgspec.Struct, frozen=True, array_like=True):
    """What became of a job."""

    grammar: str | None = None
    """As xgrammar serializes it; None: refused."""
    reason: str | None = None


def compiled(tokenizer: xgrammar.TokenizerInfo, language: str, text: str) -> xgrammar.CompiledGrammar:
    """Compile within no bounds. Raises what xgrammar raises."""
    compiler = xgrammar.GrammarCompiler(tokenizer, max_threads=1, cache_enabled=False)
    if language == "json_schema":
        return compiler.compile_json_schema(text)
    if language == "regex":
        return compiler.compile_regex(text)
    if language == "ebnf":
        return compiler.compile_grammar(text)
    if language == "lark":
        return compiler.compile_lark(text)
    return compiler.compile_structural_tag(text)


def run(tokenizer: xgrammar.TokenizerInfo, job: Job) -> Result:
    """Compile in a fork."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            _work(tokenizer, job, writer)
        finally:
            os._exit(1)
    os.close(writer)
    try:
        body = _read(reader, time.monotonic() + WALL_FACTOR * job.cpu_s, job.size)
    finally:
        os.close(reader)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    try:
        return msgspec.msgpack.decode(body, type=Result)
    except msgspec.DecodeError:
        return Result(reason=f"it takes more than {job.cpu_s} s or {job.memory >> 20} MiB to compile, or is too large")


def _work(tokenizer: xgrammar.TokenizerInfo, job: Job, writer: int) -> None:
    """In the fork: compile, and write the result."""
    silent = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # xgrammar's warnings quote what people sent; standard output belongs to the process
        os.dup2(silent, stream)
    pages = int(open("/proc/self/statm").read().split()[0]) if sys.platform == "linux" else 0  # noqa: SIM115, PTH123
    for kind, limit in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, job.cpu_s),
        (resource.RLIMIT_AS, pages * resource.getpagesize() + job.memory),
    ):
        if kind != resource.RLIMIT_AS or pages:
            resource.setrlimit(kind, (limit, limit))
    try:
        grammar = compiled(tokenizer, job.language, job.text)
        bitmask = xgrammar.allocate_token_bitmask(1, tokenizer.vocab_size)
        xgrammar.GrammarMatcher(grammar).fill_next_token_bitmask(bitmask)
        result = Result(grammar.serialize_json()) if bitmask.any() else Result(reason="no answer can follow it")
    except Exception as error:  # noqa: BLE001 - the boundary: xgrammar raises RuntimeError and what C++ threw
        last = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        without_place = last.rsplit(".cc:", 1)[-1].partition(": ")[2]  # the place in xgrammar's sources
        result = Result(reason=without_place or last)
    body = memoryview(msgspec.msgpack.encode(result))
    while body:
        body = body[os.write(writer, body) :]
    os._exit(0)


def _read(reader: int, deadline: float, size: int) -> bytes:
    """What the fork writes until it ends; too short beyond the deadline or the size."""
    body = bytearray()
    while len(body) <= size and (left := deadline - time.monotonic()) > 0:
        if not select.select([reader], [], [], left)[0]:
            break
        chunk = os.read(reader, 1 << 20)
        if not chunk:
            return bytes(body)
        body += chunk
    return b""


def serve(source: BinaryIO, sink: BinaryIO) -> None:
    """Answer each job with one frame."""
    tokenizers: dict[str, xgrammar.TokenizerInfo] = {}
    decoder = msgspec.msgpack.Decoder(Vocabulary | Job)
    while len(header := source.read(LENGTH.size)) == LENGTH.size:
        (length,) = LENGTH.unpack(header)
        job = decoder.decode(source.read(length))
        if isinstance(job, Vocabulary):
            tokenizers[job.key] = xgrammar.TokenizerInfo.deserialize_json(job.tokenizer)
            continue
        body = msgspec.msgpack.encode(run(tokenizers[job.key], job))
        sink.write(LENGTH.pack(len(body)) + body)
        sink.flush()


def main() -> None:
    """Compile until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # meant for the process that started this one
    serve(sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    main()
