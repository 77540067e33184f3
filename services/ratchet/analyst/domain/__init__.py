"""What the analyst decides, without I/O."""
