"""What to tell whom and when: pure rules over alerts, receivers and the time."""
