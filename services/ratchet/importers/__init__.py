"""Importers of logged trajectories: one file per format, one entry in the `ratchet import` command."""
