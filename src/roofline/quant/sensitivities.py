"""What quantising each layer alone costs: noise in the outputs of the program, or the user's own evaluation.

Rounding adds noise to what a layer computes. Where that is small, the noise of several layers adds up to first order,
which is what bit widths are chosen by (Cai et al. 2020, "ZeroQ", arXiv 2001.00281, section 3.2; Yao et al. 2021,
"HAWQ-V3", arXiv 2011.10680, section 3.4); :meth:`Sensitivity.error` measures what any choice really costs.
"""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Literal, get_args

from roofline.ir.dtypes import DTYPES
from roofline.ir.errors import UsageError
from roofline.ir.graph import Graph
from roofline.ir.numbers import finite_number
from roofline.ir.report import Report, subject
from roofline.ir.sizes import one_of, prod
from roofline.ir.text import shown
from roofline.ops.deviation import decibels
from roofline.ops.reference import execute
from roofline.ops.registry import Array
from roofline.passes.formats.quantize import chosen, quantize
from roofline.quant.arrays import array, by_name, finite, listed
from roofline.quant.modules import captured, quantize_module
from roofline.quant.observing import call, left_open, resting
from roofline.quant.recipes import Recipe
from roofline.quant.weights import quantize_weights

#: Formats that layers are tried in.
FORMATS = ("int8", "fp8", "int4-g128")
Better = Literal["lower", "higher"]
#: Formats by the name of a layer's weight; what it leaves out stays as it is.
Formats = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class LayerCost:
    """What one layer in one format costs when all others stay as they are.

    From :func:`roofline.quant.sensitivity`.

    Attributes:
        weight: The name of its weight.
        format: The format's word, as :func:`roofline.passes.quantize` takes it.
        elements: Of the weight.
        bits: Stored bits per element, scales included.
        error: Noise in the outputs over their power, or what the evaluation became worse by.
        score: What the evaluation gave; ``None`` without one.
    """

    weight: str
    format: str
    elements: int
    bits: float
    error: float
    score: float | None


@dataclass(frozen=True, repr=False, eq=False)
class Sensitivity(Report):
    """What each layer's quantisation alone costs, from :func:`roofline.quant.sensitivity`.

    Attributes:
        graph: The program.
        recipe: How layers are rounded; its ``weights`` say nothing.
        rows: Each layer in each format that it can have.
        base: What the evaluation gives before; ``None`` without one.
        measured: How errors were measured, in words.
        measure: Measures the error of formats by layer, and the evaluation's value.
    """

    schema = "sensitivity"

    graph: Graph
    recipe: Recipe
    rows: tuple[LayerCost, ...]
    base: float | None
    measured: str
    measure: Callable[[Formats], tuple[float, float | None]] = field(repr=False)

    @property
    def layers(self) -> dict[str, tuple[LayerCost, ...]]:
        """The rows of each layer, by the name of its weight."""
        grouped: dict[str, list[LayerCost]] = {}
        for row in self.rows:
            grouped.setdefault(row.weight, []).append(row)
        return {name: tuple(rows) for name, rows in grouped.items()}

    def error(self, formats: Formats) -> float:
        """Measure the error of several layers in formats at once."""
        return self.measure(formats)[0]

    def quantized(self, formats: Formats) -> Graph:
        """Return the program with these formats, as :func:`roofline.passes.quantize` gives it."""
        return with_formats(self.graph, formats, self.recipe.activations)

    def subject(self) -> dict[str, Any]:
        """Return which program it is of and how it was measured."""
        how = {"method": self.recipe.method, "activations": self.recipe.activations, "measured": self.measured}
        return {**subject(self.graph), **how}

    def summary(self) -> dict[str, Any]:
        """Return what the evaluation gives before."""
        return {"base_score": self.base}

    def records(self) -> list[dict[str, Any]]:
        """Return a row for each layer and format."""
        return [
            {"weight": row.weight, "format": row.format, "elements": row.elements, "bits": row.bits,
             "error": row.error, "sqnr_db": None if self.base is not None else decibels(1.0, row.error),
             "score": row.score}
            for row in self.rows
        ]  # fmt: skip

    def __str__(self) -> str:
        formats = list(dict.fromkeys(row.format for row in self.rows))
        width = max(len(name) for name in self.layers)
        lines = [f"{self.graph.name}: {self.measured}", f"{'':{width}}" + "".join(f"{word:>12}" for word in formats)]
        for name, rows in self.layers.items():
            errors = {row.format: f"{row.error:.2e}" for row in rows}
            lines.append(f"{name:{width}}" + "".join(f"{errors.get(word, '-'):>12}" for word in formats))
        return "\n".join(lines)

    __repr__ = __str__


