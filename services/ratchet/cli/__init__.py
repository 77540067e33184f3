"""The `ratchet` command: for people at a terminal and for their scripts."""
