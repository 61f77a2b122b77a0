"""Keep docs/api.md true: it is generated from the docstrings of the public names, with an example for each.

`python -m tests.document_api` rewrites it; tests check that it is up to date, and run the examples.
"""

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import mpi_ata
from mpi_ata.script.resume import Recording

DOCUMENT = Path(__file__).parent.parent / "docs" / "api.md"
TITLE = """# Public names

All names of `mpi_ata.__all__` but `__version__`: these stay; everything else may change. In examples, `n` is
a number of workers, and `problem`, `cluster`, `method`, `result` and `round` are what their names say. [Your
own problem](own-problem.md#scripts) shows how they work together.
"""
GROUPS = {  # the names of a group that have no section of their own share an example
    "Running": "minimize run_jobs cluster run Pool Executor",
    "Results": "load Result SavedRun Round Stop Trace",
    "PyTorch": "TorchProblem TorchUpdate Trainer Balance",
    "Observers and loggers": "CSVLogger TensorBoardLogger WandbLogger MLflowLogger Observer",
    "Problems": "Quadratic TwoPoints Array Task Problem Computation",
    "Allocators": "ATAAuto ATA ATAEmpirical GTA UTA OFTA MSync Bandit Proportional Allocator",
    "Methods": "SGD Map HeterogeneousDataSGD Malenia MindFlayer ASGD Ringmaster "
    "RennalaMVR Ringleader RescaledASGD HeterogeneousDataASGD Method",
    "Updates": "Plain Momentum Nesterov Adam LMO Update GradientUpdate",
    "Clusters": "MPICluster VirtualCluster FaultPolicy Fault Arrival TaskResult Lost Back Cluster",
    "Errors": "UsageError RunError ItemError",
    "Task times": "Constant Exponential Linear Sqrt Mix Lognormal Recorded lonestar6 longhorn frontera "
    "gpu_generations bytedance_ar bytedance_se DrawnTimes Law",
}
NOTES = {  # what is said once about all names of a group
    "Running": "[Farms](farm.md) explains `Pool` and `Executor`, [Several jobs](sharing.md) `run_jobs`.",
    "PyTorch": "[Trainer](pytorch/trainer.md) and [DDP](pytorch/ddp.md) explain arguments and members.",
    "Allocators": "[Allocators](allocators.md) explains them, [the job file](job-file.md#allocator) their "
    "arguments.",
    "Methods": "[Methods](methods.md) explains them, [the job file](job-file.md#method) their arguments.",
    "Updates": "[Methods](methods.md#updates) has the formulas. `**schedule` stands for the arguments of "
    "`GradientUpdate` after `step_size`.",
    "Clusters": "[Simulating faults](faults.md#simulating-faults) explains `Fault`; `deaths` maps workers to "
    "the times at which they die.",
    "Task times": "[The job file](job-file.md#times) explains the laws, [times.md](times.md) their sources.",
}
NAMES_ONLY = ["Allocators", "Methods", "Updates", "Task times"]  # groups explained on other pages
ALSO_EXPLAINED = ["Update", "Lognormal", "DrawnTimes"]  # but for these
# Examples of one name, or of all in a group that have no section.  Those with ranks or PyTorch are not run.
EXAMPLES = {
    "minimize": "result = minimize(problem, budget=8, update=Adam(0.01), rounds=100, times=Sqrt(4))",
    "run_jobs": 'run_jobs(["a.toml", "b.toml"], workers=4, out="runs/both")',
    "cluster": ("with mpi_ata.cluster(problem, times=Sqrt(4)) as workers:\n    print(workers.n)"),
    "run": ("for round in mpi_ata.run(method, cluster, problem, Stop(rounds=3)):\n    print(round.duration)"),
    "Pool": ("with Pool(workers=4) as pool:\n    print(pool.map(abs, [-1, 2]))"),
    "Executor": "with Executor(workers=4) as executor:\n    print(executor.submit(abs, -1).result())",
    "Results": (
        "trace = Trace()\n"
        "for round in mpi_ata.run(method, cluster, stop=Stop(rounds=100, elapsed=60), trace=trace):\n"
        "    round.number, round.quota.sum(), round.duration  # a Round\n"
        'result.x, result.summary["clock"]  # a Result\n'
        'load("run.h5").history["loss"]  # of a SavedRun'
    ),
    "PyTorch": (
        "problem = TorchProblem(build_model, loss_fn, dataset, batch_size=16, test=held_out)\n"
        "update = TorchUpdate(lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3))"
    ),
    "Trainer": (
        "with Trainer(model, loss_fn, dataset, 16, budget=8, optimizer=optimizer) as trainer:\n"
        "    for round in trainer:\n"
        "        print(trainer.logs)"
    ),
    "Balance": (
        "balance = Balance(budget=16)\n"
        "for micro in balance.micro_batches(loader):\n"
        "    loss_fn(model(micro[0]), micro[1]).backward()\n"
        "balance.step(model, optimizer)"
    ),
    "Observers and loggers": (
        "loggers = [CSVLogger()]  # or TensorBoardLogger(), WandbLogger(), MLflowLogger()\n"
        "minimize(problem, 8, update=Plain(0.1), rounds=9, times=Sqrt(4), observers=loggers)"
    ),
    "Observer": (
        "class Mine(Observer):\n    def on_round(self, round, trace):\n        print(trace.round, trace.loss)"
    ),
    "Problems": (
        "class Noisy(Quadratic):\n"
        "    def gradient(self, x: Array, task: Task) -> Array:\n"
        "        return x + task.rng.normal(size=x.shape)\n"
        "\n"
        "\n"
        "problem = TwoPoints(Noisy(dimension=100))"
    ),
    "Problem": (
        "class Mine:  # a Problem\n"
        "    x0 = np.zeros(3)\n"
        "\n"
        "    def gradient(self, x, task):\n"
        "        return x - task.rng.random(3)"
    ),
    "Computation": (
        "class Pi:  # a Computation\n"
        "    x0 = 0.0\n"
        "\n"
        "    def compute(self, x, task):\n"
        "        return sum(task.rng.random(2) ** 2) < 1"
    ),
    "Allocators": (
        'ATAAuto(n, budget=8, spares="auto")\n'
        "ATA(n, budget=8, alpha=2.0)\n"
        "ATAEmpirical(n, budget=8, eta=0.5, forget=True)\n"
        "GTA(n, budget=8)\n"
        "UTA(n, budget=8)\n"
        "OFTA(n, budget=8, means=[1.0, 2.0, 3.0, 4.0])\n"
        "MSync(n, budget=8, m=3)\n"
        "Bandit(n, budget=8, picks=2)\n"
        "Proportional(n, budget=8)"
    ),
    "Allocator": "quota = ATAAuto(n, budget=8).allocate(np.ones(n, bool))  # an Allocator",
    "Methods": (
        "SGD(problem.x0, ATAAuto(n, budget=8), Momentum(0.05))\n"
        "Map(0.0, ATAAuto(n, budget=8))\n"
        "HeterogeneousDataSGD(problem.x0, ATAAuto(n, budget=8), Plain(0.1))\n"
        "Malenia(problem.x0, Plain(0.1), S=8)\n"
        "MindFlayer(problem.x0, n, UTA(n, budget=8), Plain(0.1))\n"
        "ASGD(problem.x0, ATAAuto(n, budget=8), Plain(0.01))\n"
        "Ringmaster(problem.x0, n, Plain(0.01), delay=8, budget=8)\n"
        "RennalaMVR(problem.x0, GTA(n, budget=8), Plain(0.1), a=0.2)\n"
        "Ringleader(problem.x0, n, Plain(0.01))\n"
        "RescaledASGD(problem.x0, n, Plain(0.01), budget=8)\n"
        "HeterogeneousDataASGD(problem.x0, ATAAuto(n, budget=8), Plain(0.01))"
    ),
    "Method": "method.step(cluster).used  # of a Method",
    "Updates": (
        'Plain(0.1, schedule="cosine", warmup=100, period=1000)\n'
        "Momentum(0.1, beta=0.9)\n"
        "Nesterov(0.1)\n"
        "Adam(0.001)\n"
        'update: Update = LMO(0.01, norm="spectral")\n'
        "x = update(x, g)"
    ),
    "GradientUpdate": (
        "class Sign(GradientUpdate):\n    def direction(self, x, g):\n        return np.sign(g)"
    ),
    "Clusters": (
        "isinstance(cluster, MPICluster)  # whether workers are real\n"
        'faults = [Fault(5.0, worker=1, kind="die")]\n'
        'policy = FaultPolicy(deadline=20, on_task_error="reissue")\n'
        "cluster = VirtualCluster(problem, DrawnTimes(Sqrt(4)), faults=faults, policy=policy)\n"
        "round = method.step(cluster)\n"
        "round.losses, round.returns, round.results  # tuples of Lost, Back and TaskResult\n"
        "cluster.start([0], problem.x0, 2)\n"
        "cluster.wait().seconds  # of an Arrival"
    ),
    "Cluster": (
        "with mpi_ata.cluster(times=Sqrt(4)) as workers:  # a Cluster\n"
        "    print(list(workers.map(abs, [-1, 2])))"
    ),
    "Errors": (
        "try:\n"
        '    load("missing.h5")\n'
        "except (UsageError, RunError) as error:\n"
        "    print(error)\n"
        "with Pool(times=Sqrt(4)) as pool:\n"
        '    results = pool.map(len, ["ab", 3], on_error="return")  # [2, ItemError(...)]'
    ),
    "Task times": (
        "laws = [Constant(4), Exponential(4), Linear(4), Sqrt(4, scale=1.0), Mix(10)]\n"
        "laws += [Lognormal([1.0, 2.0], cv=[0.1, 0.5]), Recorded(1, [np.array([1.0, 1.1])])]\n"
        'laws += [lonestar6(4), longhorn(8, workload="resnet"), frontera(4), gpu_generations(9)]\n'
        "laws += [bytedance_ar(4), bytedance_se(4)]\n"
        "DrawnTimes(laws[0], seed=1, unit=1e-3)"
    ),
    "Law": (
        "class Two:  # a Law\n"
        "    n, means = 2, np.ones(2)\n"
        "\n"
        "    def draw(self, rng):\n"
        "        return 2 * rng.random(2)"
    ),
}
NOT_RUN = ["run_jobs", "Executor", "Pool", "Trainer", "Balance", "TorchProblem", "TorchUpdate"]
# Names whose docstrings are shown in full; of others, it is the first paragraph.
EXPLAINED = "minimize cluster run Problem Computation Allocator Cluster Observer"
EXPLAINED_MEMBERS = ["Allocator", "Method", "Law"]  # others: the first sentence
MEMBERS = {  # those that users need
    "Observer": "on_start on_round on_end",
    "Problem": "x0 gradient",
    "Computation": "x0 compute",
    "Task": "rng again stopped",
    "Allocator": "allocate observe state restore inherit",
    "Method": "allocator step state restore",
    "GradientUpdate": "gamma direction remembered",
    "Cluster": "map start wait stop idle now close",
    "Law": "means draw",
}
OTHER_MEMBERS = {  # which other pages or their docstrings explain
    "Pool": "map starmap imap imap_unordered close",
    "Executor": "submit shutdown",
    "Trace": "summary history metric_columns",
    "Cluster": "identities overruns state restore take_over",
    "Trainer": "evaluate save",
    "Balance": "micro_batches step reduce log steps_per_epoch state_dict load_state_dict",
}
RECORDING = {  # what the arguments mean that several names share, shown as **recording
    "out": "the run file",
    "resume": "continue the run in `out`, if there is one",
    "warm_start": "[run files or folders](running.md#warm-start) whose speeds to start from",
    "prior_weight": "how much these count",
    "any_problem": "take speeds from runs of other problems too",
    "accept_changes": "resume even if the problem has changed",
    "checkpoint_rounds": "save after this many rounds",
    "checkpoint_seconds": "save after this many seconds",
}
SHARED = {"recording": [*RECORDING], "schedule": [*inspect.signature(mpi_ata.GradientUpdate).parameters][1:]}


