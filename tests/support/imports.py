"""A bus that keeps what an import publishes, and files to import."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

from ratchet.core.contract import Message, Preference, Trajectory, encode
from ratchet.core.errors import InvalidMessage
from ratchet.core.service.contracts import load_contracts
from ratchet.extras.importers.base import Importer, ImportOptions
from ratchet.extras.importers.importing import ImportReport, import_file

CONTRACTS = load_contracts()


class Published:
    """A bus that keeps what it is given, refusing what breaks its contract and sessions named in `refuse`."""

    def __init__(self, refuse: Sequence[str] = ()) -> None:
        self.messages: list[Message] = []
        self._refuse = refuse

    @property
    def trajectories(self) -> list[Trajectory]:
        return [message for message in self.messages if isinstance(message, Trajectory)]

    @property
    def preferences(self) -> list[Preference]:
        return [message for message in self.messages if isinstance(message, Preference)]

    @property
    def bodies(self) -> list[bytes]:
        """What was published, byte for byte, in an order that does not depend on the file."""
        return sorted(map(encode, self.messages))

    async def publish_all(self, messages: Sequence[Message]) -> None:
        for message in messages:
            CONTRACTS.check_strict(message)
            encode(message)
            if isinstance(message, Trajectory) and message.session_id in self._refuse:
                raise InvalidMessage("too large")
        self.messages += messages


def imported(importer: Importer, path: Path, options: ImportOptions | None = None) -> tuple[Published, ImportReport]:
    """What an import of the file publishes, and its report."""
    bus = Published()
    return bus, asyncio.run(import_file(importer, bus, path, options or ImportOptions()))


def write_lines(path: Path, *records: object) -> Path:
    """A file of JSON lines; a text is a line as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(record if isinstance(record, str) else json.dumps(record) for record in records) + "\n")
    return path
