"""Plans workflows, has workers do their sub-tasks, and logs what came of it. `app` shows its parts."""
