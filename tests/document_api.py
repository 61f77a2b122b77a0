"""Keep docs/api.md true: it is generated from the docstrings of the public names, with an example for each.

`python -m tests.document_api` rewrites it; tests check that it is up to date, and run the examples.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import mpi_ata

DOCUMENT = Path(__file__).parent.parent / "docs" / "api.md"
TITLE = """# Public names

All names of `mpi_ata.__all__`: these stay; everything else may change. `python -m tests.document_api`
generates this page from their docstrings. [Your own problem](own-problem.md#scripts) shows how they work
together. What a protocol has (`Problem`, `Allocator`, `Method`, `Update`, `Cluster`, `Law`, `Observer`) is
listed there only.
"""
GROUPS = {
    "Running": "minimize run_jobs cluster Pool Executor run Trainer Balance load Result SavedRun Stop Trace "
    "Round",
    "Observers and loggers": "Observer CSVLogger TensorBoardLogger WandbLogger MLflowLogger",
    "Problems": "Problem Computation Task Quadratic TwoPoints TorchProblem Array",
    "Allocators": "Allocator ATAAuto ATA ATAEmpirical GTA UTA OFTA MSync Bandit Proportional",
    "Methods": "Method SGD Map HeterogeneousDataSGD Malenia MindFlayer ASGD Ringmaster "
    "RennalaMVR Ringleader RescaledASGD HeterogeneousDataASGD",
    "Updates": "Update GradientUpdate Plain Momentum Nesterov Adam LMO TorchUpdate",
    "Clusters": "Cluster MPICluster VirtualCluster FaultPolicy Fault Arrival TaskResult Lost Back",
    "Errors": "UsageError RunError ItemError",
}
# In these, n is a number of workers, and problem, cluster, method, result and round are what their names say;
# those with ranks or PyTorch are not run by a test.
EXAMPLES = {
    "minimize": "result = minimize(problem, budget=8, update=Adam(0.01), rounds=100, times=Sqrt(4))",
    "run_jobs": 'run_jobs(["a.toml", "b.toml"], workers=4, out="runs/both")',
    "cluster": ("with mpi_ata.cluster(problem, times=Sqrt(4)) as workers:\n    print(workers.n)"),
    "Pool": ("with Pool(workers=4) as pool:\n    print(pool.map(abs, [-1, 2]))"),
    "run": ("for round in mpi_ata.run(method, cluster, problem, Stop(rounds=3)):\n    print(round.duration)"),
    "Trainer": (
        "with Trainer(model, loss_fn, dataset, 16, budget=8, optimizer=optimizer) as trainer:\n    ..."
    ),
    "Executor": "with Executor(workers=4) as executor:\n    print(executor.submit(abs, -1).result())",
    "Balance": "balance = Balance(budget=16)",
    "load": 'load("run.h5").history["loss"]',
    "Result": 'result.x, result.summary["clock"]',
    "SavedRun": 'load("run.h5").workers.to_pandas()',
    "Stop": "Stop(rounds=1000, gap=1e-5, elapsed=3600)",
    "Trace": ("trace = Trace()\nfor round in mpi_ata.run(method, cluster, trace=trace):\n    break"),
    "Round": "round.number, round.quota.sum(), round.duration",
    "Observer": (
        "class Mine(Observer):\n    def on_round(self, round, trace):\n        print(trace.round, trace.loss)"
    ),
    "CSVLogger": (
        "minimize(problem, 8, update=Plain(0.1), rounds=9, times=Sqrt(4), observers=[CSVLogger()])"
    ),
    "TensorBoardLogger": "observers = [TensorBoardLogger()]",
    "WandbLogger": "observers = [WandbLogger()]",
    "MLflowLogger": "observers = [MLflowLogger()]",
    "Problem": (
        "class Mine:\n"
        "    x0 = np.zeros(3)\n"
        "\n"
        "    def gradient(self, x, task):\n"
        "        return x - task.rng.random(3)"
    ),
    "Computation": (
        "class Pi:\n"
        "    x0 = 0.0\n"
        "\n"
        "    def compute(self, x, task):\n"
        "        return sum(task.rng.random(2) ** 2) < 1"
    ),
    "Task": ("def gradient(self, x, task):\n    return x + task.rng.normal(size=x.shape)"),
    "Quadratic": "problem = Quadratic(dimension=100, noise=0.01)",
    "TorchProblem": "problem = TorchProblem(build_model, loss_fn, dataset, batch_size=16, test=held_out)",
    "Array": "x: Array = np.zeros(3)",
    "Allocator": "quota = ATAAuto(n, budget=8).allocate(np.ones(n, bool))",
    "ATAAuto": 'ATAAuto(n, budget=8, spares="auto")',
    "ATA": "ATA(n, budget=8, alpha=2.0)",
    "ATAEmpirical": "ATAEmpirical(n, budget=8, eta=0.5, forget=True)",
    "GTA": "GTA(n, budget=8)",
    "UTA": "UTA(n, budget=8)",
    "OFTA": "OFTA(n, budget=8, means=[1.0, 2.0, 3.0, 4.0])",
    "MSync": "MSync(n, budget=8, m=3)",
    "Bandit": "Bandit(n, budget=8, picks=2)",
    "Proportional": "Proportional(n, budget=8)",
    "Method": "method.step(cluster).used",
    "SGD": "SGD(problem.x0, ATAAuto(n, budget=8), Momentum(0.05))",
    "Map": "Map(0.0, ATAAuto(n, budget=8))",
    "HeterogeneousDataSGD": "HeterogeneousDataSGD(problem.x0, ATAAuto(n, budget=8), Plain(0.1))",
    "Malenia": "Malenia(problem.x0, Plain(0.1), S=8)",
    "MindFlayer": "MindFlayer(problem.x0, n, UTA(n, budget=8), Plain(0.1))",
    "ASGD": "ASGD(problem.x0, ATAAuto(n, budget=8), Plain(0.01))",
    "RennalaMVR": "RennalaMVR(problem.x0, GTA(n, budget=8), Plain(0.1), a=0.2)",
    "Ringleader": "Ringleader(problem.x0, n, Plain(0.01))",
    "RescaledASGD": "RescaledASGD(problem.x0, n, Plain(0.01), budget=8)",
    "HeterogeneousDataASGD": "HeterogeneousDataASGD(problem.x0, ATAAuto(n, budget=8), Plain(0.01))",
    "LMO": 'LMO(0.01, norm="spectral")',
    "TwoPoints": "TwoPoints(problem)",
    "Ringmaster": "Ringmaster(problem.x0, n, Plain(0.01), delay=8, budget=8)",
    "Update": "x = Plain(0.1)(x, g)",
    "GradientUpdate": 'Plain(0.1, schedule="cosine", warmup=100, period=1000)',
    "Plain": "Plain(0.1)",
    "Momentum": "Momentum(0.1, beta=0.9)",
    "Nesterov": "Nesterov(0.1, beta=0.9)",
    "Adam": "Adam(0.001)",
    "TorchUpdate": "update = TorchUpdate(lambda weights: torch.optim.AdamW(weights, lr=1e-3))",
    "Cluster": ("cluster.start([0], problem.x0, 1)\ncluster.wait().seconds"),
    "MPICluster": "isinstance(workers, MPICluster)",
    "VirtualCluster": "cluster = VirtualCluster(problem, DrawnTimes(Sqrt(4)))",
    "FaultPolicy": 'FaultPolicy(deadline=20, on_task_error="reissue")',
    "Fault": ('VirtualCluster(problem, DrawnTimes(Sqrt(4)), faults=[Fault(5.0, worker=1, kind="die")])'),
    "Arrival": (
        "cluster.start([0], problem.x0, 1)\narrival = cluster.wait()\narrival.worker, arrival.result"
    ),
    "TaskResult": "round.results",
    "Lost": "round.losses",
    "Back": "round.returns",
    "UsageError": (
        "try:\n    minimize(problem, update=Plain(0.1))\nexcept UsageError as error:\n    print(error)"
    ),
    "RunError": ('try:\n    load("missing.h5")\nexcept (UsageError, RunError) as error:\n    print(error)'),
    "ItemError": ('results = pool.map(function, items, on_error="return")  # an ItemError for each failure'),
    "Law": (
        "class Two:\n"
        "    n, means = 2, np.ones(2)\n"
        "\n"
        "    def draw(self, rng):\n"
        "        return 2 * rng.random(2)"
    ),
    "DrawnTimes": "DrawnTimes(Sqrt(4), seed=1, unit=1e-3)",
    "Recorded": "Recorded(2, [np.array([1.0, 1.1]), np.array([2.0])])",
    "Lognormal": "Lognormal([1.0, 2.0, 4.0], cv=[0.1, 0.1, 0.5])",
    "Mix": "Mix(10)",
    "gpu_generations": 'gpu_generations(9, workload="ResNet-50 (batch size 32)")',
    "longhorn": 'longhorn(8, workload="resnet")',
}
NOT_RUN = [
    "run_jobs",
    "Executor",
    "Pool",
    "Trainer",
    "Balance",
    "TorchProblem",
    "TorchUpdate",
    "MPICluster",
    "ItemError",
]
REST = "Task times"  # the group of all names that are in no other


def document() -> str:
    """Return the whole page."""
    sections = [f"## {title}\n\n{''.join(map(entry, names))}" for title, names in groups().items()]
    return "\n".join([TITLE, *sections]).rstrip() + "\n"


def groups() -> dict[str, list[str]]:
    """Return the public names by group; each is in one."""
    grouped = {title: names.split() for title, names in GROUPS.items()}
    known = {name for names in grouped.values() for name in names}
    public = [name for name in mpi_ata.__all__ if not name.startswith("__")]
    return grouped | {REST: [name for name in public if name not in known]}


def entry(name: str) -> str:
    """Return the section of one name: how it is called, its docstring, and what it offers."""
    found = getattr(mpi_ata, name)
    if not getattr(found, "__module__", "").startswith("mpi_ata"):  # an alias of a type
        return f"### {name}\n\nA numpy array of float32 or float64.\n\n"
    call = "" if getattr(found, "_is_protocol", False) else f"`{called(name, found)}`"
    text = docstring(found) if name in EXPLAINED.split() else docstring(found).partition("\n\n")[0]
    parts = [call, text, "\n".join(members(name, found)), f"```python\n{example(name)}\n```"]
    return f"### {name}\n\n" + "".join(f"{part}\n\n" for part in parts if part)


def example(name: str) -> str:
    """Return an example of a name; of a law, that is one of four workers."""
    return EXAMPLES.get(name, f"{name}(4)")


def docstring(found: Any) -> str:
    """Return a docstring, whose single line breaks do not matter."""
    paragraphs = (inspect.getdoc(found) or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def called(name: str, found: Any) -> str:
    """Return how a function or class is called, with defaults."""
    node = definition(found)
    arguments = list(fields(node)) if isinstance(node, ast.ClassDef) else list(parameters(node))
    if "__signature__" in vars(found):  # callers write the fields of what the function gets as one object
        [kind, *_] = inspect.get_annotations(inspect.unwrap(found)).values()
        arguments = [each for cls in (kind, *kind.__bases__) for each in fields(definition(cls))]
    return f"{name}({', '.join(arguments)})"


def definition(found: Any) -> Any:
    """Return a function, the constructor of a class, or a class without one, as Python reads it."""
    owner = next((cls for cls in getattr(found, "__mro__", ()) if has_constructor(cls)), None)
    source = found if owner is None else owner.__init__
    return ast.parse(textwrap.dedent(inspect.getsource(source))).body[0]


def has_constructor(cls: type) -> bool:
    """Return whether a class has a constructor that is written in the package, not one of a protocol's."""
    own = vars(cls).get("__init__")
    package = Path(mpi_ata.__file__).parent
    return inspect.isfunction(own) and package in Path(own.__code__.co_filename).parents


def parameters(node: Any) -> Iterator[str]:
    """Yield the parameters of a function as they are written."""
    arguments = node.args
    named = [*arguments.posonlyargs, *arguments.args]
    pairs = list(zip_longest(reversed(named), reversed(arguments.defaults)))[::-1]
    yield from (parameter(arg, default) for arg, default in pairs if arg.arg != "self")
    if arguments.vararg or arguments.kwonlyargs:
        yield f"*{arguments.vararg.arg if arguments.vararg else ''}"
    yield from map(parameter, arguments.kwonlyargs, arguments.kw_defaults)
    if arguments.kwarg:
        yield f"**{arguments.kwarg.arg}"


def parameter(arg: ast.arg, default: ast.expr | None) -> str:
    """Return one parameter with its default."""
    return arg.arg + (f"={ast.unparse(default)}" if default is not None else "")


def fields(node: ast.ClassDef) -> Iterator[str]:
    """Yield the fields of a class that has no constructor of its own: a dataclass or a named tuple."""
    for line in node.body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            only = ast.unparse(line.annotation) == "KW_ONLY"
            default = "" if line.value is None else f"={ast.unparse(line.value)}"
            yield "*" if only else f"{line.target.id}{default}"


PROTOCOLS = ["Problem", "Computation", "Allocator", "Method", "Update", "Cluster", "Law", "Observer"]
TRACE = ("elapsed", "billed", "setup_time", "summary", "history", "metric_columns")  # what users need of it


def members(name: str, found: Any) -> Iterator[str]:
    """Yield a line for each public method or property of a class, but for those of the protocols."""
    known = {member for each in PROTOCOLS for member in vars(getattr(mpi_ata, each)) if each != name}
    for key, member in vars(found).items() if isinstance(found, type) else ():
        inner = member.fget if isinstance(member, property) else member
        is_shown = key in TRACE if name == "Trace" else key not in known and name not in NO_MEMBERS.split()
        if not key.startswith("_") and inspect.isfunction(inner) and inner.__doc__ and is_shown:
            names = [each for each in inspect.signature(inner).parameters if each != "self"]
            arguments = "" if isinstance(member, property) else f"({', '.join(names)})"
            text = " ".join(docstring(inner).split())
            yield f"- `{key}{arguments}`: {text if name in LONG.split() else first_sentence(text)}"


LONG = "Allocator Method Update Law"  # whose members are explained
NO_MEMBERS = (  # whose members are for the package
    "TorchProblem TorchUpdate MPICluster VirtualCluster Quadratic DrawnTimes Fault Stop MindFlayer Bandit "
    "ATA ATAAuto ATAEmpirical Adam Momentum Nesterov CSVLogger TensorBoardLogger WandbLogger MLflowLogger"
)
EXPLAINED = (
    f"minimize cluster run load Stop Round {' '.join(PROTOCOLS)} Task FaultPolicy"  # others: first paragraph
)


def first_sentence(text: str) -> str:
    """Return the first sentence of a docstring."""
    return re.split(r"(?<=\.) (?=[A-Z`])", text)[0]


if __name__ == "__main__":
    DOCUMENT.write_text(document())
