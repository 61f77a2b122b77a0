"""How a gradient moves the point.

For a point of ten million numbers the cost is that of passing through memory: so it is done once, in blocks
that stay in the cache until they are finished.
"""

import math
from typing import ClassVar, Protocol

import numpy as np

from mpi_ata.arrays import LARGE, Array, State, blocks, entry
from mpi_ata.errors import require

__all__ = ["LMO", "Adam", "GradientUpdate", "Momentum", "Nesterov", "Plain", "Update"]


class Update(Protocol):
    """Turns a point and a gradient into the next point."""

    def __call__(self, x: Array, g: Array) -> Array:
        """Return the next point, in an array of its own; g may be overwritten."""

    def state(self) -> State:
        """Return what it remembers of the steps so far."""

    def restore(self, state: State) -> None:
        """Resume from what `state` returned."""


class GradientUpdate:
    """x - gamma_t times a direction, for t = 1, 2, ...: the base of all updates, a user's own included.

    The step size gamma_t grows linearly to `step_size` over `warmup` steps and then stays there.  With
    schedule = "cosine" it then falls along half a cosine to `final_step_size`, which it reaches after
    `period` steps, warm-up included, and stays there.
    """

    memory: ClassVar[tuple[str, ...]] = ()  # names of the arrays it remembers, each like x
    whole: ClassVar[bool] = False  # whether direction() needs all of a large x and g at once

    def __init__(
        self,
        step_size: float,
        schedule: str = "constant",
        warmup: int = 0,
        period: int = 0,
        final_step_size: float = 0.0,
    ) -> None:
        require(step_size > 0, f"{step_size=} must be above 0")
        require(schedule in ("constant", "cosine"), f"{schedule=} must be 'constant' or 'cosine'")
        require(warmup >= 0, f"{warmup=} must be at least 0 steps")
        if schedule == "cosine":
            require(period > warmup, f"{period=} must be above {warmup=}: the steps of the cosine schedule")
            rule = f"{final_step_size=} must be at least 0 and below {step_size=}"
            require(0 <= final_step_size < step_size, rule)
        else:
            require(
                not period and not final_step_size, "period and final_step_size are for schedule = 'cosine'"
            )
        self.step_size, self.final_step_size = step_size, final_step_size
        self.schedule, self.warmup, self.period = schedule, warmup, period
        self.t = 0  # steps done
        self._arrays: State = {}
        self._parts: State = {}  # of those, while a direction is computed block by block

    def gamma(self, t: int) -> float:
        """Return the size of step t."""
        if t <= self.warmup:
            return self.step_size * t / self.warmup
        if self.schedule == "constant":
            return self.step_size
        done = min((t - 1 - self.warmup) / (self.period - self.warmup), 1.0)
        fall = self.step_size - self.final_step_size
        return self.final_step_size + fall * (1 + math.cos(math.pi * done)) / 2

    def __call__(self, x: Array, g: Array) -> Array:
        """Return the next point, computed in the memory of g."""
        self.t += 1
        gamma = self.gamma(self.t)
        users_own = type(self).direction.__module__ != __name__  # it may need the whole gradient
        if x.size < LARGE or users_own or self.whole:
            self._step(x, g, gamma)
            return g
        memory = [self.remembered(name, x) for name in self.memory]
        for x_part, g_part, *parts in blocks(x, g, *memory):
            self._parts = dict(zip(self.memory, parts, strict=True))
            self._step(x_part, g_part, gamma)
        self._parts = {}
        return g

    def _step(self, x: Array, g: Array, gamma: float) -> None:
        np.multiply(self.direction(x, g), -gamma, out=g)
        g += x

    def direction(self, x: Array, g: Array) -> Array:
        """Return what is subtracted, up to the step size; g may be overwritten and returned."""
        return g

    def remembered(self, name: str, x: Array) -> Array:
        """Return the array of this name in `memory`, zeros at first; it may be changed in place."""
        if name in self._parts:
            return self._parts[name]
        if name not in self._arrays:
            self._arrays[name] = np.zeros_like(x)
        array: Array = self._arrays[name]
        if array.shape != x.shape or array.dtype != x.dtype:
            raise ValueError(f"{name!r} has shape {array.shape} and {array.dtype}, x {x.shape} and {x.dtype}")
        return array

    def state(self) -> State:
        """Return the number of steps and the remembered arrays."""
        return {"t": np.array(self.t)} | {name: array.copy() for name, array in self._arrays.items()}

    def restore(self, state: State) -> None:
        """Resume from an earlier state."""
        t = int(entry(state, "t", self.t))
        arrays = {name: np.array(array) for name, array in state.items() if name != "t"}
        wanted = self.memory if t else ()
        if set(arrays) != set(wanted):
            names = [", ".join(sorted(each)) or "nothing" for each in (arrays, wanted)]
            raise ValueError(f"the saved update has {names[0]}, but this one needs {names[1]}")
        self.t, self._arrays = t, arrays


