"""Quantise a PyTorch module after training: hooks collect what its layers read, then round what they read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any

from roofline.frontends.torch import from_torch
from roofline.ir.errors import MissingExtra, UsageError
from roofline.ir.graph import Graph
from roofline.ir.text import shown
from roofline.ops.rounding import Format, number_format, quantized
from roofline.passes.formats.quantize import check_pair, words_for
from roofline.passes.formats.scales import activation_format, weight_format
from roofline.quant.arrays import array, like, listed
from roofline.quant.observing import AXES, Seen, copied, is_convolution, kind_of, layers_of, observe_module, weight_of
from roofline.quant.ranges import Range, calibrate
from roofline.quant.recipes import Layer, QuantizedModel, Recipe, round_layer
from roofline.quant.smoothing import smooth
from roofline.quant.words import as_format, stored_as

if TYPE_CHECKING:
    import torch


def quantize_module(module: Any, batches: Iterable[Any] = (), recipe: Recipe | str = "int8") -> QuantizedModel:
    """Round the weights of a module's linear layers and convolutions, and what these read, without training.

    Args:
        module: A ``torch.nn.Module``; it stays as it is.
        batches: Calibration inputs: tensors, tuples of arguments, or dictionaries of keyword arguments. GPTQ, static
            scales and smoothing need some.
        recipe: How, or just a format for the weights.

    Returns:
        The module that rounds (``.module``), its weights as codes and scales (``.weights``), the error of each layer.

    Raises:
        MissingExtra: PyTorch is not installed.
        UsageError: No layer to round, a pattern that names none, or no calibration inputs where they are needed.

    Example:
        >>> import torch
        >>> _ = torch.manual_seed(0)
        >>> net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
        >>> x = torch.randn(64, 16)
        >>> small = quantize_module(net, [x], Recipe("int4-g16-sym", method="gptq"))
        >>> [layer.name for layer in small.layers], bool((small.module(x) - net(x)).abs().max() < 0.3)
        (['0.weight', '2.weight'], True)
    """
    _check_torch()
    if not hasattr(module, "named_modules"):
        raise UsageError(f"quantize_module: expected a torch.nn.Module, not {shown(module)}; quantize_weights takes a "
                         "program and its arrays, quantize_arrays a checkpoint")  # fmt: skip
    if not isinstance(recipe, Recipe):
        recipe = Recipe(recipe)
    if recipe.weights is None:
        recipe = replace(recipe, weights=recipe.activations)
    words, batches = _words(module, recipe), listed(batches, "quantize_module", "batches")
    result = copied(module).eval()
    reads = {} if recipe.activations is None else {name: _read_in(result, name, words[name], recipe) for name in words}
    if not batches and recipe.calibrates:
        raise UsageError("quantize_module: GPTQ, static scales and smoothing need calibration batches")
    if recipe.smooth is not None:
        _smooth(result, batches, recipe.smooth)
    seen = observe_module(result, batches, keep=recipe.has_static_scales)
    layers = [_rounded(result, name, word, recipe, seen[name]) for name, word in words.items()]
    layers_by_name = layers_of(result)
    for name, form in reads.items():
        for layer in layers_by_name[name]:
            layer.register_forward_pre_hook(_Rounding.of(layer, form, recipe, seen[name]), with_kwargs=True)
    done = {id(layers_by_name[name][0].weight) for name in words}
    rest = tuple(name for name, each in result.named_parameters() if each.ndim > 1 and id(each) not in done)
    return QuantizedModel(type(module).__name__, recipe, tuple(layers), module=result, unchanged=rest)


def _check_torch() -> None:
    try:
        import torch  # noqa: F401
    except ImportError:
        raise MissingExtra("quantising a module needs PyTorch: pip install 'roofline[torch]'") from None


def _words(module: torch.nn.Module, recipe: Recipe) -> dict[str, str]:
    """Return the word for the format of each layer that is rounded."""
    if recipe.weights is None:
        raise UsageError("nothing to quantise: give weights or activations")
    chosen = words_for({name: (name, weight_of(name)) for name in layers_of(module)}, recipe.weights, recipe.keep)
    if not chosen:
        raise UsageError(
            f"{type(module).__name__} has no linear layer or convolution to quantise, or all are excluded; "
            "keep=() excludes none"
        )
    if made := [name for name in chosen if "weight" not in module.get_submodule(name)._parameters]:
        raise UsageError(
            f"{weight_of(made[0])} is worked out anew in each forward (weight_norm, spectral_norm, a pruning mask), so "
            "that rounding it would change nothing; make it a parameter first: torch.nn.utils.parametrize."
            "remove_parametrizations(layer, 'weight'), torch.nn.utils.remove_weight_norm or prune.remove"
        )
    return chosen


def captured(module: torch.nn.Module, batch: Any) -> Graph:
    """Return the program that a module runs on a batch: keyword arguments, arguments, or one argument."""
    if isinstance(batch, Mapping):
        return from_torch(module, kwargs=batch)
    return from_torch(module, *(batch if isinstance(batch, tuple | list) else (batch,)))


def _smooth(module: torch.nn.Module, batches: list[Any], strength: float) -> None:
    """Smooth a module in place, along the program that it runs on the first batch."""
    program = captured(module, batches[0])
    seen = observe_module(module, batches)
    state = module.state_dict()
    largest = {weight_of(name): each.largest for name, each in seen.items() if each.largest is not None}
    numbers = {name: each for name, each in state.items() if name in program.tensors}
    new = smooth(program, numbers, largest, strength)
    module.load_state_dict({**state, **{name: like(each, state[name]) for name, each in new.items()}})


def _rounded(module: torch.nn.Module, name: str, word: str, recipe: Recipe, seen: Seen) -> Layer:
    """Round the weight of a layer in place."""
    import torch

    layer: Any = module.get_submodule(name)
    made = round_layer(weight_of(name), array(layer.weight), word, AXES[kind_of(layer)], recipe, seen)
    with torch.no_grad():
        layer.weight.copy_(like(made.rounded.values, layer.weight))
    return made


def _read_in(module: torch.nn.Module, name: str, word: str, recipe: Recipe) -> str:
    """Return the format that a layer reads; it must go with that of its weights, as in the pass."""
    layer: Any = module.get_submodule(name)
    row = prod(layer.weight.shape[axis] for axis in AXES[kind_of(layer)])
    by_row = recipe.scales == "dynamic" and not is_convolution(layer)
    form = activation_format(str(recipe.activations), row if by_row else None, recipe.scales)
    check_pair(name, weight_format(stored_as(as_format(word, row, name)), row, name), form)
    return form


@dataclass(frozen=True, eq=False)
class _Rounding:
    """A hook that rounds what a layer reads: by rows of a linear layer, with one scale for all of a convolution."""

    form: Format
    axis: int
    within: Range | None = None

    @classmethod
    def of(cls, layer: Any, word: str, recipe: Recipe, seen: Seen) -> _Rounding:
        """Return the hook for a layer and the format that it reads."""
        form, axis = number_format(word), 1 - layer.weight.ndim if is_convolution(layer) else -1
        if form.per != "channel":
            return cls(form, axis)
        form = number_format(form.name, per="tensor")
        return cls(
            form,
            axis,
            calibrate(seen.inputs, form, recipe.ranges, percentile=recipe.percentile) if seen.inputs else None,
        )

    def __call__(self, layer: Any, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        if args:
            return (self._rounded(args[0]), *args[1:]), named
        return args, {name: self._rounded(x) if at == 0 else x for at, (name, x) in enumerate(named.items())}

    def _rounded(self, x: Any) -> Any:
        if not x.numel():
            return x
        limits = (None, None) if self.within is None else (self.within.low, self.within.high)
        return like(quantized(array(x), self.form, self.axis, *limits).values, x)
