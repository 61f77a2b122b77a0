"""What each experiment of the paper consists of, and the figures that the paper prints for it."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mpi_ata.allocators.lower_bounds import LowerBoundAllocator
from mpi_ata.driver.recorder import OutputOptions
from mpi_ata.errors import UsageError
from mpi_ata.job.names import ALLOCATORS, LAWS
from mpi_ata.job.schema import Job, load_job
from mpi_ata.runfile.store import RunFile

FOLDER = Path(__file__).parent
QUADRATIC, NETWORK = "quadratic.toml", "cifar100.toml"
GREEDY = "gta"  # what ratios refer to
BUDGET = 23

# Beside the package's own names: the paper's ATA with half of the alpha that its text gives.
HALF = "ata-half"
NAMES = (*ALLOCATORS, HALF)
USUAL = (GREEDY, "ofta", "uta", "ata", HALF, "ata-empirical")


@dataclass(frozen=True)
class Plan:
    """One run to be made: names and numbers only, so that another process can make it."""

    law: str
    n: int
    allocator: str
    seed: int
    rounds: int  # at most
    file: Path
    settings: tuple[str, ...] = ()
    out: Path | None = None  # the run file
    prior: int = 0  # rounds of the bandit alone that came before,
    checkpoint: Path | None = None  # and the run file with what they taught

    def job(self) -> Job:
        """The job, ready to be executed."""
        return load_job(self.file, self.settings)

    def keeping(self) -> OutputOptions | None:
        """Where the run is kept, and gone on with; nowhere, if there is no place for it."""
        if self.out is None:
            return None
        known = (self.checkpoint,) if self.checkpoint else ()
        return OutputOptions(self.out, resume=RunFile(self.out).exists(), warm_start=known)


@dataclass(frozen=True)
class Request:
    """What a user asks for; what is None is as in the paper."""

    workers: tuple[int, ...] | None = None
    budget: int | None = None
    law: str | None = None
    allocators: tuple[str, ...] | None = None
    rounds: int | None = None
    seeds: int | None = None  # how many
    first_seed: int = 1
    cores: int = 1
    out: Path | None = None


@dataclass(frozen=True)
class Experiment:
    """Runs under several allocators for several numbers of workers."""

    name: str
    law: str
    workers: tuple[int, ...]
    title: str
    budget: int = BUDGET
    file: str = QUADRATIC
    allocators: tuple[str, ...] = USUAL
    seeds: tuple[int, ...] = (1,)
    rounds: int = 40_000  # at most
    unit: float = 1.0
    out: Path | None = None  # folder for the run files,
    prefix: str = ""  # with which their names begin
    settings: tuple[str, ...] = ()  # further ones

    def asked(self, request: Request) -> "Experiment":
        """The experiment as a user asks for it."""
        names = request.allocators
        asked: dict[str, Any] = {
            "workers": request.workers and tuple(dict.fromkeys(request.workers)),
            "budget": request.budget,
            "law": request.law,
            "allocators": names and checked_names(names, self.allocators),
            "rounds": request.rounds,
            "out": request.out,
        }
        first, count = request.first_seed, request.seeds or len(self.seeds)
        given = {key: value for key, value in asked.items() if value is not None}
        return replace(self, seeds=tuple(range(first, first + count)), **given)

    def plans(self) -> list[Plan]:
        """All runs, those that take longest first, so that no core is left with a long one in the end."""
        return [
            Plan(
                self.law,
                n,
                name,
                seed,
                self.rounds,
                FOLDER / self.file,
                tuple(self._settings(n, name, seed)),
                self.out and self.out / f"{self.prefix}{self.law}-n{n}-B{self.budget}-{name}-seed{seed}.h5",
            )
            for n in sorted(self.workers, reverse=True)
            for name in self.allocators
            for seed in self.seeds
        ]

    def _settings(self, n: int, name: str, seed: int) -> Iterator[str]:
        yield f"times.law={self.law}"
        yield f"times.unit={self.unit}"
        yield f"run.workers={n}"
        yield f"run.seed={seed}"
        yield f"allocator.name={'ata' if name == HALF else name}"
        yield f"allocator.budget={self.budget}"
        if name in ("ata", HALF):
            yield f"allocator.alpha={alpha(self.law, n, half=name == HALF) * self.unit}"
        yield f"stop.rounds={self.rounds}"
        yield from self.settings

    def heading(self, until: str) -> str:
        """What stands above its results: what was run, until when, and how often."""
        count = len(self.seeds)
        repeats = f"{count} seed{'s, mean ± standard deviation' if count > 1 else ''}"
        return f"{self.title}: {self.law} law, B = {self.budget}, {until}, {repeats}"

    def on_data(self, folder: Path) -> "Experiment":
        """The same for the network on CIFAR-100, whose files are in this folder."""
        data = f"problem.data={json.dumps(str(folder.resolve()))}"
        return replace(self, file=NETWORK, prefix="cifar100-", settings=(*self.settings, data))


def alpha(law: str, n: int, half: bool = False) -> float:
    """Twice the largest mean: the paper's alpha where it prints one, and its analogue where it does not."""
    largest = float(LAWS[law](n).means.max())
    return largest if half else 2 * largest


