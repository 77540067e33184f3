"""One tokenizer and one process that compiles, for all tests of grammars."""

from pathlib import Path
from typing import Any

import pytest

from ratchet.core.grammars.compiler import Compiler
from tests.support.grammars import read_tokenizer, shared_compiler
from tests.support.tiny_models import write_tokenizer

TEXTS = ["where is my order K47", "it was sent on monday", 'look_up {"id":"K47"}', '<tool_call>{"name": "send"']


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    directory: Path = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(directory, TEXTS)
    return read_tokenizer(directory)


@pytest.fixture(scope="session")
def compiler() -> Compiler:
    return shared_compiler()
