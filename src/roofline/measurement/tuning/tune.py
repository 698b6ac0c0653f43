"""Find a fast way to block a matmul on the CPU at hand, with few measurements, and remember it."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

import numpy as np

from roofline.ir.errors import UsageError, did_you_mean
from roofline.ir.numbers import as_float, whole_number
from roofline.ir.report import Report
from roofline.measurement.calibration import numpy_cpu
from roofline.measurement.calibration.host import this_host
from roofline.measurement.calibration.timing import timed_alone, undisturbed
from roofline.measurement.tuning.log import Log, log_of
from roofline.measurement.tuning.model import CostModel, Rates, begin
from roofline.measurement.tuning.search import METHODS, Known
from roofline.measurement.tuning.variants import (
    KERNELS,
    ORDERS,
    Array,
    Problem,
    Variant,
    checked_kernels,
    runner,
    space,
)

#: Share of the space that is measured where nobody says.
BUDGET = 0.02
#: Runs of a variant; one that takes so many times the best so far at first is not run again.
REPEATS, HOPELESS = 5, 3.0
#: Leaders that are measured once more at the end, so that the luckiest of noisy times does not win.
LEADERS = 3
#: The largest matrix [elements], and the most that a result may be off, in units of the last place times the root of k.
LARGEST, WRONG = 2**26, 64.0
#: Machine that nothing is known of: a core that multiplies compiled loops with some of its vectors.
COMPILED_RATE, START, MOVED = 32e9, 1e-7, 2e10
DTYPES = {"fp32": np.float32, "fp64": np.float64}

Measure = Callable[[Variant, float], float]
#: The name of another machine, a variant, its time there [s] and its rank here.
Seed = tuple[str, Variant, float, int]


@dataclass(frozen=True, repr=False)
class Tuning(Report):
    """What a search found, from :func:`roofline.measurement.tune`.

    Attributes:
        problem: What is multiplied.
        chip: The machine.
        method: How variants were chosen.
        size: Variants that there are.
        measured: Seconds of those that were measured, in the order in which they were.
        library: The matmul of the library in one call [s].
        remembered: Measurements that an earlier search had made.
        interrupted: Whether somebody stopped it.
        seeds: What another machine or version found best, by its name, with its time there [s] and its rank here before
            it was measured here.
    """

    schema = "tuning"

    problem: Problem
    chip: str
    method: str
    size: int
    measured: Mapping[Variant, float]
    library: float
    remembered: int = 0
    interrupted: bool = False
    seeds: tuple[Seed, ...] = ()

    @property
    def best(self) -> Variant:
        """The fastest variant."""
        return min(self.measured, key=self.measured.__getitem__)

    @property
    def seconds(self) -> float:
        """Its time [s]."""
        return self.measured[self.best]

    @property
    def convergence(self) -> list[float]:
        """The best time after each measurement [s]."""
        return [float(each) for each in np.minimum.accumulate(list(self.measured.values()))]

    def subject(self) -> dict[str, Any]:
        """Return the problem and the machine."""
        return {"chip": self.chip, **asdict(self.problem), "method": self.method}

    def summary(self) -> dict[str, Any]:
        """Return the best variant, how fast it is, and how much was measured."""
        return {
            "variants": self.size, "measurements": len(self.measured), "remembered": self.remembered,
            "interrupted": self.interrupted, "fastest": _row(self.best), "time_s": self.seconds,
            "flops_per_s": self.problem.flops / self.seconds, "library_s": self.library,
            "seeds": [
                {"chip": chip, "variant": _row(variant), "time_there_s": seconds, "rank_here": rank}
                for chip, variant, seconds, rank in self.seeds
            ],
        }  # fmt: skip

    def records(self) -> list[dict[str, Any]]:
        """Return one row per variant that was measured, in order."""
        return [
            {**_row(variant), "time_s": seconds, "flops_per_s": self.problem.flops / seconds, "best_so_far_s": best}
            for (variant, seconds), best in zip(self.measured.items(), self.convergence, strict=True)
        ]

    def __repr__(self) -> str:
        return f"<Tuning of {self.problem}: {self.best} in {self.seconds * 1e3:.3g} ms>"


def _row(variant: Variant) -> dict[str, Any]:
    """Return the choices of a variant; ``order`` is the number of a collective elsewhere."""
    return {"loops" if name == "order" else name: value for name, value in asdict(variant).items()}


def tune(
    m: int,
    n: int,
    k: int,
    dtype: str = "fp32",
    *,
    kernels: Iterable[str] | None = None,
    method: str = "evolution",
    budget: int | float = BUDGET,
    repeats: int = REPEATS,
    seed: int = 0,
    cache: str | os.PathLike[str] | None = None,
    fresh: bool = False,
    progress: Callable[[float], None] | None = None,
) -> Tuning:
    """Find a fast way to block a matmul on this machine, by measuring few of the ways there are.

    Each measurement is written to a file at once: a search that is interrupted, by Ctrl-C as well, can go on. What
    another machine found is ranked anew by the model of this one and measured, never trusted.

    Args:
        m: Rows of the result.
        n: Columns of it.
        k: Elements that each adds up.
        dtype: ``fp32`` or ``fp64``.
        kernels: ``numpy``, whose blocks the BLAS multiplies, or ``numba``, which compiles loops; the latter alone when
            absent, where it is installed.
        method: ``evolution`` (with a cost model that learns), ``random`` or ``exhaustive``.
        budget: Variants to measure, or a share of them below 1; ``exhaustive`` measures all.
        repeats: Runs of each; their median counts.
        seed: Of what is drawn.
        cache: Folder of what was measured; the user's cache folder when absent.
        fresh: Forget what was measured here before.
        progress: Called with the share that is done.

    Returns:
        The best variant, and all that were measured in their order.

    Raises:
        RooflineError: A size, format, method or budget that cannot be, or a kernel whose package is not installed.

    Example:
        >>> import roofline as rl, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     rl.measurement.tune(48, 48, 48, kernels=["numpy"], budget=8, cache=folder).size
        324
    """
    problem, names = checked_problem(m, n, k, dtype), checked_kernels(kernels)
    if method not in METHODS:
        raise UsageError(f"method {method!r}; allowed: {', '.join(METHODS)}{did_you_mean(str(method), METHODS)}")
    every, host = space(problem, names), this_host()
    log = log_of(problem, host.slug, {name: version(KERNELS[name].package) for name in names}, cache)
    bench = Bench(problem, whole_number("repeats", repeats), whole_number("seed", seed, least=0))
    bench.compare_with_library(log, fresh)
    caches = tuple(cache.size for cache in host.caches[:2])
    known, seeds = _known(log, begin(problem, bench.rates(names), caches), every, fresh)
    most = len(every) if method == "exhaustive" else number_of(budget, len(every))
    measured, interrupted = search(known, method, most, bench.seconds, seed, log, progress)
    before = len(known.measured)
    return Tuning(problem, host.slug, method, len(every), measured, bench.library, before, interrupted, tuple(seeds))


def _known(log: Log, prior: CostModel, every: tuple[Variant, ...], fresh: bool) -> tuple[Known, list[Seed]]:
    """Return what a search begins with: what was measured here, and the best of each other machine.

    Those come with their rank among all variants by the model of this machine.
    """
    order = {every[at]: rank + 1 for rank, at in enumerate(np.argsort(prior.seconds(every), kind="stable"))}
    before = {} if fresh else {variant: seconds for variant, seconds in log.read().items() if variant in order}
    seeds = []
    for chip, times in log.elsewhere().items():
        some = {variant: seconds for variant, seconds in times.items() if variant in order}
        seeds += [(chip, best, some[best], order[best]) for best in sorted(some, key=some.__getitem__)[:LEADERS]]
    seeds.sort(key=lambda seed: seed[3])
    return Known(every, prior, before, tuple(variant for _, variant, _, _ in seeds)), seeds


def search(
    known: Known,
    method: str,
    most: int,
    measure: Measure,
    seed: int = 0,
    log: Log | None = None,
    progress: Callable[[float], None] | None = None,
) -> tuple[dict[Variant, float], bool]:
    """Measure variants until so many are measured, the leaders twice.

    Args:
        known: The space, and what is known of it.
        method: Of :data:`METHODS`.
        most: Measurements in all, those known before and those of leaders among them.
        measure: Returns the seconds of a variant, given the best so far.
        seed: Of what is drawn.
        log: Where measurements are written as they come.
        progress: Called with the share that is done.

    Returns:
        Seconds in the order of measuring, and whether it was interrupted.
    """
    draw, measured = np.random.default_rng(seed), dict(known.measured)
    leaders = min(LEADERS, most // 8) if method != "exhaustive" else 0

    def take(variant: Variant, many: int) -> None:
        seconds = measure(variant, min(measured.values(), default=math.inf))
        measured[variant] = float(np.sqrt(measured[variant] * seconds)) if variant in measured else seconds
        if log is not None:
            log.add(variant, measured[variant])
        if progress is not None:
            progress(min(many / most, 1.0))

    try:
        while len(measured) < most - leaders:
            state = Known(known.space, known.prior, measured, known.seeds)
            batch = METHODS[method](state, draw)[: most - leaders - len(measured)]
            if not batch:
                break
            for variant in batch:
                take(variant, len(measured) + 1)
        if len(measured) > len(known.measured):
            for at, variant in enumerate(sorted(measured, key=measured.__getitem__)[:leaders]):
                take(variant, most - leaders + at + 1)
    except KeyboardInterrupt:
        if not measured:
            raise
        return measured, True
    return measured, False


def number_of(budget: int | float, size: int) -> int:
    """Return how many variants a budget is, of so many.

    Example:
        >>> number_of(0.02, 1500), number_of(12, 1500)
        (30, 12)
    """
    share = as_float(budget)
    if not 0 < share < math.inf or (share >= 1 and share != int(share)):
        raise UsageError(f"budget {budget!r}: expected a number of variants, or a share of them such as 0.02")
    return min(int(share) if share >= 1 else max(math.ceil(share * size), 1), size)


def checked_problem(m: int, n: int, k: int, dtype: str) -> Problem:
    if dtype not in DTYPES:
        raise UsageError(f"dtype {dtype!r}; allowed: {', '.join(DTYPES)}{did_you_mean(str(dtype), DTYPES)}")
    problem = Problem(whole_number("m", m), whole_number("n", n), whole_number("k", k), dtype)
    largest = max(problem.m * problem.k, problem.k * problem.n, problem.m * problem.n)
    if largest > LARGEST:
        raise UsageError(f"{problem}: a matrix of {largest:,} elements; allowed: at most {LARGEST:,}")
    return problem


class Bench:
    """Runs variants of a problem on random operands, and checks that each computes what the library does."""

    def __init__(self, problem: Problem, repeats: int, seed: int) -> None:
        draw, dtype = np.random.default_rng(seed), DTYPES[problem.dtype]
        self.problem, self.repeats = problem, repeats
        self.a: Array = draw.standard_normal((problem.m, problem.k)).astype(dtype)
        self.b: Array = draw.standard_normal((problem.k, problem.n)).astype(dtype)
        self.product: Array = self.a @ self.b
        self.library = math.nan

    def compare_with_library(self, log: Log, fresh: bool) -> None:
        """Measure the library's own matmul, or remember what it took when the variants were measured."""
        whole = Variant("library", self.problem.m, self.problem.n, self.problem.k, ORDERS[0])
        known = None if fresh else log.read().get(whole)
        self.library = known or self._median(lambda: self.a @ self.b, math.inf)
        if not known:
            log.add(whole, self.library)

    def rates(self, kernels: Iterable[str]) -> dict[str, Rates]:
        """Return what kernels take before any variant was measured, from the library's own call."""
        fast, call = self.library / self.problem.flops, numpy_cpu.overhead(0.02)
        own = {"numpy": Rates(fast, 2 * call, 1 / MOVED), "numba": Rates(1 / COMPILED_RATE, START, 1 / MOVED)}
        return {name: own[name] for name in kernels}

    def seconds(self, variant: Variant, best: float) -> float:
        """Measure a variant [s].

        Args:
            variant: What to measure.
            best: The best so far: what is far from it runs once [s].

        Raises:
            UsageError: It computes something else.
        """
        call = runner(self.problem, variant, self.a, self.b)
        off = float(np.max(np.abs(call() - self.product), initial=0.0))
        if off > WRONG * float(np.finfo(self.a.dtype).eps) * self.problem.k**0.5:
            raise UsageError(f"{variant} is off by {off:.3g} from the library's result")
        return self._median(call, best)

    def _median(self, call: Callable[[], Array], best: float) -> float:
        timed = [timed_alone(call)]
        while len(timed) < self.repeats and timed[0][0] < HOPELESS * best:
            timed.append(timed_alone(call))
        return float(np.median(undisturbed(timed)))
