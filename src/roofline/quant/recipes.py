"""What to quantise and how: a recipe, its layers, and what became of each."""

from __future__ import annotations

import glob
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from roofline.ir.errors import UsageError
from roofline.ir.graph import Graph
from roofline.ir.numbers import finite_number
from roofline.ir.report import Report
from roofline.ir.sizes import one_of
from roofline.ir.text import shown
from roofline.ops.deviation import Deviation, decibels
from roofline.ops.elements import Array
from roofline.ops.rounding import Axis, Format, Quantized, axes_of, rows_of
from roofline.passes.formats.quantize import Weights, quantize
from roofline.quant.arrays import deviation, finite, listed
from roofline.quant.formats import round_to
from roofline.quant.observing import Seen
from roofline.quant.ranges import PERCENTILE, Method, within
from roofline.quant.secondorder import Order, checked_moment, gptq, output_error
from roofline.quant.words import as_format, stored_as

How = Literal["nearest", "gptq"]


@dataclass(frozen=True)
class Recipe:
    """How to quantise a model after training.

    Attributes:
        weights: A format for all matrices, or formats by pattern of layer or weight names, as for
            :func:`roofline.passes.quantize`.
        activations: Format that they take their inputs in, or ``None``.
        method: ``nearest`` rounding, or ``gptq``, which needs calibration inputs.
        ranges: How scales are found: ``minmax``, ``percentile`` or ``mse``.
        scales: Of activations: ``dynamic``, row by row as they come, or ``static``, from calibration batches.
        order: Of columns in GPTQ: ``natural`` or ``activation``.
        damping: Of GPTQ's Hessian, a share of its mean diagonal.
        smooth: Strength of SmoothQuant between 0 and 1 before all else, or ``None``.
        keep: Patterns that stay; by default those of :func:`roofline.passes.quantize`.
        percentile: Of numbers, that are within those ranges [%].

    Example:
        >>> Recipe("int4-g128", method="gptq").ranges
        'minmax'
    """

    weights: Weights | None = "int8"
    activations: str | None = None
    method: How = "nearest"
    ranges: Method = "minmax"
    scales: Literal["dynamic", "static"] = "dynamic"
    order: Order = "natural"
    damping: float = 0.01
    smooth: float | None = None
    keep: Sequence[str] | None = None
    percentile: float = PERCENTILE

    def __post_init__(self) -> None:
        for option, allowed in _WORDS.items():
            one_of(option, getattr(self, option), allowed)
        if not isinstance(self.weights, str | Mapping | None):
            raise UsageError(f"weights={shown(self.weights)}: expected a format, or formats by the names of matrices")
        if not isinstance(self.activations, str | None):
            raise UsageError(f"activations={shown(self.activations)}: expected a format, such as int8")
        if self.keep is not None:
            listed(self.keep, "keep", "patterns")
        finite_number("percentile", self.percentile, 50.0, 100.0, above=True)
        for option, value in (("damping", self.damping), ("smooth", self.smooth)):
            if value is not None:
                finite_number(option, value, 0.0, 1.0)

    @classmethod
    def of(cls, weights: Weights, method: str, keep: Sequence[str] | None, how: Mapping[str, Any]) -> Recipe:
        """Return the recipe for weights alone, and refuse options that say nothing of them."""
        for option in how:
            one_of("option", option, ("ranges", "order", "damping", "percentile"))
        return cls(weights, method=method, keep=keep, **how)  # type: ignore[arg-type]

    @property
    def calibrates(self) -> bool:
        """Tell whether rounding asks what layers read."""
        return self.method == "gptq" or self.smooth is not None or self.has_static_scales

    @property
    def has_static_scales(self) -> bool:
        """Tell whether activations are rounded within ranges from calibration."""
        return self.activations is not None and self.scales == "static"


_WORDS: dict[str, tuple[str, ...]] = {
    "method": get_args(How),
    "ranges": get_args(Method),
    "scales": ("dynamic", "static"),
    "order": get_args(Order),
}


@dataclass(frozen=True)
class Layer:
    """One matrix that was rounded.

    One of ``.layers`` of what :func:`roofline.quant.quantize_module` returns.

    Attributes:
        name: Of its weight.
        rounded: The weight in its format.
        method: How it was rounded.
        error: Of the weight.
        output_sqnr_db: SQNR of what the layer computes on the calibration inputs, from rounding its weights
            [dB]; ``None`` without any.
    """

    name: str
    rounded: Quantized
    method: How
    error: Deviation
    output_sqnr_db: float | None

    def row(self) -> dict[str, Any]:
        """Return the figures by name."""
        size = {"format": self.rounded.format.name, "bytes": self.rounded.bits / 8}
        return {
            "weight": self.name,
            "method": self.method,
            **size,
            **self.error.row(),
            "output_sqnr_db": self.output_sqnr_db,
        }


