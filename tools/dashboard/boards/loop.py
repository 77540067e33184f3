"""The loop at a glance: what comes in, what it is worth, what is trained, what serves, and whether all is well."""

from tools.dashboard.boards.deployments import CHANGES, TRAFFIC
from tools.dashboard.boards.training import JOBS
from tools.dashboard.panels import Board, Panel, increase, mean, most, quantiles, rate

COLLECTED, REWARD = "agent_rl_trajectories_collected_total", "agent_rl_trajectory_reward"

LOOP = Board(
    "loop-overview",
    "Loop",
    "What comes in, what it is worth, what is trained, what serves, and whether all is well.",
    {
        "Health": (
            Panel(
                title="Services up",
                why="1 while Prometheus reaches the service.",
                unit="short",
                shows=most("up", "service", where='job="ratchet"'),
                warn=1,
                alarm=0.5,
                kind="stat",
                runbook="service-unreachable",
            ),
            Panel(
                title="Failing checks",
                why="1 while a check of a service's readiness fails, or it notes a fault.",
                unit="short",
                shows=most("ratchet_check_failing", "service", "check"),
                alarm=1,
                limits=(0, 1),
                runbook="check-failing",
            ),
            Panel(
                title="Notifications",
                why="Attempts to notify a receiver in the chosen range, and whether it took them.",
                unit="short",
                shows=increase("ratchet_notifications_total", "receiver", "outcome"),
                kind="bargauge",
                needs="a receiver of alerts",
            ),
            Panel(
                title="Console's requests",
                why="Requests per second to the console, by what they ask and status.",
                unit="cps",
                shows=rate("ratchet_console_requests_total", "part", "status"),
                needs="a person at the console",
            ),
        ),
        "Collection": (
            Panel(
                title="Trajectories collected",
                why="Trajectories stored per second, by kind of agent; `other`: one of its own words.",
                unit="cps",
                shows=rate(COLLECTED, "agent_type"),
                console="trajectories",
            ),
            Panel(
                title="Trajectories by domain",
                why="Trajectories stored in the chosen range, by domain of the task; `other`: one of its own words.",
                unit="short",
                shows=increase(COLLECTED, "task_domain"),
                kind="bargauge",
                console="trajectories",
            ),
            Panel(
                title="Turns per trajectory",
                why="Median and 95th percentile. A sudden rise means agents that no longer come to an end.",
                unit="short",
                shows=quantiles("agent_rl_trajectory_length"),
                warn=20,
                alarm=50,
            ),
            Panel(
                title="Calls by what bars them",
                why="Recorded calls per second, by the reason why no learner may use them. `ratchet capture report`"
                " says what to change.",
                unit="cps",
                shows=rate("ratchet_gateway_captured_turns_total", "role", "trainable", "reason"),
                console="changes",
            ),
            Panel(
                title="Trajectories that were silent",
                why="Trajectories per second that were put together because their agent fell silent, those that it"
                " reported later, and those whose turns do not fit together.",
                unit="cps",
                shows={
                    **rate("ratchet_idle_trajectories_total", name="silent"),
                    **rate("ratchet_superseded_trajectories_total", name="reported later"),
                    **rate("ratchet_unassembled_trajectories_total", name="do not fit"),
                },
            ),
            Panel(
                title="Turns in no trajectory",
                why="Turns per second beyond what one assembly takes, and answers beside which another one counts.",
                unit="cps",
                shows={
                    **rate("ratchet_turns_left_out_total", name="too many"),
                    **rate("ratchet_repeated_calls_total", name="repeated"),
                },
            ),
        ),
        "Rewards": (
            Panel(
                title="Mean reward",
                why="Mean total reward of trajectories that got their first reward.",
                unit="percentunit",
                shows=mean(REWARD),
                warn=0.6,
                alarm=0.4,
                limits=(0, 1),
            ),
            Panel(
                title="Distribution of rewards",
                why="Quartiles. A mean that rises while they part company deserves a look at what is rewarded.",
                unit="percentunit",
                shows=quantiles(REWARD, shares=(0.25, 0.5, 0.75)),
                limits=(0, 1),
            ),
            Panel(
                title="Revisions",
                why="Rewards revised per second because feedback came late.",
                unit="cps",
                shows=rate("ratchet_reward_revisions_total", name="revisions"),
            ),
            Panel(
                title="Judgements",
                why="Trajectories per second that a judge was to judge, by what came of it.",
                unit="cps",
                shows=rate("ratchet_judgements_total", "outcome"),
                needs="a judge",
            ),
            Panel(
                title="Scores of reward models",
                why="Trajectories per second that a reward model was to score, by what came of it.",
                unit="cps",
                shows=rate("ratchet_reward_model_scores_total", "outcome"),
                needs="a reward model",
            ),
        ),
        "Learning and serving": (JOBS, TRAFFIC, CHANGES),
    },
)
