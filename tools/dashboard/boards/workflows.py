"""Workflows: whether they succeed, what they cost and take, and whether plans can be run."""

from tools.dashboard.panels import Board, Panel, increase, mean, quantiles, rate, ratio, total

ENDED = "ratchet_workflows_total"

WORKFLOWS = Board(
    "workflows",
    "Workflows",
    "Whether workflows succeed, what they cost and take, and whether plans can be run.",
    {
        "Results": (
            Panel(
                title="Success rate",
                why="Share of workflows that succeeded as a whole, by the planner's role. Cancelled ones do not count.",
                unit="percentunit",
                shows=ratio(ENDED, "role", part='status="succeeded"', of='status!="cancelled"'),
                warn=0.9,
                alarm=0.7,
                limits=(0, 1),
                console="workflows",
            ),
            Panel(
                title="Workflows that ended",
                why="In the chosen range, by the planner's role and status.",
                unit="short",
                shows=increase(ENDED, "role", "status"),
                kind="bargauge",
                console="workflows",
            ),
            Panel(
                title="Under way",
                why="Workflows that run now.",
                unit="short",
                shows=total("ratchet_workflows_active", name="workflows"),
            ),
        ),
        "Cost and time": (
            Panel(
                title="Cost of a workflow",
                why="Mean US dollars of a workflow, planning included, by the planner's role.",
                unit="currencyUSD",
                shows=mean("ratchet_workflow_cost_usd", "role"),
            ),
            Panel(
                title="Budgets",
                why="Workflows in the chosen range that spent 80 % of their budget, or more.",
                unit="short",
                shows=increase("ratchet_workflow_budget_warnings_total", "role"),
                kind="bargauge",
                warn=1,
                needs="a workflow that nears its budget",
            ),
            Panel(
                title="Latency of a workflow",
                why="Median and 95th percentile from the order to the last answer, by the planner's role.",
                unit="s",
                shows=quantiles("ratchet_workflow_seconds", "role"),
            ),
        ),
        "Plans": (
            Panel(
                title="Valid plans",
                why="Share of plans that could be run as they came; the others were repaired once, or refused.",
                unit="percentunit",
                shows=ratio("ratchet_workflow_plans_total", "role", part='outcome="valid"'),
                warn=0.98,
                alarm=0.9,
                limits=(0, 1),
            ),
            Panel(
                title="Sub-tasks",
                why="Sub-tasks that ended per second, by type and status: which kind of worker to look at.",
                unit="cps",
                shows=rate("ratchet_workflow_sub_tasks_total", "task_type", "status"),
            ),
            Panel(
                title="Without a log",
                why="Workflows in the chosen range that ended, and whose log no broker took.",
                unit="short",
                shows=increase("ratchet_workflows_unrecorded_total", "role"),
                kind="bargauge",
                warn=1,
                needs="a broker that is away for long",
                runbook="broker-lost",
            ),
        ),
    },
)
