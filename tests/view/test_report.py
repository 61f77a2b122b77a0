"""The report: what it says, that nothing in it is taken for markup, and how it behaves in a browser."""

import html
import json
import re
import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpi_ata.clusters import WorkerIdentity
from mpi_ata.runfile.load import load_record
from mpi_ata.runfile.schema import Event, Record, to_tree
from mpi_ata.runfile.store import RunFile
from mpi_ata.view.report import commands, run_summary, served_jobs
from tests.cli.commands import JOB, call, use_metrics
from tests.marks import slow

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
EVIL = "</script><img src=x onerror=alert(1)>"

# Appended to a page in tests: uses it as a person would, and writes down what it then shows.
VISIT = """
<script>
const shown = (selector) => document.querySelectorAll(selector).length;
const table = () => document.querySelector("#workers table");
const column = (i) => [...table().tBodies[0].rows].map((row) => row.cells[i].textContent);
const found = { curves: shown("path.curve"), images: shown("#workers image"), tables: shown("table") };
const tasks = table().tHead.rows[0].cells[3];
found.before = column(3);
tasks.click();
found.ascending = column(3);
tasks.click();
found.descending = column(3);
const svg = document.querySelector("#curves svg"), area = svg.getBoundingClientRect();
const middle = { clientX: area.left + area.width / 2, clientY: area.top + 20 };
svg.dispatchEvent(new PointerEvent("pointermove", middle));
found.tip = document.querySelector("#curves .tip").textContent;
document.querySelector("#runs button").click();
found.toggled = shown("path.curve");
found.wider = document.documentElement.scrollWidth > window.innerWidth;
found.errors = window.errors;
found.refused = window.refused;
found.loaded = performance.getEntriesByType("resource").map((each) => each.name);
const answer = { id: "found", textContent: JSON.stringify(found) };
document.body.replaceChildren(Object.assign(document.createElement("pre"), answer));
</script>
"""
WATCH = """
<script>
window.errors = [];
window.refused = [];
window.onerror = (text) => { errors.push(text); };
document.addEventListener("securitypolicyviolation", (event) => { refused.push(event.blockedURI); });
</script>
"""


def run_job(out: str, *options: str) -> Record:
    Path("job.toml").write_text(JOB + f"# {EVIL}\n")
    result = call("run", "job.toml", "--virtual", "--out", out, *options)
    assert result.exit_code == 0, result.stderr
    return load_record(RunFile(Path(out)))[0]


def run_jobs(out: str, *options: str) -> None:
    Path("job.toml").write_text(JOB)
    result = call("run", "job.toml", "--virtual", "--out", out, *options)
    assert result.exit_code == 0, result.stderr


def report(*runs: str) -> str:
    result = call("report", *runs, "-o", "x.html")
    assert (result.exit_code, result.stdout) == (0, "wrote x.html\n"), result.stderr
    return Path("x.html").read_text()


def data_of(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*)</script>', page)
    assert found
    data: dict[str, Any] = json.loads(found[1])
    return data


def test_a_report_has_the_curves_workers_events_and_jobs_of_all_runs() -> None:
    run_job("a.h5")
    run_job("b.h5", "--set", "allocator.name=gta")
    data = data_of(report("a.h5", "b.h5"))
    assert [run["name"] for run in data["runs"]] == ["a", "b"]
    assert {panel["x"] for panel in data["panels"]} == {"clock [s]", "worker time [s]", "round"}
    for run in data["runs"]:
        assert len(run["table"]["rows"]) == 5
        assert sum(row[3] for row in run["table"]["rows"]) == 350
        assert [event[2] for event in run["events"]["rows"]] == ["started", "ended"]
        assert run["job"].startswith(JOB.strip())


def test_of_many_changes_of_speed_a_report_has_the_last_and_of_a_failed_run_the_reason() -> None:
    run_job("a.h5")
    record, _ = load_record(file := RunFile(Path("a.h5")))
    for number in range(3):
        record.event(float(number), "changed-speed", f"change {number}", worker=1)
    record.reason, record.failure = "", "the disk is full"
    file.save(*to_tree(record))
    (run,) = data_of(report("a.h5"))["runs"]
    assert [event[3] for event in run["events"]["rows"] if event[2] == "changed-speed"] == [
        "change 2; 2 earlier changes of speed in the file"
    ]
    assert next(run_summary(record)).startswith("The run has failed (the disk is full): 50 rounds in ")


