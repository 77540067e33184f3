"""The coordinator's rules: pure functions over jobs, trajectories and turns."""
