"""Plays tasks with policies, grades the answers, and compares two policies on the same tasks."""
