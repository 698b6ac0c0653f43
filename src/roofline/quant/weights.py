"""Quantise the weights of a program by tensor name, and give the program their formats for predictions."""

from __future__ import annotations

import glob
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from roofline.ir.errors import ShapeError, UsageError, did_you_mean
from roofline.ir.graph import Graph, check_graph
from roofline.ops.elements import Array
from roofline.passes.formats.quantize import Weights, chosen, quantize, words_for
from roofline.quant.arrays import array, by_name, check_given, is_whole, listed
from roofline.quant.observing import Seen, observe
from roofline.quant.recipes import QuantizedModel, Recipe, round_layer
from roofline.quant.secondorder import hessian
from roofline.quant.words import as_format, stored_as


def quantize_weights(
    graph: Graph,
    weights: Mapping[str, Any],
    format: Weights = "int8",
    method: str = "nearest",
    inputs: Mapping[str, Any] | None = None,
    *,
    batches: Iterable[Mapping[str, Any]] = (),
    keep: Sequence[str] | None = None,
    **how: Any,
) -> QuantizedModel:
    """Round the weights of a program, and give the program their formats.

    Args:
        graph: The program: ``rl.from_torch(module, x)`` calls weights as the module's ``state_dict`` does.
        weights: Numbers by tensor name; what the program does not multiply by stays as it is.
        format: A format for all matrices, or formats by pattern, as for :func:`roofline.passes.quantize`.
        method: ``nearest`` or ``gptq``.
        inputs: What each matrix is multiplied by in calibration, by tensor name: ``[..., in]``, one or several, or
            what :func:`observe` saw of the PyTorch module.
        batches: Inputs of the program by name instead, which runs on them in numpy; refused where the program does not
            say all that it computes.
        keep: Patterns that stay; by default those of :func:`roofline.passes.quantize`.
        how: ``ranges``, ``percentile``, ``order`` and ``damping`` of a :class:`Recipe`.

    Returns:
        The rounded weights, the error of each, and the program in those formats (``.program``).

    Raises:
        UsageError: No such tensor, no numbers for a matrix, no inputs for GPTQ, an unknown word.
        ShapeError: Numbers of another shape.

    Example:
        >>> import numpy as np
        >>> from roofline.ops.builder import Builder
        >>> b = Builder("gemm", "bf16")
        >>> g = b.graph([b.op("linear", b.input("x", (8, 64)), b.weight("w", (32, 64)), name="y")])
        >>> small = quantize_weights(g, {"w": np.eye(32, 64)}, "int4-g32")
        >>> small.program.tensors["w"].dtype, small.weights["w"].codes[0, :3].tolist()
        ('int4-g32', [15, 0, 0])
    """
    check_graph(graph, "quantize_weights", "it")
    recipe = Recipe.of(format, method, keep, how)
    numbers = {name: array(each, name) for name, each in by_name(weights, "weights").items()}
    seen = {name: _seen(each) for name, each in by_name(inputs or {}, "inputs").items()}
    _check_names(graph, numbers, seen)
    if batches := listed(batches, "batches", "batches"):
        seen |= observe(graph, batches, numbers)
    layers, words = [], {}
    for matrix, word in chosen(graph, format, keep):
        name = matrix.root
        if name in words:
            continue
        check_given(numbers, [name], graph.name)
        form = as_format(word, matrix.row)
        words[name] = stored_as(form)
        layers.append(round_layer(name, numbers[name], form, matrix.summed, recipe, seen.get(name)))
    program = quantize(graph, weights={"*": None, **{glob.escape(each): word for each, word in words.items()}}, keep=())
    every, rest = {**numbers, **{layer.name: layer.rounded for layer in layers}}, _unchanged(graph, words)
    return QuantizedModel(graph.name, recipe, tuple(layers), program, arrays=every, unchanged=rest)


