"""The console: pages to look at and to decide in, and what only pages ask."""