def learns(name: str) -> bool:
    """Whether an allocator has a use for what is known of the workers."""
    kind = ALLOCATORS["ata" if name == HALF else name]
    return isinstance(kind, type) and issubclass(kind, LowerBoundAllocator)


LEARNERS = ", ".join(filter(learns, USUAL))


def checked_names(names: Sequence[str], usual: Sequence[str]) -> tuple[str, ...]:
    """Names of allocators, with greedy allocation where it is usual, since ratios refer to it."""
    for name in names:
        if name not in NAMES:
            raise UsageError(f"unknown allocator {name!r}; valid names: {', '.join(NAMES)}")
    return tuple(dict.fromkeys((*((GREEDY,) if GREEDY in usual else ()), *names)))


TABLE1 = Experiment("table1", "sqrt", (17, 51, 153, 459), "The paper's Table 1 and Figure 1")
TABLE2 = Experiment("table2", "linear", (17, 51, 153), "The paper's Table 2 and its figure on linear noise")
MIX = Experiment("mix", "mix", (15, 45, 150), "The paper's figure on heterogeneous time distributions")
REGRET = Experiment(
    "regret",
    "exponential",
    (20,),
    "The paper's figure on regret",
    budget=5,
    allocators=("ata", HALF, "ata-empirical"),
    seeds=(1, 2, 3, 4, 5),
    rounds=1_000_000,
)
CIFAR = Experiment(
    "cifar",
    "linear",
    (17, 51, 153),
    "The paper's figure on CIFAR-100",
    rounds=3_000,
)
FULL = 25_000  # rounds: eleven and a half times all images
PRIOR = Experiment("prior", "linear", (51,), "The paper's figure on prior knowledge")
PRIOR_ON_CIFAR = replace(PRIOR, name="prior-cifar", rounds=CIFAR.rounds)

# (worker time of greedy / worker time, clock / clock of greedy) at f - f* < 1e-5 with B = 23
_COLUMNS = ("ata", "ata-empirical", "ofta")
_ROWS = {
    ("sqrt", 17): ((1.3, 1.26, 1.26), (1.73, 1.75, 1.74)),
    ("sqrt", 51): ((2.91, 2.69, 3.03), (2.43, 2.45, 2.17)),
    ("sqrt", 153): ((7.22, 7.02, 9.1), (3.44, 3.14, 2.17)),
    ("sqrt", 459): ((12.45, 14.1, 27.3), (6.36, 5.51, 2.17)),
    ("linear", 17): ((2.32, 1.91, 2.1), (1.71, 1.71, 1.58)),
    ("linear", 51): ((6.71, 5.02, 6.29), (3.27, 2.12, 1.58)),
    ("linear", 153): ((3.41, 8.68, 18.87), (7.96, 4.5, 1.58)),
}
PRINTED = {
    (law, n, name): (worker_time, runtime)
    for (law, n), (worker_times, runtimes) in _ROWS.items()
    for name, worker_time, runtime in zip(_COLUMNS, worker_times, runtimes, strict=True)
}


def printed(plan: Plan, budget: int) -> tuple[float, float] | tuple[None, None]:
    """The two ratios that the paper prints, where it does; both alphas stand beside its column ATA."""
    name = "ata" if plan.allocator == HALF else plan.allocator
    asked = budget == BUDGET and plan.file.name == QUADRATIC and not plan.prior
    return PRINTED.get((plan.law, plan.n, name), (None, None)) if asked else (None, None)
