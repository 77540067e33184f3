"""The rules of datasets: pure functions over trajectories, turns and preferences."""
