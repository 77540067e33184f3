"""Preferences: pairs derived from tries of the same task, given by people, kept in files, and published."""
