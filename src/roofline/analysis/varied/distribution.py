"""Sizes that are drawn: distributions by their figures, by their values, or by a column of a table."""

from __future__ import annotations

import math
import os
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roofline.ir.csvfile import read_table
from roofline.ir.errors import UsageError, did_you_mean
from roofline.ir.text import shown

Numbers = NDArray[np.float64]

#: The 95th percentile of a standard normal distribution.
Z95 = 1.6448536269514722
#: The most that a figure may be, and the most values of a choice.
_LARGEST, _MOST_VALUES = 1e15, 1_000_000


@dataclass(frozen=True, slots=True)
class Distribution:
    """What a size is drawn from; made from text by :meth:`parse`, or by the function of its kind.

    Example:
        >>> Distribution.parse("choice:8=3,32=1").mean
        14.0

    Attributes:
        kind: One of :data:`KINDS`.
        figures: Its parameters: of ``lognormal`` mean and standard deviation of the logarithm, of ``uniform`` the least
            and the largest whole number, of ``geometric`` and ``exponential`` the mean.
        values: What a ``choice`` picks from.
        weights: How often it picks each, adding up to 1; equally often where empty.
    """

    kind: str
    figures: tuple[float, ...] = ()
    values: tuple[float, ...] = ()
    weights: tuple[float, ...] = ()

    @property
    def mean(self) -> float:
        """Expected value."""
        return KINDS[self.kind].mean(self)

    def draw(self, number: int, seed: int, name: str = "") -> Numbers:
        """Draw values, the same for the same seed and name.

        Args:
            number: How many.
            seed: Of all that is drawn together.
            name: What it is drawn for: other names get other values.

        Example:
            >>> lengths = lognormal(mean=512, p95=1500)
            >>> bool(abs(lengths.draw(100_000, 0).mean() / 512 - 1) < 0.02)
            True
        """
        return KINDS[self.kind].draw(self, np.random.default_rng([seed, zlib.crc32(name.encode())]), number)

    @staticmethod
    def parse(text: str) -> Distribution:
        """Read a distribution as the command line takes it.

        Args:
            text: ``lognormal:mean=512,p95=1500``, ``lognormal:median=400,sigma=0.8``, ``uniform:low=1,high=64``,
                ``geometric:mean=4``, ``exponential:mean=1``, ``choice:8=0.5,32=0.5`` or ``csv:FILE,column=NAME``.

        Raises:
            UsageError: Anything else.

        Example:
            >>> Distribution.parse("uniform:low=1,high=9").mean
            5.0
        """
        kind, colon, rest = text.partition(":")
        if not colon or kind not in _READERS:
            words = ", ".join(f"{name}:..." for name in _READERS)
            near = "" if kind in _READERS else did_you_mean(kind, _READERS)
            raise UsageError(
                f"{shown(text)}: no distribution; allowed: {words}, such as lognormal:mean=512,p95=1500{near}"
            )
        return _READERS[kind](rest)

    def __str__(self) -> str:
        if self.kind == "lognormal":  # its figures are of the logarithm
            p95 = math.exp(self.figures[0] + Z95 * self.figures[1])
            return f"lognormal, mean {self.mean:.4g}, p95 {p95:.4g}"
        known = ", ".join(f"{figure:.4g}" for figure in self.figures) or f"{len(self.values):,} values"
        return f"{self.kind}({known}), mean {self.mean:.4g}"


# --- how each is made -------------------------------------------------------------------------------------------------


