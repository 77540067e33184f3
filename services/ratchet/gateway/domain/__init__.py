"""The gateway's rules: pure functions and small state, no I/O."""
