"""The training process. Only this package imports torch."""
