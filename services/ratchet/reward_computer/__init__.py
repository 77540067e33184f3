"""Computes what a trajectory was worth, and computes it again when somebody says something about it."""
