"""ClickHouse and the object store, and what several services keep there."""