def test_runs_that_shared_workers_have_a_map_of_whom_each_served_when() -> None:
    run_job("alone.h5")
    run_jobs("shared", "--array", "run.seed=1,2,3", "--set", "stop.rounds=200")
    served = data_of(report(*(f"shared/job-seed={seed}.h5" for seed in (1, 2, 3))))["served"]
    assert [*map(len, served["values"])] == [60] * 5
    assert len(served["edges"]) == 61
    assert {run for row in served["values"] for run in row} - {None} == {0, 1, 2}
    assert (
        data_of(report("alone.h5", "shared/job-seed=1.h5"))["served"]["values"] == []
    )  # not at the same time
    assert data_of(report("alone.h5"))["served"]["values"] == []


def test_the_map_shows_the_run_for_which_a_worker_did_most() -> None:
    identities = (WorkerIdentity("a", 0, "x"), WorkerIdentity("a", 1, "x"))
    records: list[Record] = []
    for began, tasks in ((100.0, [[8, 0], [8, 0]]), (100.0, [[0, 2], [4, 2]])):
        record = replace(run_job(f"{len(records)}.h5"), identities=identities)
        record.events = [Event(began, -1, "started", "")]
        record.trace = {"round": np.array([0, 10]), "elapsed": np.array([1.0, 11.0])}
        record.task_map = {"round": np.array([5, 10]), "clock": np.ones(2), "tasks": np.array(tasks)}
        records.append(record)
    first, second = served_jobs(records)["values"]
    assert (first[:30], first[30:]) == ([0.0] * 30, [1.0] * 30)
    assert (second[:30], second[30:]) == ([1.0] * 30, [None] * 30)


def test_a_report_has_the_curves_and_the_last_values_of_metrics() -> None:
    use_metrics("job.toml", "accuracy", "<b>")
    assert call("run", "job.toml", "--virtual", "--out", "a.h5").exit_code == 0
    page = report("a.h5")
    panels = {panel["y"]: panel for panel in data_of(page)["panels"]}
    assert panels["accuracy"]["x"] == "clock [s]"
    assert len(panels["accuracy"]["curves"][0]["y"]) == 6
    assert "<li>Evaluated last: &lt;b&gt; 1 and accuracy 1.</li>" in page
    assert "<b>" not in page


def test_names_and_texts_from_files_are_escaped() -> None:
    run_job("<b>&.h5")
    page = report("<b>&.h5")
    assert EVIL not in page
    assert "<b>" not in page
    assert page.count("&lt;b&gt;&amp;") == 3  # in the two titles and above the summary
    assert EVIL in data_of(page)["runs"][0]["job"]


def test_a_page_may_load_nothing_from_anywhere_and_a_run_may_have_just_started() -> None:
    run_job("a.h5", "--set", "stop.gap=1")
    page = report("a.h5")
    assert data_of(page)["runs"][0]["means"] == [None] * 5
    assert "default-src 'none'" in page
    addresses = set(re.findall(r"https?://[^\s\"'<>]+", page))
    assert addresses == {"http://www.w3.org/2000/svg"}  # a name, not an address that is visited
    assert not re.search(r"<(link|img|iframe|object)\b|\bsrc=", page.split('id="data"')[0])


