"""Ratchet on one machine: the local stack, an engine without a GPU, the demo."""
