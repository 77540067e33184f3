"""What is erased stays so: a message of it that comes late is dropped, and is `erased` in the ledger.

It may come from a spool, from a producer that sends again, from a run that was under way, or from a restored stream. It
is recognised by the ids in the table `erased`, or because it names the user, session or agent itself; then its own ids
are erased from there on, too, so that a reward or a judgement of it finds no way in. The same becomes of what clients
and gateways send that do not know yet who has opted out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ratchet.bus.consumer import BatchHandler, Done, Outcome
from ratchet.bus.received import Received
from ratchet.core.contract import DEFAULT_ROLE, Message
from ratchet.core.contract.erasure import AWAITS_APPROVAL, Erasure
from ratchet.core.contract.opt_out import OPT_OUTS
from ratchet.core.rules.erasing import Erasures, Names, names_in
from ratchet.core.rules.opt_outs import refs_of
from ratchet.core.service.opt_outs import KnownOptOuts
from ratchet.core.stores.erased import Erased
from ratchet.core.stores.erasures import KnownErasures
from ratchet.trajectory_collector import metrics
from ratchet.trajectory_collector.clickhouse_ledger import Ledger
from ratchet.trajectory_collector.generations import Generations
from ratchet.trajectory_collector.ledger import ERASED, Account
from ratchet.trajectory_collector.nats_streams import Streams

Batch = Sequence[Received[Any]]
"""`Any` because one subscription carries several message types."""


@dataclass(frozen=True)
class Tombstones:
    """The erasures as of the last look at their bucket. Raises `Unavailable`."""

    asked: KnownErasures
    erased: Erased
    ledger: Ledger
    generations: Generations
    streams: Streams
    opt_outs: KnownOptOuts
    now: Callable[[], datetime]
    _known: list[Erasures] = field(default_factory=list[Erasures], init=False)
    """The last look, once there was one."""

    async def look(self) -> list[Erasure]:
        """All erasures that may be carried out, oldest first; from now on what they cover is dropped."""
        erasures = [erasure for erasure in await self.asked.oldest_first() if erasure.phase != AWAITS_APPROVAL]
        if not self._known or erasures != self._known[0].oldest_first:
            self._known[:] = [Erasures(erasures)]
        return erasures

    def before(self, consumer: str, handler: BatchHandler) -> BatchHandler:
        """A handler that gets messages alone that are not erased."""

        async def kept(batch: Batch) -> Sequence[Outcome]:
            return await self.handle(consumer, batch, handler)

        return kept

    async def handle(
        self, consumer: str, batch: Batch, handler: Callable[[Batch], Awaitable[Sequence[Outcome]]]
    ) -> Sequence[Outcome]:
        """The outcomes of a batch: those of the handler for what it may see, the others are settled here."""
        late = await self._late(batch)
        if late:
            await self._drop(consumer, batch[0].stream, sorted(late))
        passed = [received for received in batch if received.sequence not in late]
        outcomes = iter(await handler(passed) if passed else ())
        return [Done() if received.sequence in late else next(outcomes) for received in batch]

    async def _late(self, batch: Batch) -> set[int]:
        """The sequences of erased messages, and of those about people who have opted out."""
        await self.opt_outs.is_read.wait()
        if not self._known:
            await self.look()
        erasures = self._known[0]
        if not erasures.oldest_first and self.opt_outs.is_empty:
            return set()
        named = {received.sequence: names_in(received.body) for received in batch}
        known = await self.erased.among({ref for names in named.values() for ref in names.ids})
        late = {received.sequence: OPT_OUTS for received in batch if self._is_out(received.message)}
        late |= {
            sequence: erasure.erasure_id for sequence, names in named.items() if (erasure := erasures.which(names))
        }
        for sequence, by in late.items():
            own = own_pairs_of(named[sequence])
            await self.erased.add(by, own, self.now())
            known |= own
        return {*late, *(sequence for sequence, names in named.items() if not known.isdisjoint(pairs_of(names)))}

    def _is_out(self, message: Message) -> bool:
        return self.opt_outs.covers(getattr(message, "role", DEFAULT_ROLE), refs_of(message))

    async def _drop(self, consumer: str, stream: str, sequences: Sequence[int]) -> None:
        generation = await self.generations.current(stream, consumer)
        await self.ledger.erase(Account(stream, consumer, generation), sequences, self.now())
        await self.streams.erase(stream, sequences)
        metrics.STORED.labels(stream, ERASED).inc(len(sequences))


def pairs_of(names: Names) -> set[tuple[str, str]]:
    """The ids of a message, each with its role."""
    return {(str(names.role), ref) for ref in names.ids}


def own_pairs_of(names: Names) -> set[tuple[str, str]]:
    """Of these the ids that go with the message."""
    return {(str(names.role), ref) for ref in names.own_ids}
