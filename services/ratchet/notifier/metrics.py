"""What the notifier counts."""

from prometheus_client import Counter

NOTIFICATIONS = Counter("ratchet_notifications_total", "Attempts to notify a receiver.", ["receiver", "outcome"])
