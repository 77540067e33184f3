"""Ratchet: the learning loop for teams that run LLM agents in production."""
