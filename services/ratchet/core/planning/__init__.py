"""Planners of workflows, in numpy: services, gates and the command run them; `trainer_worker` trains them with torch."""
