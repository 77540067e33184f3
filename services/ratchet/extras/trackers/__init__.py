"""Copies trainings and policies into an experiment tracker, when one is configured."""