def document() -> str:
    """Return the whole page."""
    sections = [section(title, names) for title, names in groups().items()]
    return "\n".join([TITLE, *sections])


def groups() -> dict[str, list[str]]:
    """Return the public names by group; each is in one."""
    grouped = {title: names.split() for title, names in GROUPS.items()}
    known = [name for names in grouped.values() for name in names]
    assert sorted(known) == sorted(name for name in mpi_ata.__all__ if not name.startswith("__"))
    return grouped


def section(title: str, names: list[str]) -> str:
    """Return a group: a list of the names that share an example, and a section for each other one."""
    listed = "".join(map(item, filter(shares_example, names)))
    shared = [f"{listed}\n{block(EXAMPLES[title])}"] if listed else []
    own = [entry(name) for name in names if not shares_example(name)]
    recording = [recording_entry()] if title == "Running" else []
    notes = [f"{NOTES[title]}\n\n"] if title in NOTES else []
    return "".join([f"## {title}\n\n", *notes, *shared, *own, *recording]).rstrip() + "\n"


def shares_example(name: str) -> bool:
    """Return whether a name is one of a list, without a section of its own."""
    return name not in EXAMPLES


def item(name: str) -> str:
    """Return the entry of a name in a list."""
    found = getattr(mpi_ata, name)
    if is_alias(found):
        return f"- `{name}`: A numpy array of float32 or float64.\n"
    inner = "".join(f"  {line}\n" for line in members(name, found))
    is_explained = not any(name in GROUPS[title].split() for title in NAMES_ONLY) or name in ALSO_EXPLAINED
    call = name if getattr(found, "_is_protocol", False) else called(name, found)
    return f"- `{call}`{f': {explanation(name, found)}' if is_explained else ''}\n{inner}"


