"""The trainer worker: runs dispatched training jobs in child processes and reports on them."""
