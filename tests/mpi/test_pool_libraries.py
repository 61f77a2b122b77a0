"""Samplers and optimizers of others on real ranks, one of them slow: the same numbers as in one process.

`pip install 'mpi-ata[samplers]'` installs the libraries.
"""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from tests.mpi.starting import mpirun

BEGIN = """
import os
import time
import warnings

import numpy as np

import mpi_ata

warnings.simplefilter("ignore")
RANK = int(os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK", "0")))
data = np.random.default_rng(0).normal(size=20)


def log_likelihood(x, scale=1.0):
    if RANK == 1:
        time.sleep(0.002)  # as a slow worker does
    return float(-0.5 * np.sum((data - x[0]) ** 2) - 0.5 * np.sum(np.square(x[1:]) / scale))


def loss(x):
    return -log_likelihood(x)

"""

END = """

with mpi_ata.Pool() as pool:
    found, serial = run(pool, pool.map), run(None, map)
    assert np.shape(found)[0] > 0
    assert np.array_equal(found, serial), (found, serial)
    print("equal")
"""

EMCEE = """
import emcee

def run(pool, mapped):
    sampler = emcee.EnsembleSampler(12, 3, log_likelihood, pool=pool, kwargs={"scale": 2.0})
    sampler.random_state = np.random.RandomState(1).get_state()
    sampler.run_mcmc(np.random.default_rng(2).normal(size=(12, 3)), 30)
    return sampler.get_chain(flat=True)
"""

SCIPY = """
from scipy.optimize import differential_evolution

def run(pool, mapped):
    found = differential_evolution(
        loss, [(-3, 3)] * 3, workers=mapped, updating="deferred", rng=1, maxiter=8, polish=False
    )
    return [*found.x, found.fun]
"""

DYNESTY = """
import dynesty

def prior(u):
    return 6 * u - 3

def run(pool, mapped):
    if pool is None:

        class pool:  # dynesty proposes as many points at once as a pool has workers
            size, map = 3, staticmethod(lambda *given: list(map(*given)))

    rng = np.random.default_rng(1)
    sampler = dynesty.NestedSampler(log_likelihood, prior, 3, nlive=40, rstate=rng, pool=pool, sample="rwalk")
    sampler.run_nested(maxiter=150, print_progress=False)
    return sampler.results.samples
"""

CMA = """
import cma

def run(pool, mapped):
    strategy = cma.CMAEvolutionStrategy(3 * [0.5], 0.5, {"seed": 1, "verbose": -9, "popsize": 9})
    for _ in range(10):
        points = strategy.ask()
        strategy.tell(points, list(mapped(loss, points)))
    return [*strategy.result.xbest, strategy.result.fbest]
"""

DEAP = """
import random

from deap import algorithms, base, creator, tools

creator.create("Fitness", base.Fitness, weights=(-1.0,))
creator.create("Individual", list, fitness=creator.Fitness)

def evaluate(individual):
    return (loss(np.array(individual)),)

def run(pool, mapped):
    random.seed(1)
    toolbox = base.Toolbox()
    toolbox.register("number", random.uniform, -3, 3)
    toolbox.register("individual", tools.initRepeat, creator.Individual, toolbox.number, 3)
    toolbox.register("evaluate", evaluate)
    toolbox.register("mate", tools.cxTwoPoint)
    toolbox.register("mutate", tools.mutGaussian, mu=0, sigma=1, indpb=0.3)
    toolbox.register("select", tools.selTournament, tournsize=3)
    toolbox.register("map", mapped)
    population = tools.initRepeat(list, toolbox.individual, 12)
    return algorithms.eaSimple(population, toolbox, 0.5, 0.2, 6, verbose=False)[0]
"""

VECTORIZED = """
import emcee

def run(pool, mapped):
    def likelihoods(points):
        return np.array(list(mapped(log_likelihood, points)))

    sampler = emcee.EnsembleSampler(12, 3, likelihoods, vectorize=True)
    sampler.random_state = np.random.RandomState(1).get_state()
    sampler.run_mcmc(np.random.default_rng(2).normal(size=(12, 3)), 20)
    return sampler.get_chain(flat=True)
"""

