"""Process 1 of a private cluster: gives each node a host name and a network, and starts the daemons.

It runs in namespaces of its own, so nothing that it starts outlives it.  It ends when its standard input is
closed, hence also when the process that started it is killed.
"""

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from benchmarks.namespaces import create_hosts

HEAD, NETWORK = "head", "10.77.0"  # the head has the address 1, the nodes 2, 3, ...
TMP = "/run/tmp"  # one per host: launchers name their files there by host and process id
PRIVATE = ("/dev/shm", TMP)  # noqa: S108


def daemons(folder: Path, nodes: list[str]) -> Iterator[list[str]]:
    """Yield the commands that start munge, the controller, and the daemon of each node."""
    munge = folder / "munge"
    paths = [
        f"--{name}={munge / name}" for name in ("key-file", "socket", "pid-file", "seed-file", "log-file")
    ]
    yield ["munged", "--foreground", "--force", *paths]
    yield ["slurmctld", "-D", "-f", str(folder / "slurm.conf")]
    for node in nodes:
        mounts = "".join(f"mount -t tmpfs -o size=256m tmpfs {path} && " for path in PRIVATE)
        own = f"hostname {node} && {mounts}slurmd -D -N {node}; exit"
        apart = ["unshare", "--uts", "--ipc", "--mount", "--pid", "--mount-proc", "--fork", "--kill-child"]
        yield ["ip", "netns", "exec", node, *apart, "sh", "-c", own]


def main(folder: Path, nodes: list[str]) -> None:
    """Start everything, print that it has started, and reap processes until standard input ends."""
    os.environ["SLURM_CONF"] = str(folder / "slurm.conf")
    subprocess.run(["hostname", HEAD], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)
    os.mkdir(TMP)
    subprocess.run(["mount", "--bind", folder / "hosts", "/etc/hosts"], check=True)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    create_hosts(nodes, NETWORK, "bridge")
    log = (folder / "daemons.log").open("wb")
    for command in daemons(folder, nodes):
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    print("started", flush=True)
    while not select.select([sys.stdin], [], [], 0.2)[0]:
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:  # process 1 inherits all orphans
                pass


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
