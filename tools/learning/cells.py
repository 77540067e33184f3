"""The cells of the learning report: one variant of one experiment with one seed, each a line of one file.

A cell is measured once, and the report is drawn from the file alone. Needs no torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import msgspec

from ratchet.core.service.files import write_whole
from ratchet.local.demo.exams import Exam, Proportion
from ratchet_helpdesk.heldout import GREEDY, SAMPLED
from ratchet_helpdesk.world import MISJUDGED

OVERALL, OF_MISJUDGED = "all kinds", "misjudged kinds"
RLOO, REJECTION = "rloo", "rejection sampling"
SEEDS, FIRST_SEED, CHEAP = (0, 1, 2), (0,), (0, 1, 2, 3, 4)
HELPDESK, SHORT_DEMO = "helpdesk", "demo"
"""The worlds of `ratchet demo --full` and of `ratchet demo`; others are public."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way to learn, which an experiment compares with others."""

    name: str
    algorithm: str = RLOO
    solved_only: bool = False
    """It learns from solved tickets alone."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Hyperparameters beside those of the recipe; `Any` because they are a request's."""
    decisive_only: bool = False
    """It learns from tickets alone whose tries differ in outcome."""
    tries: int = 4
    """Of each ticket in a cycle; a cycle has as many trajectories whatever this is."""
    shown: bool = False
    """It plays nothing, and imitates as many right answers as the others have tries."""
    trajectories: int | None = None
    """Of a cycle; None: the experiment's."""
    remembers: bool = False
    """Lone tries are compared with the persistent baseline of their ticket, else with the mean of their cycle."""
    shortest_first: bool = False
    """Training tasks come in the order of their length over all cycles; else each cycle draws its own."""
    behind: int = 0
    """How many versions older than the policy that learns the one is that plays."""
    seeds: Sequence[int] = SEEDS
    """With which it is measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """A question, and the variants that answer it."""

    name: str
    world: str = HELPDESK
    """Whose tasks are played."""
    title: str
    asks: str
    """What is compared, in a paragraph."""
    variants: Sequence[Variant]
    cycles: int
    """Times that the newest policy plays and learns."""
    trajectories: int
    """Of a cycle."""
    examined: int = 1
    """Every so many cycles there is an exam; every cycle has the success of its tries."""
    again: bool = False
    """Every cycle has the same tickets; else each has its own."""
    history: int = 0
    """Versions that are made before the first cycle, each by RLOO from a sample of 160 trajectories."""
    figures: Mapping[str, str] = field(default_factory=dict[str, str])
    """What trainings measure of themselves and the report shows: heading by name."""

    def variant(self, name: str) -> Variant:
        """Raises `KeyError` for an unknown one."""
        return {variant.name: variant for variant in self.variants}[name]


SHORT = Experiment(
    name="demo",
    world=SHORT_DEMO,
    title="What `ratchet demo` shows",
    asks=(
        "The one cycle of `ratchet demo`, which begins with the drilled model of the package: 200 imitation steps, then"
        " 640 tickets that are played once each and a learning rate of .002, with 300 held-out tickets. The demo learns"
        " by rejection sampling, which needs fewer tickets for a rise than RLOO (below). A seed draws anew all but the"
        " drilled model."
    ),
    variants=(Variant(name=REJECTION, algorithm="sft", solved_only=True, tries=1, seeds=CHEAP),),
    cycles=1,
    trajectories=640,
)
ALGORITHMS = Experiment(
    name="algorithms",
    title="Every algorithm",
    asks=(
        "Every algorithm learns from as many tickets, played by its own newest policy, with the same adapter, learning"
        " rate, passes and batch: those of the demo, which were chosen for RLOO; nothing is tuned for the others."
        " Rejection sampling, which is supervised fine-tuning on the solved tickets, is the simplest of them and what"
        " the others have to beat."
    ),
    variants=(
        Variant(name=REJECTION, algorithm="sft", solved_only=True),
        Variant(name=RLOO),
        Variant(name="grpo", algorithm="grpo"),
        Variant(
            name="dr_grpo",
            algorithm="grpo",
            options={"scale_rewards": "none", "loss_normalization": "constant"},
        ),
        Variant(name="reinforce", algorithm="reinforce"),
        Variant(name="cispo", algorithm="grpo", options={"surrogate": "cispo", "loss_normalization": "token"}),
        Variant(name="gspo", algorithm="grpo", options={"ratio": "sequence"}),
        Variant(name="ppo", algorithm="ppo"),
        Variant(name="dpo", algorithm="dpo"),
        Variant(name="kto", algorithm="kto"),
    ),
    cycles=2,
    trajectories=1280,
    figures={
        "clip_fraction": "share of tokens clipped, last step",
        "rewards_chosen": "implicit reward of solved tries",
        "rewards_rejected": "of unsolved ones",
    },
)
UNBOUND: Mapping[str, Any] = {"clip_epsilon_high": 4.0}
FLOOR: Mapping[str, Any] = {"advantage_floor": 0.25}
TRAVEL = Experiment(
    name="travel",
    title="Why RLOO trails rejection sampling here",
    asks=(
        "One cycle of 1,280 tries, the same for all, and one factor at a time; some variants with seed 0 alone."
        " Which tickets decide little: without those whose tries all end alike rejection sampling learns from half of"
        " the rows, and nearly as much. A part of it is how far a token may go: the clip ends the gradient of one"
        " that became 1.28 times as likely, and cross-entropy has no bound; by the clipped loss rejection sampling"
        " comes half the way from RLOO. With the bound at 5, with or without a floor of .25 under the advantage of"
        " solved tries, RLOO learns more with every seed, also than at twice the learning rate, and with none as much"
        " as rejection sampling; two of those four trainings were ended by a limit of `health`. In the table above"
        " PPO has RLOO's bound, GSPO's is a thousand times closer and clips every token at first, and DPO and KTO"
        " make unsolved tries less likely and solved ones no likelier."
    ),
    variants=(
        Variant(name=REJECTION, algorithm="sft", solved_only=True),
        Variant(name=RLOO),
        Variant(name="rloo, clip at 5, floor", options=UNBOUND | FLOOR),
        Variant(name="rloo, clip at 5", options=UNBOUND, seeds=FIRST_SEED),
        Variant(
            name="rejection sampling, by the clipped loss",
            options={"negative_advantage_scale": 0.0, "advantage_floor": 1.0},
            seeds=FIRST_SEED,
        ),
        Variant(
            name="rejection sampling, tickets with signal",
            algorithm="sft",
            solved_only=True,
            decisive_only=True,
            seeds=FIRST_SEED,
        ),
        Variant(name="rloo, twice the learning rate", options={"learning_rate": 2e-3}, seeds=FIRST_SEED),
    ),
    cycles=1,
    trajectories=1280,
    figures={
        "rows": "rows",
        "clip_fraction": "share of tokens clipped, last step",
        "stopped_early": "share ended by a limit of `health`",
    },
)
PAIRS_CURVE = Experiment(
    name="pairs",
    title="Pairs against success",
    asks=(
        "DPO on the pairs of so many tries, derived as `ratchet preferences derive` does, where the truth of every pair"
        " is known."
    ),
    variants=tuple(
        Variant(
            name=f"dpo, {tries} tries",
            algorithm="dpo",
            options={"learning_rate": 2e-4},
            trajectories=tries,
            seeds=CHEAP,
        )
        for tries in (128, 512, 1792)
    ),
    cycles=1,
    trajectories=1280,
    figures={"pairs": "pairs"},
)
SINGLETONS = Experiment(
    name="singletons",
    title="Tasks that are tried once",
    asks=(
        "Most tasks of production are tried once. Four cycles of 320 trajectories over the same tickets: each ticket"
        " once in a cycle, compared with its persistent baseline or with the mean of its cycle alone; beside them as"
        " many trajectories as groups of four tries at a quarter of the tickets."
    ),
    variants=(
        Variant(name="single tries, persistent baseline", tries=1, remembers=True),
        Variant(name="single tries, no baseline", tries=1),
        Variant(name="groups of four"),
    ),
    cycles=4,
    trajectories=320,
    again=True,
)
UNCORRECTED: Mapping[str, Any] = {"off_policy_correction": "none"}
STALENESS = Experiment(
    name="staleness",
    title="Data of older policies",
    asks=(
        "Eight versions are made one from the other, by RLOO from 160 trajectories each. Then the eighth learns from"
        " 1,280 trajectories that a version so many versions behind it played, with the correction for that (truncated"
        " importance weights, and rejection of rows that drifted) and without. The start is the eighth version."
    ),
    variants=tuple(
        Variant(name=f"{behind} behind, {how}", behind=behind, options=options)
        for behind in (0, 2, 4, 8)
        for how, options in (("corrected", dict[str, Any]()), ("uncorrected", UNCORRECTED))
    ),
    cycles=1,
    trajectories=1280,
    history=8,
    figures={"start_ess": "effective sample size", "rejected_mass": "share of tokens rejected"},
)
PUBLIC_TRIES = 8
IMITATION = "sft on right answers"


def beside_rejection(tries: int, seeds: Sequence[int] = SEEDS) -> tuple[Variant, Variant]:
    """RLOO, and the simplest way to learn from as many tries."""
    rejection = Variant(name=REJECTION, algorithm="sft", solved_only=True, tries=tries, seeds=seeds)
    return Variant(name=RLOO, tries=tries, seeds=seeds), rejection


BESIDE_ANSWERS = (
    *beside_rejection(PUBLIC_TRIES),
    Variant(name=IMITATION, algorithm="sft", shown=True, seeds=FIRST_SEED),
)
"""And what right answers would teach, which neither of them sees."""


CURRICULUM = Variant(name="rloo, shortest first", tries=PUBLIC_TRIES, shortest_first=True, seeds=FIRST_SEED)


def _public(name: str, title: str, asks: str, *more: Variant) -> Experiment:
    """Of ten cycles of 128 tries, with an exam at the end."""
    return Experiment(
        name=name,
        world=name,
        title=title,
        asks=asks,
        variants=(*BESIDE_ANSWERS, *more),
        cycles=10,
        trajectories=128,
        examined=10,
    )


PROCEDURAL = (
    _public(
        "typed_json",
        "Strict JSON",
        "One line of JSON with two to four keys, each of the type that the question names; the types are drawn."
        " Right: the answer is that object and nothing else, no key is missing, too many or of another type. An object"
        " with some of it right has a part of the reward. Questions and judge are made here.",
    ),
    _public(
        "chain_sum",
        "reasoning-gym chain_sum",
        "Sums and differences of two numbers with one digit, or with two. The whole number has to be the answer.",
    ),
    _public(
        "needle_haystack",
        "reasoning-gym needle_haystack",
        "Three to five statements of what persons like and dislike, and a question after one of them. The name has to"
        " be the answer.",
    ),
    _public(
        "number_format",
        "reasoning-gym number_format",
        "Two or three numbers up to 10,000, plain, with commas or in scientific notation. The largest or the smallest"
        " of them has to be the answer.",
    ),
    _public(
        "word_sorting",
        "reasoning-gym word_sorting",
        "Three or four words of up to six letters, to be sorted up or down. A list with some of it right has a part of"
        " the reward. A variant has the training questions in the order of their length, the shortest in the first"
        " cycle.",
        CURRICULUM,
    ),
    _public(
        "family_relationships",
        "reasoning-gym family_relationships",
        "What a member of a family of four or five is to another. The word for it has to be the answer.",
    ),
)
BFCL = _public(
    "bfcl",
    "BFCL: simple calls",
    "Python's single calls of the Berkeley Function Calling Leaderboard, in Hermes' form. A call has to be the only"
    " one and to match the accepted values as BFCL's own checker compares them. One half of the tasks is held out;"
    " no function is in both halves. Questions that no function answers are left out: mixed with them, calling or"
    " refusing is one decision, and a policy that always refuses solves half.",
)
GAMES = Experiment(
    name="games",
    world="games",
    title="TextArena: Guess The Number and Nim",
    asks=(
        "Two games of TextArena, turn by turn: a number in a range that takes perfect halving to be found in time, and"
        " two piles of Nim against an opponent who moves at random. Won is 1, all else 0. Ranges and piles of the"
        " held-out games never occur in training. The demonstrations make legal moves without a plan."
    ),
    variants=beside_rejection(PUBLIC_TRIES),
    cycles=2,
    trajectories=160,
)
PUBLIC = (*PROCEDURAL, BFCL, GAMES)
"""On SmolLM2 and tasks that others published or anybody can draw: `make bench-learning`."""
OWN = (SHORT, ALGORITHMS, TRAVEL, PAIRS_CURVE, SINGLETONS, STALENESS)
"""In the demo's world: `make learning`."""
EXPERIMENTS = {experiment.name: experiment for experiment in (*OWN, *PUBLIC)}


