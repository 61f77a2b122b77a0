"""What benchmarks share: their options, ranks, and the best of several repeats."""

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mpi_ata.launch import find_mpirun, run_command, set_mpi_defaults

ROOT = Path(__file__).resolve().parent.parent


def best(action: Callable[[], object], seconds: float = 0.3) -> float:
    """Return the seconds of the fastest call, of as many as fit into the given time, at least three."""
    fastest, calls, end = math.inf, 0, time.perf_counter() + seconds
    while calls < 3 or time.perf_counter() < end:
        began = time.perf_counter()
        action()
        fastest = min(fastest, time.perf_counter() - began)
        calls += 1
    return fastest


def options(doc: str | None, *positional: str, **defaults: Any) -> argparse.Namespace:
    """Return what the command line says; each option has the type of its default, and may be positional."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in defaults.items():
        if default == []:
            parser.add_argument(name, nargs="*")
        elif name in positional:
            parser.add_argument(name, nargs="?", type=type(default), default=default)
        elif default is False:
            parser.add_argument(f"--{name}", action="store_true")
        else:
            parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    return parser.parse_args()


def on_ranks(ranks: int, module: str, *words: object, timeout: float = 3600, **arguments: object) -> str:
    """Run a module of this folder on ranks and return what it prints; "", with a note, if it fails."""
    set_mpi_defaults(os.environ)
    paths = dict.fromkeys([str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    given = [*words, *(f"--{name}={value}" for name, value in arguments.items())]
    python = [sys.executable, "-m", *(["mpi4py.futures", "-m"] if "futures" in words else []), module]
    result = run_command([find_mpirun(), "-n", str(ranks), *python, *map(str, given)], timeout)
    if result.code != 0:
        print(f"{module} {' '.join(map(str, given))}: {result.gist()}", file=sys.stderr)
    return result.out if result.code == 0 else ""


def measured(ranks: int, module: str, *words: object, timeout: float = 3600, **arguments: object) -> Any:
    """Return the JSON that a module of this folder prints on its last line, on ranks; {} if it fails."""
    lines = on_ranks(ranks, module, *words, timeout=timeout, **arguments).splitlines()
    return json.loads(lines[-1]) if lines else {}
