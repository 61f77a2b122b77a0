"""Optional abilities of what users write: problems, allocators, methods and clusters need none of them.

Each kind has a NamedTuple of its abilities, with the default for those who do not have one.
"""

from typing import Any, TypeVar

Abilities = TypeVar("Abilities", bound=tuple[Any, ...])


def declared(kind: type[Abilities], thing: object) -> Abilities:
    """Return the abilities that an object declares by attributes of their names, or else the defaults."""
    defaults: dict[str, Any] = kind._field_defaults  # type: ignore[attr-defined]  # of a NamedTuple
    return kind(*[getattr(thing, name, default) for name, default in defaults.items()])
