"""The runs of each experiment of the paper, and the ratios that the paper prints for them."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from mpi_ata.allocators.ata import LowerBoundAllocator
from mpi_ata.driver.plan import OutputOptions, Plan, resolve, resolve_on_ranks
from mpi_ata.errors import UsageError
from mpi_ata.job import Job, load_job
from mpi_ata.job.component import ALLOCATORS, LAWS, Component
from mpi_ata.runfile.store import RunFile

FOLDER = Path(__file__).parent
QUADRATIC, NETWORK = "quadratic.toml", "cifar100.toml"
GREEDY = "gta"  # the baseline of the paper's ratios
BUDGET = 23

# In addition to the package's own names: the paper's ATA with half of the alpha that its text gives.
ATA_HALF = "ata-half"
# And the method with time limits, with the oracle's quotas, since its publication takes the law as known.
MINDFLAYER = "mindflayer"
NAMES = (*ALLOCATORS, ATA_HALF, MINDFLAYER)
_ALLOCATOR_OF = {ATA_HALF: "ata", MINDFLAYER: "ofta"}
DEFAULT_ALLOCATORS = (GREEDY, "ofta", "uta", "ata", ATA_HALF, "ata-empirical")


@dataclass(frozen=True)
class Trial:
    """A run to do: names and numbers only, so that it can be sent to another process."""

    law: str
    n: int
    allocator: str
    seed: int
    rounds: int  # at most
    file: Path
    settings: tuple[str, ...] = ()
    out: Path | None = None  # the run file
    prior: int = 0  # rounds of the bandit alone that it starts from,
    warm_start: Path | None = None  # and the run file with what they learned

    def job(self) -> Job:
        """Return the job of this run."""
        return load_job(self.file, self.settings)

    def plan(self, on_ranks: bool = False) -> Plan:
        """Decide how to run it, alone or on all ranks of this MPI world; a saved run is resumed."""
        output = None
        if self.out is not None:
            resume = RunFile(self.out).exists()
            prior = (self.warm_start,) if self.warm_start and not resume else ()
            output = OutputOptions(self.out, resume, prior)
        return (resolve_on_ranks if on_ranks else resolve)(self.file, self.settings, output)


@dataclass(frozen=True)
class PaperRequest:
    """The user's choices; None stands for the paper's."""

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
    """Runs under several allocators, for several numbers of workers and seeds."""

    name: str
    law: str
    workers: tuple[int, ...]
    title: str
    budget: int = BUDGET
    file: str = QUADRATIC
    allocators: tuple[str, ...] = DEFAULT_ALLOCATORS
    baseline: str = GREEDY  # what ratios are taken to
    seeds: tuple[int, ...] = (1,)
    rounds: int = 40_000  # at most
    unit: float = 1.0
    out: Path | None = None  # folder for the run files,
    prefix: str = ""  # of their names
    settings: tuple[str, ...] = ()  # in addition to those that follow from the above

    def with_request(self, request: PaperRequest) -> "Experiment":
        """Return the experiment with the user's choices."""
        names = request.allocators
        choices: dict[str, Any] = {
            "workers": request.workers and tuple(dict.fromkeys(request.workers)),
            "budget": request.budget,
            "law": request.law,
            "allocators": names and check_names(names, self.allocators, self.baseline),
            "rounds": request.rounds,
            "out": request.out,
        }
        first, count = request.first_seed, request.seeds or len(self.seeds)
        made = {key: value for key, value in choices.items() if value is not None}
        return replace(self, seeds=tuple(range(first, first + count)), **made)

    def trials(self) -> list[Trial]:
        """Return all runs, the longest first, so that no core is left with a long one at the end."""
        workers = sorted(self.workers, reverse=True)
        trials = []
        for n, name, seed in product(workers, self.allocators, self.seeds):
            file, settings = FOLDER / self.file, tuple(self._settings(n, name, seed))
            out = self.out and self.out / f"{self.prefix}{self.law}-n{n}-B{self.budget}-{name}-seed{seed}.h5"
            trials.append(Trial(self.law, n, name, seed, self.rounds, file, settings, out))
        return trials

    def _settings(self, n: int, name: str, seed: int) -> Iterator[str]:
        yield f"times.law={self.law}"
        yield f"times.unit={self.unit}"
        yield f"run.workers={n}"
        yield f"run.seed={seed}"
        yield f"allocator.name={allocator_of(name)}"
        yield f"allocator.budget={self.budget}"
        if name in ("ata", ATA_HALF):
            yield f"allocator.alpha={alpha(self.law, n, name == ATA_HALF, seed) * self.unit}"
        if name == MINDFLAYER:
            yield "method.name=mindflayer"
        yield f"stop.rounds={self.rounds}"
        yield from self.settings

    def alphas(self) -> str:
        """Return the alpha of ata for each number of workers, in words."""
        values = [(alpha(self.law, n, seed=self.seeds[0]), n) for n in self.workers]
        return ", ".join(f"{value:,.0f} at n = {n}" for value, n in values)

    def heading(self, until: str) -> str:
        """Return the title of its results: what was run, until when, and with how many seeds."""
        return f"{self.title}: {self.law} law, B = {self.budget}, {until}, {self.repeats()}"

    def repeats(self) -> str:
        """Return with how many seeds it was run, in words."""
        count = len(self.seeds)
        return f"{count} seed{'s, mean ± standard deviation' if count > 1 else ''}"

    def on_cifar(self, folder: Path) -> "Experiment":
        """Return the experiment for the network on CIFAR-100, with the data from this folder."""
        data = f"problem.data={json.dumps(str(folder.resolve()))}"
        return replace(self, file=NETWORK, prefix="cifar100-", settings=(*self.settings, data))


