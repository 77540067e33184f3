"""The policy-gradient learner: pure functions over logged calls, small frozen dataclasses in and out."""