def test_a_run_on_hosts_says_where_billed_time_went_and_what_to_request() -> None:
    record = run_job("a.h5", "--workers", "12", "--set", "allocator.eta=0.05", "--set", "stop.rounds=400")
    record.identities = tuple(WorkerIdentity(f"n{i % 3}", i // 3, "cpu", 4) for i in range(12))
    record.summary |= {"billed": 13 * 7200.0, "elapsed": 7200.0, "clock": 6000.0, "worker_time": 36000.0}
    record.summary |= {"setup_time": 720.0, "decision_time": 0.0, "update_time": 360.0}
    record.summary |= {"evaluation_time": 72.0, "saving_time": 7.2}
    sentences = list(run_summary(record))
    shares = "set-up 10.0 %, rounds 83.3 %, update 5.0 %, evaluation 1.0 %, saving 0.1 %"
    assert f"Of 2 h 00 min elapsed: {shares}, other 0.6 %." in sentences
    billed = next(sentence for sentence in sentences if "billed" in sentence)
    assert billed.startswith("Of 26 h 00 min of billed core time, 38.5 % was spent on tasks; 38.5 % by ")
    idle = next(sentence for sentence in sentences if "not worth requesting" in sentence)
    used = 12 - len(re.findall(r"\b\d+\b(?=,| and| did)", idle))
    assert 1 < used < 12
    submit, sbatch = (command for _, command in commands(record, Path("a.h5")))
    assert submit == f"mpi-ata submit JOB.toml --ntasks {used + 1} --time 03:00:00 --warm-start a.h5"
    assert sbatch == f"sbatch --ntasks={used + 1} --time=03:00:00 SCRIPT.sh"


def test_suggested_commands_are_quoted_whatever_a_run_file_calls_its_hosts() -> None:
    record = run_job("a.h5")
    hosts = ["n1", *4 * ["$(touch owned)"]]
    record.identities = tuple(WorkerIdentity(host, i, "cpu", 5) for i, host in enumerate(hosts))
    for _ in range(2):
        record.event(0.0, "lost", "its process has ended", worker=1)
    submit, sbatch = (shlex.split(command) for _, command in commands(record, Path("my runs/it's.h5")))
    assert submit[-4:] == ["--warm-start", "my runs/it's.h5", "--exclude-slow", "my runs/it's.h5"]
    assert sbatch[-2:] == ["--exclude=$(touch owned)", "SCRIPT.sh"]
    record.identities = tuple(each._replace(host="$(touch owned)") for each in record.identities)
    assert not any("exclude" in command for _, command in commands(record, Path("a.h5"))), "no host is left"


def test_hosts_that_became_slower_than_in_earlier_runs_are_named() -> None:
    record = run_job("a.h5", "--set", "allocator.name=uta", "--set", "stop.rounds=100")
    record.identities = tuple(WorkerIdentity(f"n{i}", 0, "cpu", 1) for i in range(5))
    record.prior = [record.source]
    record.workers = record.workers | {"seconds": record.workers["seconds"] * [1, 1, 2, 1, 1]}
    (sentence,) = [sentence for sentence in run_summary(record) if "earlier" in sentence]
    assert sentence == "Tasks on host n2 took 2.0 times as long as in earlier runs."


@pytest.mark.parametrize("name", ["x.pdf", "no/x.html"])
def test_a_report_that_cannot_be_written_is_rejected(name: str) -> None:
    result = call("report", "a.h5", "-o", name)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"Error: -o {name}: ")


def visit(page: str, width: int) -> dict[str, Any]:
    """Return what a browser shows of a page, and what it loaded or tried to load for it."""
    assert CHROMIUM is not None
    head, tail = page.split("<title>", 1)
    Path("visited.html").write_text(head + WATCH + "<title>" + tail.replace("</body>", VISIT + "</body>"))
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", f"--window-size={width},900"]
    options += [f"--user-data-dir={Path('profile').absolute()}", "--virtual-time-budget=3000", "--dump-dom"]
    command = [CHROMIUM, *options, Path("visited.html").absolute().as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    answer = re.search(r'<pre id="found">(.*)</pre>', done.stdout)
    assert answer, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(html.unescape(answer[1]))
    return found


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")
@pytest.mark.parametrize("width", [1300, *slow(500)])
def test_in_a_browser_it_draws_sorts_and_toggles_without_errors_and_asks_for_nothing(width: int) -> None:
    run_job("<b>&.h5")
    run_job("b.h5", "--set", "allocator.name=gta")
    found = visit(report("<b>&.h5", "b.h5"), width)
    assert (found["errors"], found["loaded"], found["refused"]) == ([], [], [])
    assert (found["curves"], found["images"], found["tables"]) == (7, 4, 4)  # gta has no regret
    tasks = [int(cell) for cell in found["before"]]
    assert [int(cell) for cell in found["ascending"]] == sorted(tasks)
    assert [int(cell) for cell in found["descending"]] == sorted(tasks, reverse=True)
    assert re.match(r"<b>&: \S+ at \S+\nb: \S+ at \S+$", found["tip"])
    assert found["toggled"] == 3
    assert not found["wider"]


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")
def test_a_browser_refuses_what_a_page_would_load_from_elsewhere() -> None:
    run_job("a.h5")
    page = report("a.h5").replace("<h1>", '<img src="https://example.org/x.png"><h1>')
    assert visit(page, 1300)["refused"] == ["https://example.org/x.png"]