class Count(msgspec.Struct, frozen=True):
    """Solved tickets."""

    successes: int
    trials: int


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One policy's exam."""

    cycle: int
    """0: before the first one."""
    counts: Mapping[str, Mapping[str, Count]]
    """By mode, then by kind of ticket; nothing for a policy between exams."""
    valid_calls: float | None
    """Share of tool calls that were well formed; None without any call."""
    figures: Mapping[str, float] = {}
    """What its training measured of itself."""
    solved: Mapping[str, str] = {}
    """By mode: 1 for each solved task and 0 for others, by the order of their names; of public tasks."""

    @property
    def examined(self) -> bool:
        """Whether it took the exam."""
        return bool(self.counts)

    @classmethod
    def of(cls, cycle: int, exam: Exam, figures: Mapping[str, float], *, each: bool = False) -> Measured:
        """Count an exam; `each`: with the outcome of each task."""
        counts = {mode: {kind: _count(exam.success(mode, {kind})) for kind in exam.kinds} for mode in (GREEDY, SAMPLED)}
        valid = exam.valid_calls()
        return cls(
            cycle=cycle,
            counts=counts,
            valid_calls=valid.rate if valid else None,
            figures=figures,
            solved={mode: _solved(exam, mode) for mode in counts} if each else {},
        )

    def success(self, mode: str, kinds: str = OVERALL) -> Proportion:
        """Over all kinds, over the misjudged ones, or of one kind by its name."""
        chosen = [
            count
            for kind, count in self.counts[mode].items()
            if kinds in (OVERALL, kind) or (kinds == OF_MISJUDGED and kind in MISJUDGED)
        ]
        return Proportion(sum(count.successes for count in chosen), sum(count.trials for count in chosen))


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured of a cell."""

    experiment: str
    variant: str
    seed: int
    recipe: Mapping[str, float]
    """The demo's plan in numbers, as it was."""
    versions: Mapping[str, str]
    """Of the packages that decide what a training computes."""
    learner: str
    """Digest of the code that trained: `learner_digest` at the time."""
    machine: str
    seconds: float
    """Of its cycles, to play, to train and to judge: without the policies and exams that cells of a seed share."""
    measured: Sequence[Measured]
    """The policy before the first cycle, then one for each cycle."""
    base: Measured | None = None
    """The model that the first policy was made from, where it takes the exam."""
    processor_s: float | None = None
    """Processor time of the same; lines of before have none."""
    load: float | None = None
    """Processes that wanted a core, in the mean of the last minutes, when the cell ended."""
    refused: str | None = None
    """Why a training was refused or ended; the cell ends there."""

    @property
    def cell(self) -> Cell:
        """What was measured."""
        return Cell(self.experiment, self.variant, self.seed)


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """One variant of an experiment with one seed."""

    experiment: str
    variant: str
    seed: int

    def __str__(self) -> str:
        return f"{self.experiment}/{self.variant}/{self.seed}"


