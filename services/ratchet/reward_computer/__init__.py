"""Computes what a trajectory was worth, and computes it again when feedback arrives."""
