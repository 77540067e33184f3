"""The library's public names, and that it knows no word of the product."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import ratchet.bus
from ratchet.core.errors import RatchetError

FOLDER = Path(ratchet.bus.__file__).parent
SOURCES = sorted(FOLDER.rglob("*.py"))
OF_THE_PRODUCT = re.compile(
    r"agent|role|reward|trajector|polic(?:y|ies)|rollout|canary|\brl\b|\bllm\b|\bturns?\b|train|learn|prompt|episode"
)
OF_NATS = re.compile(r"(?:ack|deliver|retention|discard)_?policy", re.IGNORECASE)


def test_every_name_that_a_type_checker_sees_is_there_and_no_other() -> None:
    tree = ast.parse((FOLDER / "__init__.py").read_text())
    (guarded,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = [alias.name for node in guarded.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert sorted(seen) == dir(ratchet.bus)
    for name in seen:
        assert getattr(ratchet.bus, name) is not None
    assert issubclass(ratchet.bus.Rejected, RatchetError)


def test_sealing_needs_no_client_of_nats() -> None:
    program = (
        "import sys; from ratchet.bus import Contracts, Message, Sealer, Spool;"
        "print(sorted({'nats', 'structlog', 'pydantic', 'aiohttp'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_no_word_of_the_product_is_in_the_library() -> None:
    lines = [
        f"{source.name}:{number}: {line.strip()}"
        for source in SOURCES
        for number, line in enumerate(source.read_text().splitlines(), 1)
        if OF_THE_PRODUCT.search(OF_NATS.sub("", line).replace("ratchet", "").lower())
    ]
    assert lines == []


def test_the_package_is_marked_as_typed() -> None:
    assert (FOLDER.parent / "py.typed").is_file()