def _unchanged(graph: Graph, rounded: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the weights of two axes or more that stay as they are."""
    matrices = (name for name, each in graph.tensors.items() if each.kind == "weight" and len(each.shape) >= _MATRIX)
    return tuple(name for name in matrices if name not in rounded)


def quantize_arrays(
    weights: Mapping[str, Any],
    format: Weights = "int8",
    method: str = "nearest",
    inputs: Mapping[str, Any] | None = None,
    *,
    name: str = "weights",
    keep: Sequence[str] | None = None,
    **how: Any,
) -> QuantizedModel:
    """Round the matrices of a checkpoint, without a program: all floats that have two axes or more.

    Weights of linear layers are ``[out, in]`` and of convolutions ``[out, in, ...]``, as PyTorch stores them.

    Args:
        weights: Arrays by name; looked up one after the other.
        format: A format for all matrices, or formats by pattern of names, as for :func:`roofline.passes.quantize`.
        method: ``nearest`` or ``gptq``.
        inputs: What each matrix is multiplied by in calibration, by its name with or without ``.weight``:
            ``[..., in]``, or what :func:`observe` saw.
        name: What to call them.
        keep: Patterns that stay; by default those of :func:`roofline.passes.quantize`.
        how: ``ranges``, ``percentile``, ``order`` and ``damping`` of a :class:`Recipe`.

    Returns:
        The rounded matrices, and the error of each.

    Raises:
        UsageError: No matrix, a pattern that names none, no inputs for GPTQ, an unknown word.

    Example:
        >>> import numpy as np
        >>> small = quantize_arrays({"up.weight": np.eye(32, 64), "up.bias": np.zeros(32)}, "int4-g32")
        >>> print(small.layers[0].rounded.format, list(small.weights))
        int4-g32 ['up.weight']
    """
    recipe = Recipe.of(format, method, keep, how)
    names = {each: called(each) for each in by_name(weights, "weights")}
    check_inputs(inputs or {}, weights)
    if rounded := [each for each in weights if each.endswith(".codes") and f"{each[:-6]}.scale" in weights]:
        raise UsageError(f"{name}: {rounded[0]!r} was rounded already; roofline.quant.load reads it")
    layers, rest, formats = [], list[str](), words_for(names, format, keep)
    for each in names:
        stored = weights[each]
        stored = stored if hasattr(stored, "shape") else array(stored, each)
        if is_whole(stored) or len(stored.shape) < _MATRIX or 0 in stored.shape:
            continue
        if each not in formats:
            rest.append(each)
            continue
        read = next((_seen(inputs[one]) for one in names[each] if inputs and one in inputs), None)
        numbers = array(stored, each)
        layers.append(round_layer(each, numbers, formats[each], _summed(numbers), recipe, read))
    if not layers:
        raise UsageError(
            f"{name}: no matrix to quantise, or all are excluded or of whole numbers; keep=() excludes none "
            "(--weights int8,NAME=int8)"
        )
    return QuantizedModel(name, recipe, tuple(layers), unchanged=tuple(rest))


_MATRIX = 2
#: The widest kernel of a one-dimensional convolution; a last axis that is longer is what experts sum over.
_KERNEL = 16


def _summed(weight: Array) -> tuple[int, ...]:
    """Axes that one output sums over: the last; of convolutions, all but the first."""
    is_kernel = weight.ndim > _MATRIX + 1 or (weight.ndim > _MATRIX and weight.shape[-1] < _KERNEL)
    return tuple(range(1, weight.ndim)) if is_kernel else (weight.ndim - 1,)


def called(weight: str) -> tuple[str, str]:
    """Return the names that a weight of a checkpoint goes by."""
    return weight, weight.removesuffix(".weight")


def check_inputs(inputs: Mapping[str, Any], weights: Mapping[str, Any]) -> None:
    """Refuse calibration inputs of weights that there are not."""
    names = [each for weight in weights for each in called(weight)]
    if unknown := [name for name in by_name(inputs, "inputs") if name not in names]:
        near = did_you_mean(unknown[0], names) or f"; some are called {', '.join(names[:4])}"
        raise UsageError(f"inputs: no weight is called {unknown[0]!r}{near} (--calibration FILE)")


def _seen(inputs: Any) -> Array | Seen:
    return inputs if isinstance(inputs, Seen) else hessian(inputs)


def _check_names(graph: Graph, numbers: Mapping[str, Array], inputs: Mapping[str, Any]) -> None:
    for name in (*numbers, *inputs):
        if name not in graph.tensors:
            raise UsageError(f"{graph.name} has no tensor {name!r}{did_you_mean(name, graph.tensors)}")
    for name, each in numbers.items():
        if each.shape != graph.tensors[name].shape:
            raise ShapeError(f"{graph.name}: {name!r} is {list(graph.tensors[name].shape)}, not {list(each.shape)}")
