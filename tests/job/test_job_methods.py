"""Methods and updates in job files: what goes together, and what is refused with the reason."""

import json
import re
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from mpi_ata import FaultPolicy
from mpi_ata.driver.execute import execute
from mpi_ata.driver.plan import Plan
from mpi_ata.job import load_job
from mpi_ata.job.build import fault_policy
from mpi_ata.job.component import ALLOCATORS, METHODS, UPDATES
from tests.driver.driven import driven
from tests.job.test_job import Change, built, refusal, written

KEYS: dict[str, Change] = {
    "malenia": {"allocator": None, "method.S": "6"},
    "ringmaster": {"allocator": None, "method.delay": "4", "method.budget": "5"},
    "ringleader": {"allocator": None},
    "rescaled-asgd": {"allocator": None, "method.budget": "5"},
}
ASYNCHRONOUS = ("asgd", "heterogeneous-data-asgd", "ringmaster", "ringleader", "rescaled-asgd")
SURPLUS = ("gta", "m-sync")  # order more than a round uses
SENSIBLE = [
    (method, allocator)
    for method in METHODS
    if method != "map"  # which needs other problems: tests/job/test_map_jobs.py
    for allocator in ([""] if method in KEYS else ALLOCATORS)
    if method not in ("heterogeneous-data-sgd", "heterogeneous-data-asgd", "asgd") or allocator not in SURPLUS
]
OWN = """
import numpy as np
from mpi_ata import GradientUpdate

class Sign(GradientUpdate):
    def __init__(self, step_size: float, power: float = 1.0) -> None:
        super().__init__(step_size)
        self.power = power

    def direction(self, x, g):
        return np.sign(g) * abs(g) ** self.power
"""
SIGN: Change = {"method.update": None, "method.update_file": '"sign.py"', "method.update_class": '"Sign"'}


def job_of(folder: Path, method: str, allocator: str, change: Change | None = None) -> Path:
    """The good job under another method and allocator."""
    changes: Change = {"method.name": f'"{method}"', "method.step_size": "0.1"}
    changes |= KEYS.get(method, {}) | ({"method.a": "0.3"} if method == "rennala-mvr" else {})
    if allocator:
        changes["allocator.name"] = f'"{allocator}"'
        changes["allocator.alpha"] = "20.0" if allocator == "ata" else None
        changes["allocator.eta"] = "1.0" if allocator == "ata-empirical" else None
    return written(folder, changes | (change or {}))


@pytest.mark.parametrize(("method", "allocator"), SENSIBLE)
def test_every_method_runs_with_every_allocator_that_makes_sense(
    tmp_path: Path, method: str, allocator: str
) -> None:
    outcome = driven(job_of(tmp_path, method, allocator))
    figures = outcome.summary()
    assert (figures["rounds"], figures["finished"]) == (3, True)
    assert figures["tasks_used"] >= 3 * 5
    if method != "mindflayer":  # whether it stops a task depends on the times
        # At its end a run stops what is under way.
        assert (figures["tasks_wasted"] > 0) == (allocator in ("", *SURPLUS))
    assert (figures["mean_delay"] is None) == (method not in ASYNCHRONOUS)


@pytest.mark.parametrize("update", UPDATES)
def test_every_update_is_chosen_by_name_and_its_keys_are_those_of_the_method_s_table(
    tmp_path: Path, update: str
) -> None:
    keys: Change = {"method.update": f'"{update}"', "method.schedule": '"cosine"', "method.period": "50"}
    made: Any = built(load_job(job_of(tmp_path, "ringmaster", "", keys))).update  # type: ignore[attr-defined]
    assert (type(made), made.schedule, made.period) == (UPDATES[update], "cosine", 50)


@pytest.mark.parametrize(
    ("change", "fragment"),
    [
        ({"method.update": '"adam"', "method.beta": "0.9"}, "unknown key 'beta' in [method]; valid keys: "),
        ({"method.schedule": '"cosine"'}, "[method] period=0 must be above warmup=0"),
        ({"method.period": "9"}, "period and final_step_size are for schedule = 'cosine'"),
        ({"method.warmup": "1.5"}, "warmup = 1.5 in [method] must be a whole number"),
        ({"method.update": '"torch"'}, "plain, momentum, nesterov, adam, lmo, torch.<class of torch.optim>"),
        ({"method.update_file": '"sign.py"'}, "[method] needs both 'update_file' and 'update_class'"),
        (
            {"method.update_file": '"sign.py"', "method.update_class": '"Sign"'},
            "[method] has both 'update' and 'update_file'; keep one of them",
        ),
        (SIGN | {"method.update_class": '"Sine"'}, "no class 'Sine' in"),
        (SIGN | {"method.beta": "0.5"}, "unknown key 'beta' in [method]"),
    ],
)
def test_keys_that_make_no_sense_are_refused(tmp_path: Path, change: Change, fragment: str) -> None:
    (tmp_path / "sign.py").write_text(OWN)
    assert fragment in refusal(written(tmp_path, change))