def entry(name: str) -> str:
    """Return the section of one name: how it is called, its docstring, and what it offers."""
    found = getattr(mpi_ata, name)
    call = "" if getattr(found, "_is_protocol", False) else f"`{called(name, found)}`"
    summary, _, rest = explanation(name, found).partition("\n\n")
    parts = [call, summary, "\n".join(members(name, found)), rest]
    return f"### {name}\n\n" + "".join(f"{part}\n\n" for part in parts if part) + block(EXAMPLES[name])


def recording_entry() -> str:
    """Return the section on the arguments that several names share."""
    defaults = {field.name: field.default for field in dataclasses.fields(Recording)}
    lines = [f"- `{name}={default!r}`: {RECORDING[name]}\n" for name, default in defaults.items()]
    return f"### Recording\n\n`**recording` stands for\n\n{''.join(lines)}\n"


def block(code: str) -> str:
    """Return an example as a block."""
    return f"```python\n{code}\n```\n\n"


def example(name: str) -> str:
    """Return the example in which a name occurs."""
    group = next(title for title, names in groups().items() if name in names)
    return EXAMPLES.get(name) or EXAMPLES[group]


def is_alias(found: Any) -> bool:
    """Return whether a name is an alias of a type."""
    return not getattr(found, "__module__", "").startswith("mpi_ata")


