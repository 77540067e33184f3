"""Shows calls, rewards and rollouts in an OpenTelemetry backend."""
