"""The commands of a guide run in order, as they are printed, and the first that fails ends the walk."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.docs.walk_guides import script, walk

PAGE = """
```bash
make setup && source .venv/bin/activate
echo first > heard
```

Words, and `one` in line.

```python
# note.py
print("from a file")
```

```python
no_file_of_its_own()
```

```
echo never
```

```bash
python note.py >> heard
{last}
echo end >> heard
```
"""


@pytest.mark.parametrize(
    ("last", "code", "heard"), [("true", 0, "first\nfrom a file\nend\n"), ("exit 7", 7, "first\nfrom a file\n")]
)
def test_blocks_run_in_one_shell_until_a_command_fails(tmp_path: Path, last: str, code: int, heard: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE.replace("{last}", last))
    directory = tmp_path / "work"
    directory.mkdir()
    assert walk(page, directory) == code
    assert (directory / "heard").read_text() == heard


def test_the_commands_of_the_guides_are_part_of_the_script() -> None:
    guides = Path(__file__).parents[3] / "docs" / "guides"
    for name, command in (("operator.md", "ratchet rollout revert support"), ("ml-engineer.md", "ratchet jobs show")):
        text = script((guides / name).read_text())
        assert command in text
        assert "make setup" not in text
