"""`make demo-base`: makes the models again that `make demo` begins with, by the trainer's code and the demo's recipes.

The base model learns from drills, in all its weights. The bad policy is an adapter on it, which imitates a clerk who
turns the rules round.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from ratchet.local.demo.plan import DEMO
from ratchet_helpdesk.heldout import GREEDY
from ratchet_helpdesk.logbook import bad_tickets
from ratchet_helpdesk.shipped import write_shipped
from tools.learning.workshop import Policy, Workshop
from tools.learning.worlds.base import Stage
from tools.learning.worlds.helpdesk import Helpdesk, rows_of_chats


def main() -> int:
    """Make both, and say what the bad policy can do."""
    argparse.ArgumentParser(prog="python -m tools.demo_base", description=__doc__).parse_args()
    world = Helpdesk(DEMO)
    with tempfile.TemporaryDirectory(prefix="demo-base-") as work:
        workshop = Workshop(world, Path(work))
        base = workshop.supervised(workshop.base(), world.stages()[0])
        chats = lambda: rows_of_chats(bad_tickets(DEMO.bad.examples, DEMO.seed))  # noqa: E731 - made when it is needed
        bad = workshop.supervised(Policy(base), Stage("bad", DEMO.bad, chats, full_finetune=False))
        write_shipped(base, bad)
        exam = workshop.exam(Policy(base, bad))
    sys.stdout.write(f"the bad policy solves {exam.success(GREEDY)}; {exam.valid_calls()} of its calls are valid\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
