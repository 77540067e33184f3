"""Stores every fact in ClickHouse, keeps the ledger, assembles trajectories from turns."""
