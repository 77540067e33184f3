"""Whether a processor multiplies in bfloat16 is read from what it says of itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratchet.local.demo.run import multiplies_bfloat16


@pytest.mark.parametrize(
    ("text", "multiplies"),
    [
        ("processor\t: 0\nflags\t\t: fpu avx512f avx512_bf16 sse\n", True),
        ("flags\t\t: fpu avx512f amx_bf16\n", True),
        ("Features\t: fp asimd bf16 i8mm\n", True),
        ("flags\t\t: fpu avx2 avx512f\nbugs\t\t: bf16\n", False),
        ("", False),
    ],
)
def test_a_flag_of_the_processor_counts(tmp_path: Path, text: str, multiplies: bool) -> None:
    (tmp_path / "cpuinfo").write_text(text)

    assert multiplies_bfloat16(tmp_path / "cpuinfo") == multiplies


def test_a_system_without_the_file_counts_as_one_without_bfloat16(tmp_path: Path) -> None:
    assert not multiplies_bfloat16(tmp_path / "absent")
