"""The local stack: real servers and all services as processes on one machine, started, watched and stopped."""
