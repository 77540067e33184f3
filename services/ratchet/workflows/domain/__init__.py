"""What a workflow is and what may happen to it next: pure."""