class Plain(GradientUpdate):
    """x - gamma g."""


class Momentum(GradientUpdate):
    """Polyak's heavy ball: v = beta v + g, and x - gamma v."""

    memory = ("v",)

    def __init__(
        self,
        step_size: float,
        beta: float = 0.9,
        schedule: str = "constant",
        warmup: int = 0,
        period: int = 0,
        final_step_size: float = 0.0,
    ) -> None:
        super().__init__(step_size, schedule, warmup, period, final_step_size)
        require(0 <= beta < 1, f"{beta=} must be at least 0 and below 1")
        self.beta = beta

    def direction(self, x: Array, g: Array) -> Array:
        """Return the velocity."""
        v = self.remembered("v", x)
        v *= self.beta
        v += g
        return v


class Nesterov(Momentum):
    """The same, but looking ahead: v = beta v + g, and x - gamma (g + beta v)."""

    def direction(self, x: Array, g: Array) -> Array:
        """Return gradient plus velocity; beta v is stored, which saves a pass through memory."""
        v = self.remembered("v", x)
        v += g
        v *= self.beta
        g += v
        return g


class Adam(GradientUpdate):
    """Adam with bias correction: running means m of g and v of g^2, and x - gamma m / (sqrt(v) + epsilon)."""

    memory = ("m", "v")

    def __init__(
        self,
        step_size: float,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        schedule: str = "constant",
        warmup: int = 0,
        period: int = 0,
        final_step_size: float = 0.0,
    ) -> None:
        super().__init__(step_size, schedule, warmup, period, final_step_size)
        for name, beta in (("beta1", beta1), ("beta2", beta2)):
            require(0 <= beta < 1, f"{name}={beta} must be at least 0 and below 1")
        require(epsilon > 0, f"{epsilon=} must be above 0")
        self.beta1, self.beta2, self.epsilon = beta1, beta2, epsilon

    def direction(self, x: Array, g: Array) -> Array:
        """Return the corrected mean over the root of the corrected mean square."""
        m, v = self.remembered("m", x), self.remembered("v", x)
        _mix(m, self.beta1, g)
        np.square(g, out=g)
        _mix(v, self.beta2, g)
        short1, short2 = 1 - self.beta1**self.t, 1 - self.beta2**self.t  # of m and v, which began at 0
        np.sqrt(v, out=g)
        g *= short1 / math.sqrt(short2)
        g += short1 * self.epsilon
        return np.divide(m, g, out=g)


class LMO(GradientUpdate):
    """m = (1 - alpha) m + alpha g, and x + gamma lmo(m): lmo(m) is the u of norm 1 with the least <m, u>.

    A. Sadiev, A. Maranjyan, I. Ilin, P. Richtárik: Ringmaster LMO (2026), arXiv 2605.18174; with `Ringmaster`
    this is their method.  `norm` is that of u: "euclidean" gives -m / |m|, "max" gives -sign(m), and
    "spectral" gives Muon: about -U V' of m = U S V', with singular values of 0.7 to 1.2.  An x of more than
    two dimensions is a matrix of its first; a vector is a column, whose spectral norm is the Euclidean one.
    """

    memory = ("m",)
    whole = True

    def __init__(
        self,
        step_size: float,
        alpha: float = 0.1,
        norm: str = "spectral",
        schedule: str = "constant",
        warmup: int = 0,
        period: int = 0,
        final_step_size: float = 0.0,
    ) -> None:
        super().__init__(step_size, schedule, warmup, period, final_step_size)
        require(0 < alpha <= 1, f"{alpha=} must be above 0 and at most 1")
        require(norm in ("spectral", "euclidean", "max"), f"{norm=} must be 'spectral', 'euclidean' or 'max'")
        self.alpha, self.norm = alpha, norm

    def direction(self, x: Array, g: Array) -> Array:
        """Return -lmo(m)."""
        m = self.remembered("m", x)
        _mix(m, 1 - self.alpha, g)
        if self.norm == "max":
            return np.sign(m, out=g)
        np.divide(m, max(float(np.linalg.norm(m)), 1e-30), out=g)
        if self.norm == "euclidean" or x.ndim < 2:
            return g
        y = g.reshape(len(g), -1)
        tall = y.shape[0] > y.shape[1]
        return np.asarray((orthogonalized(y.T).T if tall else orthogonalized(y)).reshape(x.shape))


def orthogonalized(y: Array) -> Array:
    """Return about U V' for y = U S V' of norm 1, by five Newton-Schulz steps with Muon's coefficients."""
    for _ in range(5):
        s = y @ y.T
        y = 3.4445 * y + (2.0315 * s @ s - 4.7750 * s) @ y
    return y


def _mix(mean: Array, beta: float, new: Array) -> None:
    """Update a running mean in place: beta mean + (1 - beta) new."""
    mean -= new
    mean *= beta
    mean += new
