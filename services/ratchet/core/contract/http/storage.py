"""The object store's upkeep over HTTP."""

from __future__ import annotations

from ratchet.core.contract.http.answers import Answer


class SweptOut(Answer, frozen=True, kw_only=True):
    """Objects, and their bytes together."""

    objects: int
    bytes: int


class StorageOut(Answer, frozen=True, kw_only=True):
    """What a sweep of the object store did, or would do."""

    dry_run: bool
    """Nothing was changed."""
    objects: int
    """All that there are, without those that were set aside."""
    bytes: int
    set_aside: dict[str, SweptOut]
    """By reason: `superseded_checkpoint`, `expired`, `orphan`. While they are kept, a reader takes them back."""
    taken_back: int
    """Set aside earlier, and referred to again."""
    removed: SweptOut
    """Set aside long enough: they are gone for good."""
