"""What an agent imports: record trajectories and feedback without ever waiting for Ratchet."""

from ratchet.client.async_client import AsyncClient
from ratchet.client.settings import ClientSettings
from ratchet.client.sync_client import Client
from ratchet.client.trajectory import TrajectoryRecorder

__all__ = ["AsyncClient", "Client", "ClientSettings", "TrajectoryRecorder"]
