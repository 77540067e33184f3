"""Training that starts by itself."""
