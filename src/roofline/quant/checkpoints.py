"""Formats for the matrices of a checkpoint under a limit of its size, where there is no program to measure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from roofline.ir.errors import DoesNotFit, UsageError
from roofline.ir.units import format_si, parse
from roofline.quant.fronts import front
from roofline.quant.recipes import Layer
from roofline.quant.weights import quantize_arrays


def formats_within(
    weights: Mapping[str, Any],
    formats: Sequence[str],
    memory_limit: str | float,
    method: str = "nearest",
    inputs: Mapping[str, Any] | None = None,
    **how: Any,
) -> dict[str, str]:
    """Choose a format for each matrix of a checkpoint: the least error that fits a size.

    The error of a matrix is the noise in what it computes on ``inputs``, over its power; without inputs, that of its
    weights. Errors are added up over matrices, as if each mattered as much; :func:`roofline.quant.mixed` measures how
    much each does, given the program.

    Args:
        weights: Arrays by name, as for ``quantize_arrays``.
        formats: Words to choose among; a matrix whose rows a group does not divide goes without.
        memory_limit: The size of all matrices that are rounded, with scales [byte], or text such as ``"5 GB"``.
        method: ``nearest`` or ``gptq``.
        inputs: What each matrix is multiplied by in calibration, by its name.
        how: ``ranges``, ``order``, ``damping`` of a :class:`Recipe`, and ``keep``.

    Returns:
        A format by the name of each matrix.

    Raises:
        UsageError: No format, none that fits a matrix, or no matrix.
        DoesNotFit: Even the smallest formats are larger.

    Example:
        >>> rough, plain = np.random.default_rng(0).standard_t(2, (64, 64)), np.ones((64, 64))
        >>> formats_within({"up.weight": rough, "down.weight": plain}, ["int8", "int4-g32"], "7 kB")
        {'up.weight': 'int8', 'down.weight': 'int4-g32'}
    """
    limit = parse(memory_limit, "B", "memory_limit")
    options = _options(weights, formats, method, inputs, how)
    sizes, errors = ([[pair[part] for pair in row.values()] for row in options.values()] for part in (0, 1))
    best = front(sizes, errors)
    fitting = int((best.costs <= limit).sum())
    if not fitting:
        least = format_si(float(best.costs[0]), "B")
        raise DoesNotFit(f"memory_limit={memory_limit}: these formats take {least} at least (--memory-limit, --mixed)")
    picks = best.choices[fitting - 1]
    return {name: list(row)[pick] for (name, row), pick in zip(options.items(), picks, strict=True)}


def _options(
    weights: Mapping[str, Any], formats: Sequence[str], method: str, inputs: Mapping[str, Any] | None,
    how: Mapping[str, Any],
) -> dict[str, dict[str, tuple[float, float]]]:  # fmt: skip
    """Size and error of each matrix in each format that it can have."""
    options: dict[str, dict[str, tuple[float, float]]] = {}
    refused: list[UsageError] = []
    for name in weights:
        for word in formats:
            try:
                layer = quantize_arrays({name: weights[name]}, word, method, inputs, name=name, **how).layers[0]
            except UsageError as error:  # no matrix, or groups that do not divide it
                refused.append(error)
                continue
            options.setdefault(name, {})[word] = layer.rounded.bits / 8, _noise(layer)
    if not options:
        raise refused[0] if refused else UsageError("mixed: give formats to choose among, such as int8,int4-g128")
    return options


def _noise(layer: Layer) -> float:
    decibels = layer.error.sqnr_db if layer.output_sqnr_db is None else layer.output_sqnr_db
    return float(10 ** (-decibels / 10)) if np.isfinite(decibels) else 0.0
