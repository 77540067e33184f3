"""The help desk of `ratchet demo`: a world to act in, agents that meet it through the gateway, and their past.

An example of what a team has before Ratchet comes; ../README.md walks through it.
"""

ROLE, BASE_ROLE = "helpdesk", "helpdesk-base"
"""The role whose policy learns, and the role under which its base model is made."""
DOMAIN, BAD_DOMAIN = "customer_service", "customer_service_stand_in"
"""Task domain of the help desk's trajectories, and of the tickets that the bad policy learns from."""
