"""Searches for better bundles: models are asked over the gateway, tasks are played, nothing is trained. No torch."""
