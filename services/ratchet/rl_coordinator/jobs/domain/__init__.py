"""The pure rules of jobs: their states, what can run, who is next, what a failure changes, what time does to them."""
