"""Datasets for training: which trajectories and preferences, as which rows, written once and read again."""
