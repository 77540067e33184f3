"""Stores every fact in ClickHouse, keeps the ledger, and assembles the trajectories of agents that only set base_url."""
