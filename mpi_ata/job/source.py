"""A job as it was given: text, changes, and the files it names."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class JobText:
    """A job as it was given: the file, what --set changed, and the files of the user's that it names."""

    text: str
    settings: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)  # text by table
