"""Self-learning: what the analyst looks at, what goes wrong, and what became of plans."""

from tools.dashboard.panels import Board, Panel, most, rate, total

LEARNING = Board(
    "self-learning",
    "Self-learning",
    "What the analyst looks at, what goes wrong, and what became of plans.",
    {
        "Mining": (
            Panel(
                title="Trajectories looked at",
                why="Per second, by role. A window with too few of them is not looked at.",
                unit="cps",
                shows=rate("ratchet_analyst_episodes_total", "role"),
                needs="a window that has ended",
            ),
            Panel(
                title="Hypotheses tested",
                why="Per second, by role.",
                unit="cps",
                shows=rate("ratchet_analyst_hypotheses_total", "role"),
            ),
            Panel(
                title="Patterns",
                why="By state: open ones go wrong now, closed ones are over.",
                unit="short",
                shows=most("ratchet_analyst_patterns", "role", "state"),
                console="changes",
            ),
        ),
        "Plans": (
            Panel(
                title="Plans",
                why="By state.",
                unit="short",
                shows=most("ratchet_analyst_plans", "role", "state"),
                console="changes",
            ),
            Panel(
                title="Plans that helped",
                why="Share of the plans whose effect the arms showed which helped, by role.",
                unit="percentunit",
                shows=most("ratchet_analyst_plan_success_ratio", "role"),
                limits=(0, 1),
                console="changes",
            ),
            Panel(
                title="Improvement per plan",
                why="Mean difference between the arms, by measure, in the measure's unit: above 0 is better.",
                unit="short",
                shows=most("ratchet_analyst_plan_improvement", "role", "measure"),
                console="changes",
            ),
        ),
        "The analyst": (
            Panel(
                title="Last look",
                why="When all roles were looked at last: more than an hour ago means that the analyst stands still.",
                unit="dateTimeFromNow",
                shows=most("ratchet_analyst_looked_timestamp_seconds", name="all roles", times="1000 * "),
                kind="stat",
                runbook="analyst-stands-still",
            ),
            Panel(
                title="Leader",
                why="1 for the analyst that leads, added up: 0 means that plans stand still.",
                unit="short",
                shows=total("ratchet_analyst_leading", name="leaders"),
                warn=1,
                alarm=0.5,
                kind="stat",
                runbook="analyst-stands-still",
            ),
        ),
    },
)