LEAST_SQUARES = """
from scipy.optimize import least_squares

def residuals(x):
    return data[:5] - x[0] - x[1] * np.arange(5)

def run(pool, mapped):
    found = least_squares(residuals, [0.0, 0.0], workers=mapped)
    return [*found.x, found.cost]
"""

ZEUS = """
import random

import zeus

def run(pool, mapped):
    np.random.seed(1)
    random.seed(1)
    sampler = zeus.EnsembleSampler(12, 3, log_likelihood, pool=pool, verbose=False)
    sampler.run_mcmc(np.random.default_rng(2).normal(size=(12, 3)), 10, progress=False)
    return sampler.get_chain(flat=True)
"""

NAUTILUS = """
from nautilus import Prior, Sampler

def of_dict(values):
    return log_likelihood(np.array([values[name] for name in "abc"]))

def run(pool, mapped):
    prior = Prior()
    for name in "abc":
        prior.add_parameter(name, dist=(-3.0, 3.0))
    sampler = Sampler(prior, of_dict, n_live=60, n_batch=24, n_networks=0, seed=1, pool=(pool, None))
    sampler.run(n_eff=100, discard_exploration=True)
    return sampler.posterior()[0]
"""

PYMOO = """
from pymoo.algorithms.soo.nonconvex.ga import GA
from pymoo.core.problem import ElementwiseProblem
from pymoo.optimize import minimize
from pymoo.parallelization.starmap import StarmapParallelization

class Bowl(ElementwiseProblem):
    def __init__(self, **given):
        super().__init__(n_var=3, n_obj=1, xl=-3.0, xu=3.0, **given)

    def _evaluate(self, x, out, *args, **kwargs):
        out["F"] = loss(x)

def run(pool, mapped):
    given = {} if pool is None else {"elementwise_runner": StarmapParallelization(pool.starmap)}
    found = minimize(Bowl(**given), GA(pop_size=12), ("n_gen", 6), seed=1)
    return [*found.X, *found.F]
"""

OPTUNA = """
import optuna

def run(pool, mapped):
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=1))
    for _ in range(4):
        trials = [study.ask() for _ in range(5)]
        points = [np.array([trial.suggest_float(name, -3, 3) for name in "abc"]) for trial in trials]
        for trial, value in zip(trials, mapped(loss, points)):
            study.tell(trial, value)
    return [trial.value for trial in study.trials]
"""

LIBRARIES = {"emcee": EMCEE, "scipy": SCIPY, "dynesty": DYNESTY, "cma": CMA, "deap": DEAP}
LIBRARIES |= {"emcee, vectorized": VECTORIZED, "scipy, least squares": LEAST_SQUARES, "zeus": ZEUS}
LIBRARIES |= {"nautilus": NAUTILUS, "pymoo": PYMOO, "optuna": OPTUNA}


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_finds_the_same_on_three_workers_as_in_one_process(tmp_path: Path, library: str) -> None:
    if importlib.util.find_spec(library.partition(",")[0]) is None:
        pytest.skip(f"{library} is not installed: pip install 'mpi-ata[samplers]'")
    script = tmp_path / "script.py"
    script.write_text(BEGIN + LIBRARIES[library] + END)
    done = mpirun(4, sys.executable, script)
    assert (done.returncode, done.stdout) == (0, "equal\n"), done.stderr


FAILING = """
from scipy.optimize import differential_evolution

def failing(x):
    raise ValueError("no model for this point")

with mpi_ata.Pool() as pool:
    differential_evolution(failing, [(-3, 3)] * 3, workers=pool.map, updating="deferred")
"""


@pytest.mark.skipif(importlib.util.find_spec("scipy") is None, reason="SciPy is not installed")
def test_scipy_lets_an_error_of_an_item_through_with_its_traceback(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(BEGIN + FAILING)
    done = mpirun(4, sys.executable, script)
    assert done.returncode != 0
    assert re.search(r"failed for item \d+ on worker ", done.stderr)
    assert "ValueError: no model for this point" in done.stderr
    assert "map-like callable" not in done.stderr, "SciPy's own words for a ValueError"
