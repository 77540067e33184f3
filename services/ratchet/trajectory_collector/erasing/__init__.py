"""Erasures in streams and tables: `worker.py` removes what is there, `tombstones.py` drops what comes late."""
