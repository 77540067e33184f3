"""The registry of policies: versions, lineage, where each comes from."""
