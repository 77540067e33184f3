"""The HTTP API of the coordinator: `http_app`, and the routes of jobs and of the state of training that go into it."""

from ratchet.rl_coordinator.http.api import http_app
from ratchet.rl_coordinator.http.jobs import JobRoutes
from ratchet.rl_coordinator.http.status import StatusRoutes

__all__ = ["JobRoutes", "StatusRoutes", "http_app"]
