"""Coordinator: accepts training jobs, exports their data, hands them to workers and follows them to the end."""