def alpha(law: str, n: int, half: bool = False, seed: int = 0) -> float:
    """Return twice the largest mean, which is the paper's alpha where it gives one, or half of that."""
    largest = float(Component("times", LAWS[law], {}).build(n=n, seed=seed).means.max())
    return largest if half else 2 * largest


def allocator_of(name: str) -> str:
    """Return the name that job files use for the allocator of a row."""
    return _ALLOCATOR_OF.get(name, name)


def learns(name: str) -> bool:
    """Return whether an allocator learns the speeds of the workers."""
    kind = ALLOCATORS[allocator_of(name)]
    return isinstance(kind, type) and issubclass(kind, LowerBoundAllocator)


LEARNERS = ", ".join(filter(learns, DEFAULT_ALLOCATORS))


def check_names(names: Sequence[str], default: Sequence[str], baseline: str) -> tuple[str, ...]:
    """Check names of allocators, and add the baseline if the experiment has it by default."""
    for name in names:
        if name not in NAMES:
            raise UsageError(f"unknown allocator {name!r}; valid names: {', '.join(NAMES)}")
    return tuple(dict.fromkeys((*((baseline,) if baseline in default else ()), *names)))


TABLE1 = Experiment("table1", "sqrt", (17, 51, 153, 459), "The paper's Table 1 and Figure 1")
TABLE2 = Experiment("table2", "linear", (17, 51, 153), "The paper's Table 2 and its figure on linear noise")
MIX = Experiment("mix", "mix", (15, 45, 150), "The paper's figure on heterogeneous time distributions")
REGRET = Experiment(
    "regret",
    "exponential",
    (20,),
    "The paper's figure on regret",
    budget=5,
    allocators=("ata", ATA_HALF, "ata-empirical"),
    seeds=(1, 2, 3, 4, 5),
    rounds=1_000_000,
)
CIFAR = Experiment("cifar", "linear", (17, 51, 153), "The paper's figure on CIFAR-100", rounds=3_000)
FULL_ROUNDS = 25_000  # 11.5 epochs
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
PAPER_RATIOS = {
    (law, n, name): (worker_time, runtime)
    for (law, n), (worker_times, runtimes) in _ROWS.items()
    for name, worker_time, runtime in zip(_COLUMNS, worker_times, runtimes, strict=True)
}


def paper_ratios(trial: Trial, budget: int) -> tuple[float, float] | tuple[None, None]:
    """Return the two ratios that the paper prints, if any; both alphas are compared with its ATA column."""
    name = "ata" if trial.allocator == ATA_HALF else trial.allocator
    printed = budget == BUDGET and trial.file.name == QUADRATIC and not trial.prior
    return PAPER_RATIOS.get((trial.law, trial.n, name), (None, None)) if printed else (None, None)
