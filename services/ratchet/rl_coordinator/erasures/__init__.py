"""Erasures in the object store, in jobs, and what policies have learned from what is gone.

KV erasures: `removed` by the collector ──> Finisher ─┬─> S3: bodies, rows of snapshots
                                                      ├─> jobs that learn from them begin anew
                                                      ├─> which policies learned from them; trained anew
                                                      └─> receipts.Receipts ─> `done`
"""

from ratchet.rl_coordinator.erasures.finisher import Finisher
from ratchet.rl_coordinator.erasures.receipts import FOLDER, Receipts
from ratchet.rl_coordinator.erasures.s3_objects import ErasedObjects

__all__ = ["FOLDER", "ErasedObjects", "Finisher", "Receipts"]
