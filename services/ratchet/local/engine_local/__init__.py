"""A small inference engine for one machine: the part of vLLM's HTTP API that Ratchet needs, on transformers."""
