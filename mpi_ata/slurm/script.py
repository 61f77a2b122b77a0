"""The batch script: text that depends on its inputs alone."""

from dataclasses import dataclass
from pathlib import Path

from mpi_ata.slurm.lead import LEAD, SIGNAL, check_signal
from mpi_ata.slurm.quoting import quote, quote_all, quote_directive
from mpi_ata.slurm.resources import Resources

SHELLCHECK = "# shellcheck disable=SC1003,SC2016  # arguments are literal"


@dataclass(frozen=True)
class Script:
    """Everything that goes into a batch script."""

    name: str
    resources: Resources
    workdir: Path
    log: Path  # without what Slurm appends: the id of the Slurm job, and .out
    command: tuple[str, ...]  # what the script executes at its end
    members: tuple[tuple[str, ...], ...] = ()  # further arguments, for each member of an array
    at_once: int | None = None
    requeue: bool = True
    signal: str = SIGNAL
    lead: int = LEAD
    source: Path | None = None  # a shell file to source first

    def text(self) -> str:
        """Return the text of the script."""
        lines = ["#!/bin/bash", *self._directives(), "", SHELLCHECK]
        lines.append(f"trap '' {check_signal(self.signal)}  # until mpi-ata handles it")
        if self.source is not None:
            lines += ["# shellcheck source=/dev/null", f". {quote(str(self.source))}"]
        if self.members:
            lines += ['case "${SLURM_ARRAY_TASK_ID:?}" in', *self._cases(), "esac"]
        lines.append(f"exec {quote_all(self.command)}" + (' "$@"' if self.members else ""))
        return "\n".join(lines) + "\n"

    def _directives(self) -> list[str]:
        options = [
            f"--job-name={self.name}",
            f"--chdir={self.workdir}",
            f"--output={str(self.log).replace('%', '%%')}-{'%A_%a' if self.members else '%j'}.out",
            "--open-mode=append",
            "--requeue" if self.requeue else "--no-requeue",
            f"--signal=B:{self.signal}@{self.lead}",
        ]
        if self.members:
            limit = f"%{self.at_once}" if self.at_once else ""
            options.append(f"--array=0-{len(self.members) - 1}{limit}")
        return [f"#SBATCH {quote_directive(option)}" for option in [*options, *self.resources.sbatch_args()]]

    def _cases(self) -> list[str]:
        """Return the branches that set the further arguments of each member."""
        cases = [f"  {j}) set -- {quote_all(member)} ;;" for j, member in enumerate(self.members)]
        return [*cases, '  *) echo "no such member: $SLURM_ARRAY_TASK_ID" >&2; exit 2 ;;']
