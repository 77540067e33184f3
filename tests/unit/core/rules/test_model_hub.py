"""A model that is not there: what is said of it, and that no hub is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratchet.core.chat_templates.template import load_tokenizer
from ratchet.core.errors import Rejected
from ratchet.core.rules.model_hub import library_settings, why_not_loaded


def test_a_hub_is_asked_only_where_that_is_wished_for() -> None:
    assert library_settings({}) == library_settings({"RATCHET_HUB": "0"}) == {"HF_HUB_OFFLINE": "1"}
    assert library_settings({"RATCHET_HUB": "1"}) == {}


def test_a_directory_without_a_model_is_named_as_such(tmp_path: Path) -> None:
    with pytest.raises(Rejected, match=r"no model there: it has no config\.json"):
        load_tokenizer(tmp_path)


def test_a_reason_of_several_lines_is_a_whole_sentence(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert why_not_loaded(tmp_path, ValueError("cannot be made from one of: \n(1) a file\n")) == (
        "cannot be made from one of: (1) a file"
    )
    assert why_not_loaded(tmp_path, ValueError("no such type\nsee the pages")) == "no such type"