@dataclass(frozen=True, repr=False, eq=False)
class QuantizedModel(Report):
    """A model whose weights were rounded: the numbers, their errors, and the program with its formats.

    From :func:`roofline.quant.quantize_weights` and :func:`roofline.quant.quantize_module`.

    Attributes:
        name: Of the model.
        recipe: How.
        layers: Each matrix that was rounded.
        program: The program with its formats for predictions, or ``None``.
        module: The PyTorch module that rounds, or ``None``.
        arrays: Of a program, all weights by name, rounded or not, as :func:`roofline.ops.execute` takes them.
        unchanged: Names of the matrices that stay as they were.
    """

    name: str
    recipe: Recipe
    layers: tuple[Layer, ...]
    program: Graph | None = None
    module: Any = None
    arrays: Mapping[str, Any] = field(default_factory=dict)
    unchanged: tuple[str, ...] = ()
    schema = "quantized"

    @property
    def weights(self) -> dict[str, Quantized]:
        """The rounded weights by name: codes, scales, zero points."""
        return {layer.name: layer.rounded for layer in self.layers}

    @property
    def formats(self) -> dict[str, str | None]:
        """Formats by weight name as :func:`roofline.passes.quantize` takes them; it counts the same bits."""
        return {"*": None, **{glob.escape(layer.name): stored_as(layer.rounded.format) for layer in self.layers}}

    def applied(self, graph: Graph) -> Graph:
        """Give a program of the model, such as what :func:`roofline.from_torch` captures, these formats.

        Args:
            graph: The program.

        Returns:
            What :func:`roofline.passes.quantize` makes of it, so that time and memory are of the same formats.
        """
        recipe = self.recipe
        return quantize(graph, weights=self.formats, activations=recipe.activations, scales=recipe.scales)

    def subject(self) -> dict[str, Any]:
        """Return the model and how it was quantised."""
        recipe = self.recipe
        how = {"method": recipe.method, "ranges": recipe.ranges, "activations": recipe.activations}
        return {"model": self.name, **how}

    def summary(self) -> dict[str, Any]:
        """Return what all matrices take."""
        stored = sum(each.bits for each in self.weights.values())
        elements = sum(each.codes.size for each in self.weights.values())
        bits = stored / elements if elements else None
        return {"weights_bytes": stored / 8, "bits_per_weight": bits, "unchanged": list(self.unchanged)}

    def __str__(self) -> str:
        rows = [
            f"  {layer.name}: {layer.rounded.format}, {layer.method}, SQNR {layer.error.sqnr_db:.1f} dB"
            + ("" if layer.output_sqnr_db is None else f", of its output {layer.output_sqnr_db:.1f} dB")
            for layer in self.layers
        ]
        whole = self.summary()
        size = f"{whole['weights_bytes'] / 1e6:.4g} MB, {whole['bits_per_weight']:.3f} bits per weight"
        rest = [f"  unchanged: {', '.join(self.unchanged)}"] if self.unchanged else []
        return "\n".join((f"{self.name}: {len(self.layers)} matrices, {size}", *rows, *rest))

    __repr__ = __str__

    def records(self) -> list[dict[str, Any]]:
        """Return one row per matrix."""
        return [layer.row() for layer in self.layers]


def round_layer(
    name: str, weight: Array, word: str | Format, axis: Axis, recipe: Recipe, seen: Array | Seen | None = None
) -> Layer:
    """Round one matrix as a recipe says, and measure what that does; to the nearest where no rows were seen."""
    width = rows_of(finite(weight, name), axes_of(axis, weight.ndim)).shape[-1]
    moment, is_blind = (seen.moment, seen.moment is None) if isinstance(seen, Seen) else (seen, False)
    form, moment = as_format(word, width, name), None if moment is None else checked_moment(moment, width, name)
    method: How = "nearest" if is_blind else recipe.method
    if method == "gptq":
        if moment is None:
            raise UsageError(
                f"{name}: method='gptq' needs calibration inputs: inputs={{{name!r}: ...}} (--calibration FILE)"
            )
        rounded = gptq(weight, format=form, axis=axis, second=moment, damping=recipe.damping, order=recipe.order,
                       ranges=recipe.ranges, percentile=recipe.percentile)  # fmt: skip
    else:
        rounded = round_to(weight, form, axis, within=within(weight, form, recipe.ranges, axis, recipe.percentile))
    sqnr = None
    if moment is not None:
        rows, change = (rows_of(each, rounded.axis) for each in (weight, rounded.values - weight))
        power, noise = (output_error(each.reshape(-1, len(moment)), moment).sum() for each in (rows, change))
        sqnr = decibels(float(power), float(noise))
    return Layer(name, rounded, method, deviation(weight, rounded.values), sqnr)
