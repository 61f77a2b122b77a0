"""Prior knowledge: what the bandit learned is saved in run files, and runs start from it."""

from pathlib import Path

import pytest

from mpi_ata.paper import figures
from mpi_ata.paper.bandit import play_bandit
from mpi_ata.paper.experiments import PRIOR, PaperRequest
from mpi_ata.paper.pretrained import pretrain, pretraining_file, pretraining_trial, warm_start_plan
from mpi_ata.paper.trials import execute_trial
from mpi_ata.runfile.load import load_record
from mpi_ata.runfile.store import RunFile
from tests.paper.called import called, records, rejected


def ignore(rounds: int) -> None:
    """Ignore the progress."""


@pytest.mark.parametrize("name", ["ata", "ata-half", "ata-empirical"])
@pytest.mark.parametrize("law", ["linear", "mix"])
def test_a_run_starts_from_exactly_what_the_bandit_learned(tmp_path: Path, name: str, law: str) -> None:
    request = PaperRequest(workers=(6,), law=law, allocators=(name,), rounds=1, out=tmp_path)
    trial = PRIOR.with_request(request).trials()[-1]
    assert pretraining_trial(trial, 90).job().run.seed != trial.job().run.seed, "other times are drawn"
    pretrain(pretraining_trial(trial, 90), ignore, marks=[40, 90])
    execute_trial(warm_start_plan(trial, 90), ignore)
    (*_, learned) = play_bandit(pretraining_trial(trial, 90).job(), [40, 90])
    first, last = (load_record(RunFile(pretraining_file(trial, rounds)))[0] for rounds in (40, 90))
    assert (int(first.allocator["k"]), int(last.allocator["k"])) == (40, 90)
    assert last.allocator["T"].tolist() == learned.allocator.T.tolist()
    assert last.workers["least"].tolist() == learned.stats["least"].tolist()
    started = load_record(RunFile(tmp_path / f"after-90-{law}-n6-B23-{name}-seed1.h5"))[0]
    own = started.workers
    assert int(started.allocator["k"]) == 91
    assert started.allocator["K"].tolist() == (learned.allocator.K + own["tasks"]).tolist()
    assert started.allocator["T"] == pytest.approx(learned.allocator.T + own["seconds"], rel=1e-12)
    assert [event.kind for event in started.events] == ["started", "warm-started", "ended"]


@pytest.mark.slow
def test_many_prior_rounds_bring_learners_close_to_the_oracle(tmp_path: Path) -> None:
    arguments = ["--workers", "8", "--rounds", "150", "--prior", "0,30000", "--out", str(tmp_path)]
    found = records("prior", *arguments)
    oracle = next(r["runtime_ratio"] for r in found if r["allocator"] == "ofta")
    for name in ("ata-half", "ata-empirical"):
        ratios = [(r["prior"], r["runtime_ratio"]) for r in found if r["allocator"] == name]
        assert [prior for prior, _ in ratios] == [0, 30_000]
        assert ratios[1][1] < ratios[0][1]
        # Both draw the same times, so only decisions differ; those of the oracle do not quite minimise
        # the expected length of a round, which is why the difference may have either sign.
        assert ratios[-1][1] == pytest.approx(oracle, rel=0.1)
    assert len([r for r in found if r["allocator"] == "gta"]) == 1
    if figures.available():
        assert (tmp_path / "prior.png").read_bytes().startswith(b"\x89PNG")


def test_without_a_folder_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    few = ["--workers", "3", "--rounds", "5", "--prior", "20"]
    done = called("prior", *few, "--allocators", "ata-empirical")
    assert done.exit_code == 0, done.output
    assert [line.split()[:3] for line in done.stdout.splitlines()[4:6]] == [
        ["gta", "3", "-"],
        ["ata-empirical", "3", "20"],
    ]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--allocators", "ofta"], "none of these allocators learns; choose some of ata,"),
        (["--prior", "-5"], "is not a list of whole numbers from 0 on"),
    ],
)
def test_invalid_options_are_rejected(arguments: list[str], sentence: str) -> None:
    rejected(sentence, "prior", *arguments)