def all_cells() -> Iterator[Cell]:
    """Of every experiment."""
    for experiment in EXPERIMENTS.values():
        for variant in experiment.variants:
            for seed in variant.seeds:
                yield Cell(experiment.name, variant.name, seed)


def read_results(file: Path) -> list[Result]:
    """Every cell that was measured, in the order of `all_cells`."""
    return sorted(read_lines(file), key=lambda result: _PLACE[result.cell])


def read_lines(file: Path) -> list[Result]:
    """In the file's order; also of experiments that are no more."""
    lines = file.read_bytes().splitlines() if file.is_file() else []
    return [msgspec.json.decode(line, type=Result) for line in lines]


def add_result(file: Path, result: Result) -> None:
    """Write a cell to its line, in the place of an earlier one. Only one process may do so at a time."""
    kept = {known.cell: known for known in read_results(file)} | {result.cell: result}
    lines = (msgspec.json.encode(kept[cell]) + b"\n" for cell in sorted(kept, key=_PLACE.__getitem__))
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, b"".join(lines))


_PLACE = {cell: number for number, cell in enumerate(all_cells())}


def learner_digest() -> str:
    """The first 12 digits of the sha256 of the trainer's own files: figures are of the learner that has it."""
    folder = files("ratchet.trainer_worker.training")
    with as_file(folder) as root:
        sources = [(path.relative_to(root).as_posix(), path.read_bytes()) for path in sorted(root.rglob("*.py"))]
    return sha256(msgspec.json.encode(sources)).hexdigest()[:12]


def missing_cells(results: Sequence[Result], experiments: Sequence[Experiment]) -> Mapping[str, Sequence[int]]:
    """Seeds that were not measured, by experiment and variant."""
    there = {result.cell for result in results}
    seeds = {
        f"{experiment.name}/{variant.name}": [
            seed for seed in variant.seeds if Cell(experiment.name, variant.name, seed) not in there
        ]
        for experiment in experiments
        for variant in experiment.variants
    }
    return {name: each for name, each in seeds.items() if each}


def is_public(cell: Cell | Result) -> bool:
    """Whether its tasks are public ones."""
    return EXPERIMENTS[cell.experiment] not in OWN


def _solved(exam: Exam, mode: str) -> str:
    answers = sorted((answer.task, answer.success) for answer in exam.answers if answer.mode == mode)
    return "".join(str(int(success)) for _, success in answers)


def _count(measured: Proportion | None) -> Count:
    return Count(measured.successes, measured.trials) if measured else Count(0, 0)
