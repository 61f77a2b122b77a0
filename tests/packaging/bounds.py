"""The dependencies of setup.cfg; python -m tests.packaging.bounds prints each at its lower bound."""

import configparser
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def setup_cfg() -> configparser.ConfigParser:
    """Return setup.cfg, as setuptools reads it."""
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(ROOT / "setup.cfg")
    return parser


def requirements(extra: str = "") -> dict[str, str]:
    """Return the lower bound of each package that the project, or one of its extras, needs."""
    parser = setup_cfg()
    listed = parser["options.extras_require"][extra] if extra else parser["options"]["install_requires"]
    return dict(line.split(">=") for line in listed.split())


def python_bound() -> str:
    """Return the oldest Python that the project is for."""
    return setup_cfg()["options"]["python_requires"].removeprefix(">=")


def main() -> None:
    """Print each package of the project and of the named extras at its lower bound, for pip."""
    found = {
        **requirements(),
        **{name: bound for extra in sys.argv[1:] for name, bound in requirements(extra).items()},
    }
    print(*(f"{name}=={bound}" for name, bound in found.items()))


if __name__ == "__main__":
    main()
