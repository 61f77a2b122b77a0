"""Several hosts on one machine: network namespaces, connected by links of limited bandwidth.  Needs root.

`with Hosts(5, megabits=100) as hosts: hosts.run(["python", "-m", "benchmarks.network_children", "star"], 5)`
starts ranks on them, one after another, with the MPI of this environment.  With per_host=2, each host but the
first has two ranks.
"""

import os
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from mpi_ata import launch
from mpi_ata.launch.mpirun import fault_tolerance

NETWORK = "10.78.0"
BURST = 32 << 10  # bytes that a link may carry at once
LATENCY = "50ms"  # for which a link may queue what it cannot carry
# A stand-in for ssh: drops options, takes the host, and runs the rest there.
SSH = """#!/bin/sh
while [ "${{1#-}}" != "$1" ]; do shift; done
host=$1; shift
mount='mount --bind {folder}/hosts /etc/hosts'
exec ip netns exec "$host" unshare --uts --mount sh -c "hostname $host; $mount; cd {here}; $*"
"""


class Hosts:
    """Hosts with addresses of their own and links of this many Mbit/s; 0: no limit."""

    def __init__(self, count: int, megabits: float = 0, prefix: str = "node", per_host: int = 1) -> None:
        self.names = [f"{prefix}{number}" for number in range(count)]
        self._slots = [f"{name}:{per_host if number else 1}" for number, name in enumerate(self.names)]
        self._bridge, self._megabits = f"{prefix}bridge", megabits

    def __enter__(self) -> "Hosts":
        """Create them."""
        self._folder = tempfile.TemporaryDirectory(prefix="mpi_ata-hosts-")
        folder = Path(self._folder.name)
        lines = [f"{NETWORK}.{number} {name}" for number, name in enumerate(self.names, 2)]
        (folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))
        (folder / "ssh").write_text(SSH.format(folder=folder, here=shlex.quote(str(Path.cwd()))))
        (folder / "ssh").chmod(0o755)
        self._remove()
        create_hosts(self.names, NETWORK, self._bridge)
        limit = ["root", "tbf", "rate", f"{self._megabits:g}mbit", "burst", str(BURST), "latency", LATENCY]
        for name in self.names if self._megabits else ():
            for where in (["qdisc", "add", "dev", name], ["-netns", name, "qdisc", "add", "dev", "eth0"]):
                command = ["tc", *where, *limit]
                subprocess.run(command, check=True)
        return self

    def run(self, command: Sequence[str], ranks: int, seconds: float = 300) -> str:
        """Run a command on ranks, placed on one host after the other, and return what it prints."""
        environment = dict(os.environ) | {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "eth0"}
        launch.set_mpi_defaults(environment)
        done = subprocess.run(
            [*self._launcher(ranks), *command],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=seconds,
        )
        return done.stdout

    def transmitted(self, number: int) -> int:
        """Return the bytes that went through a host's network card so far, in both directions."""
        return transmitted(self.names[number])

    def _launcher(self, ranks: int) -> list[str]:
        """Return the command that starts ranks on the hosts."""
        mpirun, ssh = launch.find_mpirun(), f"{self._folder.name}/ssh"
        version = subprocess.run([mpirun, "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout
        if "HYDRA" in version.upper():
            hosts = ["-hosts", ",".join(self._slots), "-iface", self._bridge]
            return [mpirun, "-launcher", "ssh", "-launcher-exec", ssh, *hosts, "-n", str(ranks)]
        hosts = ["--host", ",".join(self._slots), "--map-by", "slot"]
        network, prte, mca = f"{NETWORK}.0/24", "--prtemca", "--mca"
        own = [prte, "plm_ssh_agent", ssh, prte, "prte_if_include", network]
        tcp = [mca, "pml", "ob1", mca, "btl", "tcp,self", mca, "btl_tcp_if_include", network]
        return [mpirun, *fault_tolerance(mpirun), *own, *tcp, *hosts, "-n", str(ranks)]

    def _remove(self) -> None:
        """Remove what there is, with the processes on the hosts: they would keep their network alive."""
        for name in self.names:
            command = ["ip", "netns", "pids", name]
            found = subprocess.run(command, capture_output=True, text=True, check=False)
            for process in found.stdout.split():
                with suppress(ProcessLookupError):
                    os.kill(int(process), signal.SIGKILL)
        gone = [["ip", "netns", "delete", name] for name in self.names]
        links = [["ip", "link", "delete", name] for name in (*self.names, self._bridge)]
        for command in [*gone, *links]:
            subprocess.run(command, stderr=subprocess.DEVNULL, check=False)

    def __exit__(self, *_: object) -> None:
        """Remove them, with all their connections."""
        self._remove()
        self._folder.cleanup()


def transmitted(card: str) -> int:
    """Return the bytes that went through a network card so far, in both directions."""
    lines = Path("/proc/self/net/dev").read_text().splitlines()
    counts = [line.split(":")[1].split() for line in lines if line.strip().startswith(f"{card}:")]
    return sum(int(count[0]) + int(count[8]) for count in counts)


def create_hosts(names: Sequence[str], network: str, bridge: str) -> None:
    """Create network namespaces with the addresses 2, 3, ..., connected by a bridge with the address 1."""
    commands = [
        f"link add {bridge} type bridge",
        f"address add {network}.1/24 dev {bridge}",
        f"link set {bridge} up",
    ]
    for number, name in enumerate(names, 2):
        commands += [
            f"netns add {name}",
            f"link add {name} type veth peer name eth0 netns {name}",
            f"link set {name} master {bridge} up",
            f"-netns {name} link set lo up",
            f"-netns {name} address add {network}.{number}/24 dev eth0",
            f"-netns {name} link set eth0 up",
        ]
    for command in commands:
        words = ["ip", *command.split()]
        subprocess.run(words, check=True)