def lognormal(
    *, mean: float | None = None, median: float | None = None, p95: float | None = None, sigma: float | None = None
) -> Distribution:
    """Make a lognormal distribution, as lengths of requests have.

    Args:
        mean: Expected value; or give ``median``.
        median: As many are below as above.
        p95: 95 of 100 are below; or give ``sigma``.
        sigma: Standard deviation of the logarithm.

    Raises:
        UsageError: Not one of each pair, or a p95 that no lognormal distribution of that mean has.

    Example:
        >>> round(lognormal(median=400, sigma=0.8).mean)
        551
    """
    if (mean is None) == (median is None) or (p95 is None) == (sigma is None):
        raise UsageError("lognormal: give mean or median, and p95 or sigma: lognormal:mean=512,p95=1500")
    middle = _positive("lognormal", "mean" if median is None else "median", mean if median is None else median)
    if sigma is not None:
        spread = _positive("lognormal", "sigma", sigma, most=10.0)
    else:
        ratio = math.log(_positive("lognormal", "p95", p95) / middle)
        # of the mean m exp(s^2 / 2), p95 = m exp(Z s), so that Z s - s^2 / 2 is the logarithm of their ratio
        within = ratio / Z95 if median is not None else _smaller_root(ratio)
        if within is None or within < 0:
            top = "" if median is not None else f" to {math.exp(Z95**2 / 2) * middle:.4g}"
            raise UsageError(f"lognormal: p95={p95:g}: no lognormal distribution with such a mean or median has that; "
                             f"allowed: from {middle:g}{top}")  # fmt: skip
        spread = within
    mu = math.log(middle) - (spread**2 / 2 if median is None else 0.0)
    return Distribution("lognormal", (mu, spread))


def _smaller_root(ratio: float) -> float | None:
    inside = Z95**2 - 2 * ratio
    return Z95 - math.sqrt(inside) if inside >= 0 else None


def uniform(low: float, high: float) -> Distribution:
    """Make a distribution of whole numbers from ``low`` to ``high``, equally often.

    Raises:
        UsageError: No whole numbers, or none between them.
    """
    ends = _positive("uniform", "low", low, 0.0), _positive("uniform", "high", high, 0.0)
    if ends[0] != int(ends[0]) or ends[1] != int(ends[1]) or ends[0] > ends[1]:
        raise UsageError(f"uniform: low={low:g}, high={high:g}; allowed: whole numbers, the lower one first")
    return Distribution("uniform", ends)


def geometric(mean: float) -> Distribution:
    """Make the distribution of trips through a loop that goes on with the same chance each time.

    Raises:
        UsageError: A mean below 1.
    """
    return Distribution("geometric", (_positive("geometric", "mean", mean, 1.0),))


def exponential(mean: float = 1.0) -> Distribution:
    """Make an exponential distribution, such as of how popular experts are.

    Raises:
        UsageError: A mean that is not above zero.
    """
    return Distribution("exponential", (_positive("exponential", "mean", mean),))


def choice(values: Mapping[float, float] | Sequence[float]) -> Distribution:
    """Make a distribution of given values: measured ones, or a few with how often each comes.

    Args:
        values: A number for each value, in any proportion; or values that come equally often.

    Raises:
        UsageError: No values, or one that is no number from zero.

    Example:
        >>> choice({8: 3, 32: 1}).mean, choice([8, 32]).mean
        (14.0, 20.0)
    """
    if not 0 < len(values) <= _MOST_VALUES:
        raise UsageError(f"choice: {len(values):,} values; allowed: 1 to {_MOST_VALUES:,}")
    every = tuple(_positive("choice", "value", value, 0.0) for value in values)
    often = tuple(_positive("choice", "weight", each, 0.0) for each in values.values()) if isinstance(values, Mapping) \
        else ()  # fmt: skip
    if often and not sum(often):
        raise UsageError("choice: no value has a weight above zero")
    return Distribution("choice", values=every, weights=tuple(each / sum(often) for each in often))


def from_csv(source: str | os.PathLike[str], column: str) -> Distribution:
    """Make a distribution of the values in a column of a table, empty cells left out.

    Raises:
        UsageError: No such file or column, or a cell that is no number from zero.
    """
    columns, rows = read_table(source)
    if column not in columns:
        raise UsageError(
            f"{source}: no column {shown(column)}; it has {', '.join(columns)}{did_you_mean(column, columns)}"
        )
    cells = [row[column].strip() for row in rows if row[column].strip()]
    return choice([_positive(str(source), column, cell, 0.0) for cell in cells])


