"""Quantise a PyTorch module after training: hooks collect what its layers read, then round what they read."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from roofline.ir.errors import MissingExtra, UsageError, did_you_mean
from roofline.ops.elements import Array
from roofline.ops.rounding import Format, number_format, quantized
from roofline.passes.formats.quantize import format_for
from roofline.passes.formats.scales import activation_format
from roofline.quant.arrays import array, like
from roofline.quant.ranges import Range, calibrate
from roofline.quant.recipes import Layer, QuantizedModel, Recipe, round_layer

if TYPE_CHECKING:
    import torch

#: Axes that one output sums over, of the layers whose weights are rounded; ``Conv1D`` is GPT-2's linear layer.
_AXES: dict[str, tuple[int, ...]] = {
    "Linear": (1,), "Conv1D": (0,), "Conv1d": (1, 2), "Conv2d": (1, 2, 3), "Conv3d": (1, 2, 3, 4),
}  # fmt: skip


def quantize_module(module: Any, batches: Any = (), recipe: Recipe | str = "int8") -> QuantizedModel:
    """Round the weights of a module's linear layers and convolutions, and what these read, without training.

    Args:
        module: A ``torch.nn.Module``; it stays as it is.
        batches: Calibration inputs: tensors, tuples of arguments, or dictionaries of keyword arguments. Needed for GPTQ
            and static scales.
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
    check_torch()
    recipe = Recipe(recipe) if isinstance(recipe, str) else recipe
    result = copy.deepcopy(module).eval()
    words = _words(result, recipe)
    batches = list(batches)
    if not batches and (recipe.method == "gptq" or (recipe.activations and recipe.scales == "static")):
        raise UsageError("quantize_module: GPTQ and static scales need calibration batches")
    seen = observe(result, list(words), batches, keep=recipe.scales == "static" and bool(recipe.activations))
    layers = [
        _rounded(result, name, word, recipe, seen[name]) for name, word in words.items() if recipe.weights is not None
    ]
    if recipe.activations is not None:
        for name in words:
            layer = result.get_submodule(name)
            layer.register_forward_pre_hook(_Rounding.of(layer, recipe, seen[name]))
    arrays = {name: array(each) for name, each in result.state_dict().items()}
    return QuantizedModel(type(module).__name__, recipe, tuple(layers), module=result, arrays=arrays)


def check_torch() -> None:
    """Refuse to go on without PyTorch."""
    try:
        import torch  # noqa: F401
    except ImportError:
        raise MissingExtra("quantising a module needs PyTorch: pip install 'roofline[torch]'") from None