def sensitivity(
    program: Any,
    batches: Iterable[Any],
    formats: str | Sequence[str] = FORMATS,
    *,
    weights: Mapping[str, Any] | None = None,
    recipe: Recipe | None = None,
    evaluate: Callable[[Any], float] | None = None,
    better: Better = "lower",
    layers: str | Sequence[str] = "*",
) -> Sensitivity:
    """Measure what each layer's quantisation alone costs, in each of some formats.

    Args:
        program: A ``torch.nn.Module``, which runs as in ``eval()`` and stays as it is, or a graph.
        batches: Calibration inputs. Of a module: tensors, tuples of arguments or dictionaries of keyword arguments;
            of a graph: arrays by input name.
        formats: Words of :func:`roofline.passes.quantize`; a layer whose rows a group does not divide goes without.
        weights: Of a graph: numbers by tensor name.
        recipe: How layers are rounded: nearest or GPTQ, what they read, ranges. Its ``weights`` are ignored.
        evaluate: Your own measure: from the module (of a graph: from weights by name) to a number. By default the
            noise in the outputs on the batches, over their power.
        better: Whether a ``lower`` or a ``higher`` number is better.
        layers: Patterns over names of weights, of those that :func:`roofline.passes.quantize` takes by default.

    Returns:
        The error by layer and format, and the means to measure any combination.

    Raises:
        MissingExtra: A module without PyTorch.
        UsageError: No batch, no layer of that name, no format that fits any, or an evaluation that is not finite.

    Example:
        >>> import torch
        >>> from roofline.quant import sensitivity
        >>> _ = torch.manual_seed(0)
        >>> net = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8))
        >>> costs = sensitivity(net, [torch.randn(64, 32)], ["int8", "int4-g32"])
        >>> [(row.weight, row.format, row.error < 1e-3) for row in costs.rows if row.weight == "0.weight"]
        [('0.weight', 'int8', True), ('0.weight', 'int4-g32', False)]
    """
    one_of("better", better, get_args(Better))
    every = listed(batches, "sensitivity", "batches")
    if not every:
        raise UsageError("sensitivity: give at least one calibration batch")
    words, recipe = _listed(formats, "formats"), recipe or Recipe()
    is_graph = isinstance(program, Graph)
    subjected = _OfGraph(program, weights or {}, every, recipe) if is_graph else _OfModule(program, every, recipe)
    meter = _Meter(subjected, evaluate, better)
    elements = _layers(subjected.graph, layers, recipe.keep)
    rows = tuple(
        LayerCost(name, word, count, float(DTYPES[stored].bits_per_element), *meter({name: word}))
        for name, count in elements.items()
        for word in words
        if (stored := _stored(subjected.graph, name, word, recipe.activations))
    )
    if not rows:
        raise UsageError(f"sensitivity: {', '.join(words)} fits no layer of {subjected.graph.name}")
    return Sensitivity(subjected.graph, recipe, rows, meter.base, meter.words(len(every)), meter)


def with_formats(graph: Graph, formats: Formats, activations: str | None = None) -> Graph:
    """Return a program with some of its weights in formats; the program itself for none."""
    if not formats:
        return graph
    return quantize(graph, weights={glob.escape(name): word for name, word in formats.items()}, activations=activations)


def _layers(graph: Graph, patterns: str | Sequence[str], keep: Sequence[str] | None) -> dict[str, int]:
    """Elements of the weights that a pass quantises by default and a pattern names."""
    every = dict.fromkeys(matrix.root for matrix, _ in chosen(graph, "int8", keep))
    some = [name for name in every if any(fnmatchcase(name, pattern) for pattern in _listed(patterns, "layers"))]
    if not some:
        raise UsageError(f"layers={patterns!r}: names none of {', '.join(list(every)[:6])}")
    return {name: int(prod(graph.tensors[name].shape)) for name in some}


def _listed(words: str | Sequence[str], what: str) -> list[str]:
    every = [words] if isinstance(words, str) else listed(words, what, "words")
    if not every:
        raise UsageError(f"sensitivity: no {what}; give some")
    return every


def _stored(graph: Graph, name: str, word: str, activations: str | None) -> str:
    """Return the format that a weight is stored in once quantised; empty where it cannot be."""
    try:
        after = with_formats(graph, {name: word}, activations).tensors[name].dtype
    except UsageError:
        return ""
    return after if after != graph.tensors[name].dtype else ""


# --- measuring -------------------------------------------------------------------------------------------------------