def _positive(where: str, name: str, value: Any, least: float | None = None, most: float = _LARGEST) -> float:
    """Return a figure: above zero, or from the least one that is given."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if isinstance(value, bool) or not (number > 0 if least is None else number >= least) or number > most:
        start = "above 0" if least is None else f"from {least:g}"
        raise UsageError(f"{where}: {name}={shown(value)}; allowed: a number {start} to {most:g}")
    return number


# --- as text ----------------------------------------------------------------------------------------------------------


def _pairs(kind: str, text: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for part in filter(None, re.split(r"\s*,\s*", text.strip())):
        name, equals, value = part.partition("=")
        if not equals or name.strip() in pairs:
            raise UsageError(f"{kind}:{text[:60]}: expected NAME=VALUE once for each, with commas; given {shown(part)}")
        pairs[name.strip()] = value.strip()
    return pairs


def _named(kind: str, make: Callable[..., Distribution], *names: str) -> Callable[[str], Distribution]:
    def read(text: str) -> Distribution:
        pairs = _pairs(kind, text)
        if unknown := next((name for name in pairs if name not in names), None):
            raise UsageError(f"{kind}: {shown(unknown)}; allowed: {', '.join(names)}{did_you_mean(unknown, names)}")
        figures = {name: _positive(kind, name, value) for name, value in pairs.items()}
        try:
            return make(**figures)
        except TypeError:
            raise UsageError(f"{kind}: give {' and '.join(f'{name}=' for name in names)}") from None

    return read


def _read_choice(text: str) -> Distribution:
    pairs = _pairs("choice", text if "=" in text else ",".join(f"{each}=1" for each in text.split(",")))
    return choice({_positive("choice", "value", value): _positive("choice", value, often)
                   for value, often in pairs.items()})  # fmt: skip


def _read_csv(text: str) -> Distribution:
    path, _, column = text.rpartition(",column=")
    if not path:
        raise UsageError(f"csv:{text[:60]}: expected csv:FILE,column=NAME")
    return from_csv(path, column)


_READERS: dict[str, Callable[[str], Distribution]] = {
    "lognormal": _named("lognormal", lognormal, "mean", "median", "p95", "sigma"),
    "uniform": _named("uniform", uniform, "low", "high"),
    "geometric": _named("geometric", geometric, "mean"),
    "exponential": _named("exponential", exponential, "mean"),
    "choice": _read_choice,
    "csv": _read_csv,
}


# --- how each is drawn ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Kind:
    """How a kind of distribution is drawn, and what it expects."""

    draw: Callable[[Distribution, np.random.Generator, int], Numbers]
    mean: Callable[[Distribution], float]


def _pick(of: Distribution, rng: np.random.Generator, number: int) -> Numbers:
    return rng.choice(np.array(of.values), number, p=of.weights or None)


#: Every kind by its name.
KINDS: dict[str, Kind] = {
    "lognormal": Kind(lambda of, rng, n: rng.lognormal(of.figures[0], of.figures[1], n),
                      lambda of: math.exp(of.figures[0] + of.figures[1] ** 2 / 2)),
    "uniform": Kind(lambda of, rng, n: rng.integers(int(of.figures[0]), int(of.figures[1]) + 1, n).astype(np.float64),
                    lambda of: sum(of.figures) / 2),
    "geometric": Kind(lambda of, rng, n: rng.geometric(1 / of.figures[0], n).astype(np.float64),
                      lambda of: of.figures[0]),
    "exponential": Kind(lambda of, rng, n: rng.exponential(of.figures[0], n), lambda of: of.figures[0]),
    "choice": Kind(_pick, lambda of: float(np.average(of.values, weights=of.weights or None))),
}  # fmt: skip