def explanation(name: str, found: Any) -> str:
    """Return as much of a docstring as the page shows."""
    return docstring(found) if name in EXPLAINED.split() else docstring(found).partition("\n\n")[0]


def docstring(found: Any) -> str:
    """Return a docstring, whose line breaks matter only in lists."""
    paragraphs = (inspect.getdoc(found) or "").split("\n\n")
    return "\n\n".join("\n".join(unwrapped(paragraph)) for paragraph in paragraphs)


def unwrapped(paragraph: str) -> list[str]:
    """Return a paragraph in one line, a list in one line for each item."""
    return [" ".join(part.split()) for part in re.split(r"\n(?=- )", paragraph)]


def called(name: str, found: Any) -> str:
    """Return how a function or class is called, with defaults."""
    node = definition(found)
    arguments = list(fields(node)) if isinstance(node, ast.ClassDef) else list(parameters(node))
    if "__signature__" in vars(found):  # callers write the fields of what the function gets as one object
        [kind, *_] = inspect.get_annotations(inspect.unwrap(found)).values()
        arguments = [each for cls in (kind, *kind.__bases__) for each in fields(definition(cls))]
    for shared, names in SHARED.items():
        if name != "GradientUpdate" and set(names) <= {argument.partition("=")[0] for argument in arguments}:
            arguments = [each for each in arguments if each.partition("=")[0] not in names] + [f"**{shared}"]
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


def members(name: str, found: Any) -> Iterator[str]:
    """Yield a line for each method or property of a class that users need, and one with other names."""
    for key in MEMBERS.get(name, "").split():
        member = getattr(found, key)
        is_property = isinstance(member, property)
        inner: Any = member.fget if is_property else member
        names = [each for each in inspect.signature(inner).parameters if each != "self"]
        arguments = "" if is_property else f"({', '.join(names)})"
        text = " ".join(docstring(inner).split())
        yield f"- `{key}{arguments}`: {text if name in EXPLAINED_MEMBERS else first_sentence(text)}"
    if name in OTHER_MEMBERS:
        yield f"- {', '.join(f'`{key}`' for key in OTHER_MEMBERS[name].split() if getattr(found, key))}"


def first_sentence(text: str) -> str:
    """Return the first sentence of a docstring."""
    return re.split(r"(?<=\.) (?=[A-Z`])", text)[0]


if __name__ == "__main__":
    DOCUMENT.write_text(document())
