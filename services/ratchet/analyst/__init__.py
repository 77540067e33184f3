"""Looks for patterns in what agents did, plans changes, and measures whether they helped."""