def layers_of(module: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """Return the linear layers and convolutions of a module by name; those that share a weight once."""
    every: dict[str, torch.nn.Module] = {}
    weights: set[int] = set()
    for name, each in module.named_modules():
        if _kind(each) and id(each.weight) not in weights:
            every[name] = each
            weights.add(id(each.weight))
    return every


def _kind(layer: Any) -> str:
    """Return the class of a layer that is known, or that it derives from."""
    return next((kind.__name__ for kind in type(layer).__mro__ if kind.__name__ in _AXES), "")


def _words(module: torch.nn.Module, recipe: Recipe) -> dict[str, str]:
    """Return the word for each layer's format; without a format of weights, that of activations."""
    formats = recipe.weights if recipe.weights is not None else recipe.activations
    if formats is None:
        raise UsageError("nothing to quantise: give weights or activations")
    table = {"*": formats} if isinstance(formats, str) else dict(formats)
    layers = layers_of(module)
    names = [each for name in layers for each in (name, f"{name}.weight")]
    for pattern in (*table, *(recipe.keep or ())):
        if (
            pattern != "*"
            and format_for([pattern], {pattern: "x"}, ())
            and not any(format_for([each], {pattern: "x"}, ()) for each in names)
        ):
            raise UsageError(f"no layer matches {pattern!r}{did_you_mean(pattern, names)}")
    words = {name: format_for((name, f"{name}.weight"), table, recipe.keep) for name in layers}
    chosen = {name: word for name, word in words.items() if word is not None}
    if not chosen:
        raise UsageError(f"{type(module).__name__} has no linear layer or convolution to quantise; keep=() keeps none")
    return chosen


# --- what layers read ------------------------------------------------------------------------------------------------


@dataclass
class Seen:
    """What a layer read in calibration.

    Attributes:
        moment: ``2 X^T X / n`` of its rows, or ``None`` where it read nothing, or is no matmul of rows (groups).
        inputs: Its inputs, where they were asked for.
    """

    moment: Array | None = None
    rows: int = 0
    inputs: list[Array] = field(default_factory=list)

    def add(self, layer: Any, x: Array, keep: bool) -> None:
        """Take in one call."""
        if keep:
            self.inputs.append(x)
        rows = _rows(layer, x)
        if rows is not None:
            old = 0.0 if self.moment is None else self.moment * self.rows
            self.rows += len(rows)
            self.moment = (old + 2.0 * rows.T @ rows) / self.rows


def observe(
    module: torch.nn.Module, names: Iterable[str], batches: Iterable[Any], keep: bool = False
) -> dict[str, Seen]:
    """Run batches and return what layers read, as second moments, and as they are if asked for."""
    import torch

    seen = {name: Seen() for name in names}
    handles = [
        layer.register_forward_pre_hook(lambda each, args, name=name: seen[name].add(each, array(args[0]), keep))
        for name in seen
        for layer in [module.get_submodule(name)]
    ]
    try:
        with torch.no_grad():
            for batch in batches:
                call(module, batch)
    finally:
        for handle in handles:
            handle.remove()
    return seen


def call(module: Callable[..., Any], batch: Any) -> Any:
    """Call a module with a batch: a dictionary of keyword arguments, a tuple or list of arguments, or one argument."""
    if isinstance(batch, Mapping):
        return module(**batch)
    return module(*batch) if isinstance(batch, tuple | list) else module(batch)


def _rows(layer: Any, x: Array) -> Array | None:
    """Return what each output sums over as rows: of a convolution, its windows (im2col)."""
    kind = _kind(layer)
    if not kind.startswith("Conv") or kind == "Conv1D":
        return x.reshape(-1, x.shape[-1])
    if kind == "Conv3d" or layer.groups > 1 or isinstance(layer.padding, str):
        return None
    import torch

    sizes = [layer.kernel_size, layer.dilation, layer.padding, layer.stride]
    if kind == "Conv1d":  # as an image of one row
        x, sizes = x[..., None, :], [(neutral, *size) for neutral, size in zip((1, 1, 0, 1), sizes, strict=True)]
    windows = torch.nn.functional.unfold(torch.from_numpy(x), *sizes)
    return np.asarray(windows.transpose(1, 2).reshape(-1, windows.shape[1]))


def _rounded(module: torch.nn.Module, name: str, word: str, recipe: Recipe, seen: Seen) -> Layer:
    import torch

    layer: Any = module.get_submodule(name)
    if seen.moment is None:  # grouped convolutions, and layers that something else than their forward reads
        recipe = replace(recipe, method="nearest")
    made = round_layer(f"{name}.weight", array(layer.weight), word, _AXES[_kind(layer)], recipe, seen.moment)
    with torch.no_grad():
        layer.weight.copy_(like(made.rounded.values, layer.weight))
    return made


@dataclass
class _Rounding:
    """A hook that rounds what a layer reads."""

    form: Format
    axis: int
    within: Range | None = None

    @classmethod
    def of(cls, layer: Any, recipe: Recipe, seen: Seen) -> _Rounding:
        """Round by rows of a linear layer; what convolutions read has one scale."""
        axis, kind = (-1, _kind(layer)) if not _kind(layer).startswith("Conv") or _kind(layer) == "Conv1D" else (1, "")
        word = str(recipe.activations)
        if kind and recipe.scales == "dynamic":
            row = layer.weight.shape[_AXES[kind][0]]
            return cls(number_format(activation_format(word, row, "dynamic")), axis)
        form = number_format(f"{word}-tensor" if word in ("int8", "fp8") else word)
        static = recipe.scales == "static" and form.per == "tensor" and bool(seen.inputs)
        return cls(form, axis, calibrate(seen.inputs, form, recipe.ranges) if static else None)

    def __call__(self, layer: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        limits = (None, None) if self.within is None else (self.within.low, self.within.high)
        return (like(quantized(array(args[0]), self.form, self.axis, *limits).values, args[0]), *args[1:])
