"""The table [stop]: when a run is finished."""

from dataclasses import dataclass, fields
from typing import Protocol


class Totals(Protocol):
    """The totals of a run that limits are about."""

    @property
    def round(self) -> int: ...
    @property
    def clock(self) -> float: ...
    @property
    def elapsed(self) -> float: ...
    @property
    def loss(self) -> float: ...
    @property
    def gap(self) -> float: ...


@dataclass(frozen=True)
class Stop:
    """When a run is finished: at whichever limit is reached first, never if there is none."""

    rounds: int | None = None
    gap: float | None = None
    loss: float | None = None
    clock: float | None = None
    elapsed: float | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and field.name != "loss" and not value > 0:
                raise ValueError(f"{field.name}={value} must be above 0")

    @property
    def needs_loss(self) -> bool:
        """Return whether a limit depends on the loss."""
        return self.gap is not None or self.loss is not None

    def reached(self, trace: Totals) -> str | None:
        """Return the limit that the run has reached, in words; None while there is none."""
        if self.gap is not None and trace.gap < self.gap:
            return f"gap {trace.gap:.3g} < {self.gap:g}"
        if self.loss is not None and trace.loss < self.loss:
            return f"loss {trace.loss:.6g} < {self.loss:g}"
        if self.rounds is not None and trace.round >= self.rounds:
            return f"{trace.round:,} rounds"
        if self.clock is not None and trace.clock >= self.clock:
            return f"clock {trace.clock:.6g} s"
        if self.elapsed is not None and trace.elapsed >= self.elapsed:
            return f"elapsed {trace.elapsed:.6g} s"
        return None