class _OfModule:
    """A PyTorch module to be quantised again and again."""

    def __init__(self, module: Any, batches: Sequence[Any], recipe: Recipe) -> None:
        self.module, self.batches, self.recipe = module, batches, recipe
        with resting(module):
            self.graph = captured(module, batches[0])

    def score(self, evaluate: Callable[[Any], Any], module: Any) -> Any:
        """Return what an evaluation gives for a module."""
        with resting(module):
            return evaluate(module)

    def rounded(self, formats: Formats) -> Any:
        """Return the module with these formats; itself for none."""
        if not formats:
            return self.module
        named = replace(self.recipe, weights={glob.escape(name): word for name, word in formats.items()}, keep=None)
        return quantize_module(self.module, self.batches if named.calibrates else (), named).module

    def outputs(self, module: Any, formats: Formats) -> Iterator[Array]:
        """Yield all that a module returns for each batch."""
        import torch

        with resting(module), torch.no_grad():
            for batch in self.batches:
                yield from map(array, _tensors(call(module, batch)))


def _tensors(result: Any) -> Iterator[Any]:
    """Yield the tensors of whatever a module returns."""
    if hasattr(result, "detach"):
        yield result
    elif isinstance(result, Mapping):
        yield from (tensor for each in result.values() for tensor in _tensors(each))
    elif isinstance(result, tuple | list):
        yield from (tensor for each in result for tensor in _tensors(each))


class _OfGraph:
    """A program with weights of its own, run by the numpy executor."""

    def __init__(self, graph: Graph, weights: Mapping[str, Any], batches: Sequence[Any], recipe: Recipe) -> None:
        self.graph, self.recipe, self.drawn = graph, recipe, left_open(graph, graph.outputs)
        self.batches = [
            {name: array(each, name) for name, each in by_name(batch, "a batch").items()} for batch in batches
        ]
        self.weights = {name: array(each, name) for name, each in by_name(weights, "weights").items()}

    def rounded(self, formats: Formats) -> Mapping[str, Any]:
        """Return all weights, these rounded."""
        if not formats:
            return self.weights
        named = {glob.escape(name): word for name, word in formats.items()}
        how = {word: getattr(self.recipe, word) for word in ("method", "ranges", "percentile", "order", "damping")}
        batches = self.batches if self.recipe.method == "gptq" else ()
        return quantize_weights(self.graph, self.weights, named, batches=batches, **how).arrays

    def score(self, evaluate: Callable[[Any], Any], weights: Mapping[str, Any]) -> Any:
        """Return what an evaluation gives for weights."""
        return evaluate(weights)

    def outputs(self, weights: Mapping[str, Any], formats: Formats) -> Iterator[Array]:
        """Yield all results of each batch; what activations are rounded to, the program says."""
        program = with_formats(self.graph, formats, self.recipe.activations)
        for batch in self.batches:
            yield from execute(program, {**weights, **batch}, rounding=True).values()


class _Meter:
    """Measures what formats cost."""

    def __init__(
        self, subjected: _OfModule | _OfGraph, evaluate: Callable[[Any], float] | None, better: Better
    ) -> None:
        if evaluate is not None and not callable(evaluate):
            raise UsageError(f"evaluate={shown(evaluate)}: expected a function of the module, or of weights by name")
        self.subjected, self.evaluate = subjected, evaluate
        self.sign = 1 if better == "lower" else -1
        whole = subjected.rounded({})
        self.base = None if evaluate is None else self._score(whole)
        outputs = [] if evaluate is not None else subjected.outputs(whole, {})
        self.before = [finite(each, "sensitivity: outputs on the batches") for each in outputs]

    def __call__(self, formats: Formats) -> tuple[float, float | None]:
        rounded = self.subjected.rounded(formats)
        if self.base is not None:
            score = self._score(rounded)
            return self.sign * (score - self.base), score
        after = self.subjected.outputs(rounded, formats)
        noise = sum(float(((b - a) ** 2).sum()) for a, b in zip(self.before, after, strict=True))
        return noise / (sum(float((a * a).sum()) for a in self.before) or 1.0), None

    def _score(self, of: Any) -> float:
        assert self.evaluate is not None
        score = self.subjected.score(self.evaluate, of)
        number = array(score, "evaluate(...)")
        return finite_number("evaluate(...)", number.item() if number.size == 1 else score)

    def words(self, batches: int) -> str:
        """Say how errors are measured."""
        if self.base is not None:
            return f"what the evaluation becomes worse by, from {self.base:.6g}"
        drawn = getattr(self.subjected, "drawn", [])
        more = f"; what the graph leaves open is drawn, {len(drawn)} nodes from {drawn[0]} on" if drawn else ""
        return f"noise in the outputs over their power, on {batches} batch{'es' if batches > 1 else ''}{more}"
