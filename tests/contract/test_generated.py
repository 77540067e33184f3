"""Documents that are generated from the contracts are fresh."""

from __future__ import annotations

import subprocess
import sys

from tests.support.contract_files import CONTRACTS, ROOT


def test_the_tables_of_the_readme_are_those_of_topics_json() -> None:
    command = [sys.executable, ROOT.parent / "tools" / "contract_documents.py", "--check"]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


def test_the_readme_names_every_subject_stream_and_bucket() -> None:
    text = (ROOT / "README.md").read_text()
    subjects = [subject for topic in CONTRACTS.topics.values() for subject in topic.subjects]
    assert [name for name in (*subjects, *CONTRACTS.streams, *CONTRACTS.buckets) if f"`{name}`" not in text] == []
