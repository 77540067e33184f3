"""What a rollout is and how it is judged: pure functions over frozen values. No I/O, no clock, no randomness."""
