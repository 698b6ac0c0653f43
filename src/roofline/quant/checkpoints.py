"""Formats for the matrices of a checkpoint under a limit, where there is no program to measure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from roofline.analysis.estimates import estimate
from roofline.hardware.library import AnyChip
from roofline.hardware.library import chip as find_chip
from roofline.ir.errors import DoesNotFit, UsageError
from roofline.ir.numbers import whole_number
from roofline.ops.builder import Builder
from roofline.quant.bit_widths import HELD, limit_text, one_limit
from roofline.quant.fronts import Front, front
from roofline.quant.recipes import Layer
from roofline.quant.sensitivities import with_formats
from roofline.quant.weights import called, check_inputs, quantize_arrays
from roofline.quant.words import stored_as


def formats_within(
    weights: Mapping[str, Any],
    formats: Sequence[str],
    memory_limit: str | float | None = None,
    method: str = "nearest",
    inputs: Mapping[str, Any] | None = None,
    *,
    error_limit: float | None = None,
    latency_limit: str | float | None = None,
    chip: AnyChip | None = None,
    batch: int = 1,
    **how: Any,
) -> dict[str, str]:
    """Choose a format for each matrix of a checkpoint: the least error within a size or a time, or the reverse.

    The error of a matrix is the noise in what it computes on ``inputs``, over its power; without inputs, that of its
    weights. Errors are added up over matrices, as if each mattered as much, and times as if one ran after the other;
    :func:`roofline.quant.mixed` measures how much each does, given the program.

    Args:
        weights: Arrays by name, as for ``quantize_arrays``.
        formats: Words to choose among; a matrix whose rows a group does not divide goes without.
        memory_limit: The size of all matrices that are rounded, with scales [byte], or text such as ``"5 GB"``.
        method: ``nearest`` or ``gptq``.
        inputs: What each matrix is multiplied by in calibration, by its name.
        error_limit: The sum of errors instead; the formats have the least size, on a chip the least time.
        latency_limit: The time of all matmuls on a chip instead [s], or text such as ``"2 ms"``.
        chip: Where they run, in 16 bits besides the weights.
        batch: Rows that each is multiplied by.
        how: ``ranges``, ``percentile``, ``order``, ``damping`` of a :class:`Recipe`, and ``keep``.

    Returns:
        A format by the name of each matrix.

    Raises:
        UsageError: No format, none that fits a matrix, no matrix, or not one limit.
        DoesNotFit: No choice of these formats is within it.

    Example:
        >>> rough, plain = np.random.default_rng(0).standard_t(2, (64, 64)), np.ones((64, 64))
        >>> formats_within({"up.weight": rough, "down.weight": plain}, ["int8", "int4-g32"], "7 kB")
        {'up.weight': 'int8', 'down.weight': 'int4-g32'}
        >>> formats_within({"up.weight": rough, "down.weight": plain}, ["int8", "int4-g32"], error_limit=1e-3)
        {'up.weight': 'int8', 'down.weight': 'int4-g32'}
    """
    what, limit = one_limit({"error": error_limit, "latency": latency_limit, "memory": memory_limit})
    if not what:
        raise UsageError("formats_within: give memory_limit, error_limit or latency_limit")
    if HELD.get(what) == ("memory" if chip is not None else "time"):
        raise UsageError("latency_limit needs chip (--chip), and memory_limit goes without")
    options = _options(weights, formats, method, inputs, _bytes if chip is None else _seconds(chip, batch), how)
    costs, errors = ([[pair[part] for pair in row.values()] for row in options.values()] for part in (0, 1))
    picks = _within(front(costs, errors), what, limit)
    return {name: list(row)[pick] for (name, row), pick in zip(options.items(), picks, strict=True)}


def _within(best: Front, what: str, limit: float) -> Sequence[int]:
    """Return the choice at the end of what a limit leaves of a front."""
    held = best.errors if what == "error" else best.costs[::-1]  # both fall
    at = int((held > limit).sum())
    if at == len(held):
        verb, option = ("add", "error-budget") if what == "error" else ("take", f"{what}-limit")
        least = limit_text(what, float(held[-1]))
        raise DoesNotFit(
            f"{what}_limit={limit_text(what, limit)}: these formats {verb} {least} at least (--{option}, --mixed)"
        )
    return list(best.choices[at if what == "error" else len(held) - 1 - at])


def _options(
    weights: Mapping[str, Any], formats: Sequence[str], method: str, inputs: Mapping[str, Any] | None,
    cost: Callable[[Layer], float], how: Mapping[str, Any],
) -> dict[str, dict[str, tuple[float, float]]]:  # fmt: skip
    """Cost and error of each matrix in each format that it can have."""
    options: dict[str, dict[str, tuple[float, float]]] = {}
    refused: list[UsageError] = []
    check_inputs(inputs or {}, weights)
    for name in weights:
        own = {each: inputs[each] for each in called(name) if inputs and each in inputs}
        for word in formats:
            try:
                layer = quantize_arrays({name: weights[name]}, word, method, own, name=name, **how).layers[0]
            except UsageError as error:  # no matrix, or groups that do not divide it
                refused.append(error)
                continue
            options.setdefault(name, {})[word] = cost(layer), _noise(layer)
    if not options:
        raise refused[0] if refused else UsageError("mixed: give formats to choose among, such as int8,int4-g128")
    return options


def _bytes(layer: Layer) -> float:
    return layer.rounded.bits / 8


def _seconds(chip: AnyChip, batch: int) -> Callable[[Layer], float]:
    """Return what tells the time of a matrix in its format, times so many rows."""
    target, rows = find_chip(chip), whole_number("batch", batch)

    @cache
    def seconds(shape: tuple[int, ...], word: str) -> float:
        b = Builder("matmul", "bf16")
        graph = b.graph([b.op("linear", b.input("x", (rows, shape[1])), b.weight("w", shape), name="y")])
        return float(estimate(with_formats(graph, {"w": word}), target, mode="graph").time)

    def of(layer: Layer) -> float:
        shape = layer.rounded.shape
        if len(shape) != _MATRIX:
            raise DoesNotFit(f"{layer.name} has {len(shape)} axes; only a program says how long it takes: "
                             "roofline.quant.mixed (--memory-limit and --error-budget need none)")  # fmt: skip
        return seconds(shape, stored_as(layer.rounded.format))

    return of


_MATRIX = 2


def _noise(layer: Layer) -> float:
    decibels = layer.error.sqnr_db if layer.output_sqnr_db is None else layer.output_sqnr_db
    return float(10 ** (-decibels / 10)) if np.isfinite(decibels) else 0.0
