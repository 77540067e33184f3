"""Moves live traffic to a new policy while it watches, and takes it back when the new policy is worse."""
