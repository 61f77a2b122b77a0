"""Builds sdist and wheel; the same files give the same bytes: python -m tests.packaging.distribution dist.

Times come from SOURCE_DATE_EPOCH or else from the last commit.  The sdist is packed again, since setuptools
stores times, users and permissions of the machine it runs on.
"""

import gzip
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def tracked() -> list[str]:
    """Return the files of the repository, as git lists them."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.split("\0") if name]


def epoch() -> int:
    """Return the time that all packed files get."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    command = ["git", "log", "-1", "--format=%ct"]
    return int(given or subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout)


def build(folder: Path) -> list[Path]:
    """Return the sdist and the wheel that are built in a folder, from a copy of the repository's files."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        copy_tracked(Path(name))
        run_setuptools(Path(name), folder)
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    sdist.write_bytes(repacked(sdist, epoch()))
    return [sdist, wheel]


def copy_tracked(folder: Path) -> None:
    """Copy the repository's files, without what else a working folder contains."""
    for name in tracked():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / name).read_bytes())
        target.chmod(0o755 if os.access(ROOT / name, os.X_OK) else 0o644)


def run_setuptools(source: Path, folder: Path) -> None:
    """Run the build of pyproject.toml with the setuptools of this environment."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(source)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch())}
    done = subprocess.run(command, env=environment, umask=0o022, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")


def repacked(sdist: Path, seconds: int) -> bytes:
    """Return an sdist with its files in order, of one time, owned by nobody."""
    packed = io.BytesIO()
    with (
        tarfile.open(sdist) as old,
        gzip.GzipFile(fileobj=packed, mode="wb", filename="", mtime=seconds) as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in sorted(old.getmembers(), key=lambda member: member.name):
            new.addfile(anonymous(member, seconds), old.extractfile(member) if member.isfile() else None)
    return packed.getvalue()


def anonymous(member: tarfile.TarInfo, seconds: int) -> tarfile.TarInfo:
    """Return a member of an archive without traces of who packed it, and when."""
    runs = member.isdir() or member.mode & 0o100
    member.pax_headers = {}  # they hold a time to the nanosecond
    return member.replace(
        mtime=seconds, mode=0o755 if runs else 0o644, uid=0, gid=0, uname="", gname="", deep=False
    )


def main() -> None:
    """Build into the named folder, and print names, sizes and hashes."""
    folder = Path(sys.argv[1])
    for old in [*folder.glob("*.tar.gz"), *folder.glob("*.whl")]:
        old.unlink()
    for path in build(folder):
        content = path.read_bytes()
        print(f"{path}  {len(content):,} bytes  sha256 {hashlib.sha256(content).hexdigest()}")


if __name__ == "__main__":
    main()
