"""Planners of workflows, in numpy: services, gates and commands run them; `trainer_worker` trains them with torch."""
