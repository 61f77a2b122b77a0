"""A private Slurm of several nodes on this machine, with its own namespaces, network, folders and keys."""

import json
import os
import secrets
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.slurm.head import HEAD, NETWORK, TMP

NEEDED = ("slurmctld", "slurmd", "sbatch", "munged", "ip", "unshare", "nsenter")
ROOT = Path(__file__).parents[2]  # with the package beside these tests
NODES = ["n1", "n2", "n3", "n4", "n5"]
CORES, GPUS = 4, 2  # per node, as far as Slurm knows

CONF = """\
ClusterName=private
SlurmctldHost={head}({address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n/slurmd.log
TmpFS={folder}/%n/tmp
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
AccountingStorageType=accounting_storage/none
MpiDefault=none
SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0,sched_min_interval=0
SlurmctldParameters=preempt_send_user_signal
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
ReturnToService=1
KillWait=10
SlurmdTimeout=15
MinJobAge=3600
GresTypes=gpu
{nodes}
PartitionName=main Nodes=ALL Default=YES State=UP PriorityTier=1 GraceTime=20
PartitionName=high Nodes=ALL State=UP PriorityTier=10 PreemptMode=OFF
"""


def why_not() -> str | None:
    """Return why no private Slurm can be started here, if so."""
    if os.geteuid() != 0:
        return "a private Slurm needs root, for the namespaces of its nodes"
    missing = [name for name in NEEDED if not shutil.which(name, path=paths())]
    if missing:
        return f"missing: {', '.join(missing)}; apt-get install slurmctld slurmd slurm-client munge iproute2"
    done = subprocess.run([*NAMESPACES, "true"], capture_output=True, text=True)
    return f"namespaces are not allowed here: {done.stderr.strip()}" if done.returncode else None


APART = ["--mount", "--uts", "--ipc", "--net", "--pid"]
NAMESPACES = ["unshare", *APART, "--fork", "--kill-child", "--mount-proc"]


def paths() -> str:
    """Return where to look for commands; not every PATH has the daemons."""
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


class PrivateSlurm:
    """A running cluster, with a login node to run commands on."""

    def __init__(self, folder: Path, first: int) -> None:
        self.folder, self._first = folder, first

    def environment(self, **more: str) -> dict[str, str]:
        """Return the environment of commands on the login node."""
        inherited = {name: os.environ[name] for name in ("HOME", "LANG", "USER") if name in os.environ}
        own = {"PATH": paths(), "TMPDIR": TMP, "SLURM_CONF": str(self.folder / "slurm.conf")}
        own["PYTHONPATH"] = str(ROOT)
        return inherited | own | more

    def run(
        self, *command: str | Path, cwd: Path | None = None, seconds: float = 60, **more: str
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command on the login node and wait for it."""
        return subprocess.run(
            [*self.entering(cwd), *map(str, command)],
            env=self.environment(**more),
            capture_output=True,
            text=True,
            timeout=seconds,
        )

    def entering(self, cwd: Path | None = None) -> list[str]:
        """Return the prefix that runs a command on the login node."""
        return ["nsenter", f"--target={self._first}", *APART, "--", "env", f"--chdir={cwd or self.folder}"]

    def ask(self, *command: str | Path, cwd: Path | None = None, seconds: float = 60, **more: str) -> str:
        """Run a command that must succeed, and return what it prints."""
        done = self.run(*command, cwd=cwd, seconds=seconds, **more)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def job(self, job: object) -> dict[str, str]:
        """Return the fields that scontrol prints for a Slurm job."""
        fields = self.ask("scontrol", "-o", "show", "job", str(job)).split()
        return dict(field.split("=", 1) for field in fields if "=" in field)

    def traffic(self) -> int:
        """Return the bytes that all nodes have sent so far."""
        shown = [self.ask("ip", "-netns", node, "-json", "-s", "link", "show", "eth0") for node in NODES]
        return sum(json.loads(text)[0]["stats64"]["tx"]["bytes"] for text in shown)

    def kill_node(self, node: str) -> None:
        """Kill the daemon of a node and everything else that runs on it."""
        started = f"slurmd -D -N {node};"
        (first,) = [pid for pid, line in self.processes().items() if started in line and "unshare" in line]
        self.ask("kill", "-KILL", first)

    def processes(self) -> dict[str, str]:
        """Return the command lines of all processes on this cluster, by process id."""
        lines = self.ask("ps", "-eww", "-o", "pid=,args=").splitlines()
        found = dict(line.strip().split(maxsplit=1) for line in lines)
        return {pid: line for pid, line in found.items() if not line.startswith("ps -eww")}


@contextmanager
def private_slurm(folder: Path, nodes: list[str] = NODES) -> Iterator[PrivateSlurm]:
    """Start a cluster for the duration of the block, and leave nothing behind."""
    prepare(folder, nodes)
    command = [*NAMESPACES, sys.executable, "-m", "tests.slurm.head", str(folder), *nodes]
    environment = os.environ | {"PATH": paths(), "PYTHONPATH": str(ROOT)}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=None, env=environment) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"started\n", "the private Slurm did not start"
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
            cluster = PrivateSlurm(folder, int(children.split()[0]))
            until(lambda: idle(cluster) == len(nodes), 60, lambda: logs(folder))
            yield cluster
        finally:
            process.send_signal(signal.SIGKILL)  # and with it process 1 of the cluster, and everything else


def idle(cluster: PrivateSlurm) -> int:
    """Return the number of idle nodes."""
    listed = cluster.run("sinfo", "--noheader", "--Node", "--partition=main", "--states=idle")
    return listed.stdout.count("\n")


def until(condition: Callable[[], bool], seconds: float, why: Callable[[], str] = str) -> None:
    """Wait until a condition holds; fail after some seconds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"still not true after {seconds} s: {why()}"
        time.sleep(0.25)


def prepare(folder: Path, nodes: list[str]) -> None:
    """Write the folders and files that the daemons need."""
    for name in ["munge", "state", *(f"{node}/{part}" for node in nodes for part in ("spool", "tmp"))]:
        (folder / name).mkdir(parents=True)
    (folder / "munge").chmod(0o700)
    key = folder / "munge" / "key-file"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o600)
    addresses = {name: f"{NETWORK}.{number}" for number, name in enumerate([HEAD, *nodes], 1)}
    hosts = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in addresses.items())]
    (folder / "hosts").write_text("\n".join(hosts) + "\n")
    has = f"CPUs={CORES} RealMemory=1000 Gres=gpu:{GPUS}"
    lines = [f"NodeName={node} NodeHostname={node} NodeAddr={addresses[node]} {has}" for node in nodes]
    conf = CONF.format(folder=folder, head=HEAD, address=addresses[HEAD], nodes="\n".join(lines))
    (folder / "slurm.conf").write_text(conf)
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    gpus = [folder / f"gpu{number}" for number in range(GPUS)]
    for path in gpus:
        os.mknod(path, stat.S_IFCHR, os.makedev(1, 3))  # /dev/null, which Slurm accepts as a GPU
    (folder / "gres.conf").write_text("".join(f"Name=gpu File={path}\n" for path in gpus))


def logs(folder: Path) -> str:
    """Return the end of the log of each daemon."""
    texts: Mapping[Path, str] = {path: path.read_text(errors="replace") for path in folder.rglob("*.log")}
    return "\n".join(f"== {path}\n{text[-500:]}" for path, text in texts.items())
