"""A batch of which some items fail, handled in halves until what fails stands alone."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import TypeVar

from ratchet.core.errors import Unavailable

T = TypeVar("T")
R = TypeVar("R")


async def in_halves(
    batch: Sequence[T], handle: Callable[[Sequence[T]], Awaitable[R]]
) -> AsyncGenerator[tuple[Sequence[T], R | Exception]]:
    """Each part of the batch with what `handle` returned for it, or with the error that it raised for one item alone.

    A few bad items among hundreds cost a few small batches, not hundreds. `Unavailable` is the answer for a whole
    part: its halves would fare no better. The next part is handled when the caller is done with the one before.
    """
    try:
        result: R | Exception = await handle(batch)
    except Exception as error:  # noqa: BLE001 - the boundary: the caller decides what an error means
        result = error
    if len(batch) == 1 or isinstance(result, Unavailable) or not isinstance(result, Exception):
        yield batch, result
        return
    del result  # its frames hold the batch, and this one holds it: garbage, for which few searches look
    half = len(batch) // 2
    for part in (batch[:half], batch[half:]):
        async for handled in in_halves(part, handle):
            yield handled
