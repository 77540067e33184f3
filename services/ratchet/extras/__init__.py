"""What is found by entry point or by table, and imported by nothing else: importers, exporters, trackers, engines."""
