"""What the console decides: pure functions of what others have said."""
