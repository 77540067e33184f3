"""The package that an agent imports: it records trajectories and feedback, and never waits for Ratchet."""

from ratchet.client.async_client import AsyncClient
from ratchet.client.logs import use_stdlib_logging
from ratchet.client.recording import Stats
from ratchet.client.settings import ClientSettings
from ratchet.client.sync_client import Client
from ratchet.client.trajectory import TrajectoryRecorder

use_stdlib_logging()

__all__ = ["AsyncClient", "Client", "ClientSettings", "Stats", "TrajectoryRecorder"]
