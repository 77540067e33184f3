"""Training jobs, from the request to the policy."""
