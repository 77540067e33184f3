"""The file of events, byte for byte as TensorBoard's own writer makes it."""

from __future__ import annotations

from ratchet.trainer_worker.tensorboard import event_file

LINES = b'{"step": 1, "epoch": 1, "seconds": 0.5, "loss": 0.25}\n{"step": 300, "seconds": 1.5, "loss": 0.125}\n{"st'


def test_an_event_file_is_what_tensorboard_writes() -> None:
    """The bytes of tensorboard 2.21.0's `RecordWriter` and `Event`, of the same figures at the same times."""
    assert event_file(LINES, ended_at=1_000_000.0).hex() == EVENTS


EVENTS = (
    "1800000000000000a37f4b2209000000007c842e411a0d627261696e2e4576656e743a3205ff922e2a00000000000000ae8d"
    "91f509000000007d842e4110012a1d0a0e0a077365636f6e6473150000003f0a0b0a046c6f7373150000803e62d7678f2b00"
    "000000000000861bc34b090000000080842e4110ac022a1d0a0e0a077365636f6e6473150000c03f0a0b0a046c6f73731500"
    "00003ec2c7a064"
)