def test_an_update_of_ones_own_is_named_by_file_and_class(tmp_path: Path) -> None:
    (tmp_path / "sign.py").write_text(OWN)
    path = written(tmp_path, SIGN | {"method.power": "0.5"})
    job = load_job(path)
    method: Any = built(job)
    assert (type(method.update).__name__, method.update.power, method.update.step_size) == ("Sign", 0.5, 0.4)
    assert execute(Plan(job)).reason is not None
    (tmp_path / "sign.py").write_text(OWN + "\n")
    assert load_job(path).digest != job.digest, "all ranks must have the same file"


def test_naming_an_update_in_one_way_takes_the_other_way_s_place(tmp_path: Path) -> None:
    (tmp_path / "sign.py").write_text(OWN)
    by_name: Any = built(load_job(written(tmp_path, SIGN), ["method.update=adam"]))
    assert type(by_name.update).__name__ == "Adam"
    settings = ["method.update_file=sign.py", "method.update_class=Sign"]
    by_file: Any = built(load_job(written(tmp_path, {}), settings))
    assert type(by_file.update).__name__ == "Sign"


@pytest.mark.parametrize("allocator", SURPLUS)
@pytest.mark.parametrize(
    ("method", "instead"),
    [
        ("heterogeneous-data-sgd", "malenia"),
        ("asgd", "ringmaster"),
        ("heterogeneous-data-asgd", "rescaled-asgd"),
    ],
)
def test_greedy_allocation_is_refused_where_everything_ordered_is_used(
    tmp_path: Path, method: str, instead: str, allocator: str
) -> None:
    told = refusal(job_of(tmp_path, method, allocator))
    assert f"{allocator} lets everyone work and drops surplus results" in told
    assert f"or {instead}, the greedy method" in told


@pytest.mark.parametrize("key", ["on_task_error", "on_bad_result"])
def test_nothing_is_reissued_where_workers_own_their_data(tmp_path: Path, key: str) -> None:
    told = refusal(job_of(tmp_path, "malenia", "", {f"faults.{key}": '"reissue"'}))
    assert "each worker owns its data" in told
    job = load_job(job_of(tmp_path, "malenia", ""))
    assert fault_policy(job, built(job)) == FaultPolicy(owned=True), "owners are only warned about"


@pytest.mark.parametrize(
    ("method", "key"),
    [("malenia", "S"), ("ringmaster", "delay"), ("ringmaster", "budget"), ("rescaled-asgd", "budget")],
)
def test_a_greedy_method_needs_its_keys_and_no_allocator(tmp_path: Path, method: str, key: str) -> None:
    assert f"needs the key '{key}'" in refusal(job_of(tmp_path, method, "", {f"method.{key}": None}))
    change: Change = {key: value for key, value in KEYS[method].items() if key != "allocator"}
    told = refusal(written(tmp_path, change | {"method.name": f'"{method}"'}))
    assert "decides on its own who works: remove the table [allocator]" in told


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
def test_an_optimizer_of_torch_is_named_with_its_keys(tmp_path: Path) -> None:
    adamw: Change = {"method.update": '"torch.AdamW"', "method.betas": "[0.8, 0.9]", "method.warmup": "2"}
    job = load_job(written(tmp_path, adamw))
    assert execute(Plan(job)).reason is not None
    assert "'beta'" in refusal(written(tmp_path, adamw | {"method.beta": "0.5"}))


@pytest.mark.skipif(find_spec("torch") is not None, reason="PyTorch is installed")
def test_an_optimizer_of_torch_without_torch_is_refused(tmp_path: Path) -> None:
    told = refusal(written(tmp_path, {"method.update": '"torch.AdamW"'}))
    assert "PyTorch is missing; install it with pip install" in told


def test_a_task_of_two_gradients_takes_twice_the_drawn_time(tmp_path: Path) -> None:
    once, twice = (driven(job_of(tmp_path, method, "uta")).summary() for method in ("sgd", "rennala-mvr"))
    assert twice["clock"] == pytest.approx(2 * once["clock"])
    assert twice["worker_time"] == pytest.approx(2 * once["worker_time"])


DOCS = (Path(__file__).parents[2] / "docs" / "methods.md").read_text()


def test_the_update_in_the_documents_works_as_it_stands_there(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", DOCS.partition("## Tasks that")[0], re.DOTALL)
    (tmp_path / "my_update.py").write_text(code)
    tables = [tomllib.loads(text)["method"] for text in re.findall(r"```toml\n(.*?)```", DOCS, re.DOTALL)]
    for table in tables:
        change: Change = {"method": None}
        change |= {f"method.{key}": json.dumps(value) for key, value in table.items()}
        assert driven(written(tmp_path, change)).reason is not None
    assert [table.get("update_class") for table in tables] == [None, "Lion"]


def test_the_documents_list_every_method_and_every_update_and_no_other() -> None:
    methods, updates = (
        [name.split(".")[0] for name in re.findall(r"(?m)^\| `([^`]+)`", part)[1:]]
        for part in DOCS.split("## Updates")
    )
    assert methods == list(METHODS)
    assert updates == [*UPDATES, "torch"]
