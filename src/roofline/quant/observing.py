"""What matrices are multiplied by in calibration: second moments, largest magnitudes, and the inputs themselves."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from roofline.ir.errors import UsageError
from roofline.ir.graph import Graph, Node
from roofline.ir.text import shown
from roofline.ops.elements import Array
from roofline.ops.reference import run
from roofline.ops.registry import OPS
from roofline.ops.windows import padded, per_axis, taps, window
from roofline.passes.formats.quantize import weight_matrices
from roofline.passes.rewriting.clean import settled
from roofline.quant.arrays import array, by_name, check_given, finite, listed

if TYPE_CHECKING:
    import torch

#: Axes that one output sums over, of the layers whose weights are rounded; ``Conv1D`` is GPT-2's linear layer.
AXES: dict[str, tuple[int, ...]] = {
    "Linear": (1,), "Conv1D": (0,), "Conv1d": (1, 2), "Conv2d": (1, 2, 3), "Conv3d": (1, 2, 3, 4),
}  # fmt: skip


@dataclass(eq=False)
class Seen:
    """What a matrix was multiplied by in calibration.

    From :func:`roofline.quant.observe`.

    Attributes:
        rows: How many rows it read, of all layers that have it.
        moment: ``2 X^T X / rows``, as GPTQ takes it; of convolutions, of their windows. ``None`` where it read nothing,
            or is no matmul of rows (grouped convolutions).
        largest: Of each input channel, the largest magnitude, as SmoothQuant takes it.
        inputs: All that it read, where that was asked for.
    """

    rows: int = 0
    moment: Array | None = None
    largest: Array | None = None
    inputs: list[Array] = field(default_factory=list)

    def add(self, x: Array, rows: Array | None, channel: int, keep: bool) -> None:
        """Take in one call: what was read, the rows that are multiplied, and the axis of channels."""
        if keep:
            self.inputs.append(x)
        top = np.abs(x).max(axis=tuple(at for at in range(x.ndim) if at != channel % x.ndim), initial=0.0)
        self.largest = top if self.largest is None else np.maximum(self.largest, top)
        if rows is not None and len(rows):
            old = 0.0 if self.moment is None else self.moment * self.rows
            self.rows += len(rows)
            self.moment = (old + 2.0 * rows.T @ rows) / self.rows


def observe(
    program: Any, batches: Iterable[Any], weights: Mapping[str, Any] | None = None, *, keep: bool = False
) -> dict[str, Seen]:
    """Run calibration batches and look at what each matrix is multiplied by.

    Args:
        program: A PyTorch module, which runs as in ``eval()`` and stays as it is, or a graph, which runs in numpy.
        batches: Of a module: tensors, tuples of arguments, or dictionaries of keyword arguments. Of a graph: arrays by
            the name of an input.
        weights: Of a graph: arrays by the name of a weight.
        keep: Keep all that was read, too.

    Returns:
        What was seen, by the name of the weight.

    Raises:
        UsageError: No batches, numbers that are not finite, a weight without numbers, an input that is not there, or
            a graph that does not say all that it computes (a dropout, a program by its configuration).
        ShapeError: An array of another shape than the tensor.

    Example:
        >>> from roofline.ops.builder import Builder
        >>> b = Builder("gemm", "fp32")
        >>> g = b.graph([b.op("linear", b.input("x", (2, 2)), b.weight("w", (3, 2)), name="y")])
        >>> observe(g, [{"x": [[1.0, 2.0], [3.0, 4.0]]}], {"w": np.ones((3, 2))})["w"].moment.tolist()
        [[10.0, 14.0], [14.0, 20.0]]
    """
    batches = listed(batches, "observe", "batches")
    if not batches:
        raise UsageError("observe: there are no batches")
    if isinstance(program, Graph):
        return _observe_graph(program, batches, weights or {}, keep)
    return {weight_of(name): each for name, each in observe_module(program, batches, keep).items()}


def _observe_graph(
    graph: Graph, batches: Iterable[Mapping[str, Any]], weights: Mapping[str, Any], keep: bool
) -> dict[str, Seen]:
    matrices = {
        matrix.node.name: matrix for matrix in weight_matrices(graph)
        if OPS[matrix.node.op].kind in ("matmul", "conv") and matrix.position == 1
    }  # fmt: skip
    seen = {matrix.root: Seen() for matrix in matrices.values()}
    if drawn := left_open(graph, [matrix.node.inputs[0] for matrix in matrices.values()]):
        raise UsageError(
            f"{graph.name}: {drawn[0]} leaves open what it computes, so that calibration would be on drawn numbers; "
            "run the module instead: inputs=rl.quant.observe(module, batches)"
        )
    check_given(weights, seen, graph.name)

    def watch(node: Node, inputs: list[Array], result: Array) -> None:
        if node.name in matrices:
            x = finite(inputs[0], f"what {node.name} reads in calibration")
            is_image = OPS[node.op].kind == "conv"
            rows = _image_rows(node, x, inputs[1]) if is_image else x.reshape(-1, x.shape[-1])
            seen[matrices[node.name].root].add(x, rows, 1 if is_image else -1, keep)

    numbers = {name: array(each, name) for name, each in weights.items()}
    for batch in batches:
        run(
            graph,
            {**numbers, **{name: array(each, name) for name, each in by_name(batch, "a batch").items()}},
            0,
            False,
            watch,
            {},
        )
    return seen


def _image_rows(node: Node, x: Array, weight: Array) -> Array | None:
    attrs, axes = dict(node.attrs), x.ndim - 2
    if node.op != f"conv{axes}d" or attrs.get("groups", 1) > 1:
        return None
    steps = (per_axis(attrs.get(each, 1), axes) for each in ("stride", "dilation"))
    return _windows(padded(x, attrs.get("padding", 0)), weight.shape[2:], *steps)


def _windows(x: Array, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> Array:
    """Return what each output of a convolution of padded images sums over, as rows (im2col)."""
    sizes = zip(x.shape[2:], kernel, stride, dilation, strict=True)
    counts = [window(size, wide, step, 0, gap) for size, wide, step, gap in sizes]
    seen = np.stack([x[:, :, *places] for _, places in taps(kernel, stride, dilation, counts)], axis=2)
    columns = seen.shape[1] * seen.shape[2]
    return seen.reshape(len(x), columns, -1).swapaxes(1, 2).reshape(-1, columns)


def left_open(graph: Graph, names: Iterable[str]) -> list[str]:
    """Return the nodes before some tensors whose operands and options do not say all that they compute."""
    needed, drawn = set(names), list[str]()
    for node in reversed(graph.nodes):
        if needed.intersection(node.outputs):
            needed.update(node.inputs)
            attrs = dict(node.attrs)
            is_number = node.op == "fill" and "value" in attrs
            is_known = settled(node) and (node.op != "attention_softmax" or "scale" in attrs)
            if not (is_number or is_known):
                drawn.append(node.name)
    return drawn[::-1]


# --- modules ---------------------------------------------------------------------------------------------------------


def check_module(module: Any, what: str) -> None:
    """Refuse what is no PyTorch module."""
    if not hasattr(module, "named_modules"):
        raise UsageError(f"{what}: expected a torch.nn.Module, not {shown(module)}")


def copied(module: torch.nn.Module) -> torch.nn.Module:
    """Return a copy of a module.

    Raises:
        UsageError: It has none.
    """
    try:
        return copy.deepcopy(module)
    except (RuntimeError, TypeError) as error:
        raise UsageError(
            f"{type(module).__name__} cannot be copied ({str(error).splitlines()[0]}); what torch.nn.utils.weight_norm "
            "made of a layer, torch.nn.utils.remove_weight_norm takes back"
        ) from None


def layers_of(module: torch.nn.Module) -> dict[str, list[Any]]:
    """Return the linear layers and convolutions of a module; those that share a weight by the name of the first."""
    first: dict[int, str] = {}
    every: dict[str, list[Any]] = {}
    for name, each in module.named_modules():
        if kind_of(each):
            every.setdefault(first.setdefault(id(each._parameters.get("weight", each)), name), []).append(each)
    return every


def weight_of(name: str) -> str:
    """Return the name of a layer's weight; the module itself has no name."""
    return f"{name}.weight" if name else "weight"


def kind_of(layer: Any) -> str:
    """Return the class of a layer that is known, or that it derives from; empty of another."""
    return next((kind.__name__ for kind in type(layer).__mro__ if kind.__name__ in AXES), "")


def is_convolution(layer: Any) -> bool:
    """Tell whether a layer reads images, or signals, whose channels come first."""
    return kind_of(layer) in ("Conv1d", "Conv2d", "Conv3d")


def observe_module(module: torch.nn.Module, batches: Iterable[Any], keep: bool = False) -> dict[str, Seen]:
    """Run batches and return what layers read, by their names."""
    check_module(module, "observe")
    layers = layers_of(module)
    seen = {name: Seen() for name in layers}

    def look(name: str, layer: Any, read: Any) -> None:
        x = finite(array(read), f"what {name} reads in calibration")
        seen[name].add(x, _rows(layer, x), 1 - layer.weight.ndim if is_convolution(layer) else -1, keep)

    with hooked(module, layers, look):
        for batch in batches:
            call(module, batch)
    return seen


@contextmanager
def hooked(
    module: torch.nn.Module, layers: Mapping[str, Iterable[Any]], look: Callable[[str, Any, Any], None]
) -> Iterator[None]:
    """Show what layers read, with their names, while a module rests and gradients are not kept."""
    import torch

    def show(name: str, layer: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        look(name, layer, args[0] if args else next(iter(named.values()), None))

    handles = [
        layer.register_forward_pre_hook(partial(show, name), with_kwargs=True)
        for name, every in layers.items() for layer in every
    ]  # fmt: skip
    try:
        with resting(module), torch.no_grad():
            yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def resting(module: torch.nn.Module) -> Iterator[None]:
    """Run a module as for inference; each part is in the mode that it was in afterwards."""
    check_module(module, "module")
    modes = [(each, each.training) for each in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for each, mode in modes:
            each.training = mode


def call(module: Callable[..., Any], batch: Any) -> Any:
    """Run a module on a batch: keyword arguments, arguments, or one argument."""
    if isinstance(batch, Mapping):
        return module(**batch)
    return module(*batch) if isinstance(batch, tuple | list) else module(batch)


#: How convolutions pad, as :func:`numpy.pad` calls it.
_PADS: dict[str, Any] = {"zeros": "constant", "circular": "wrap", "reflect": "reflect", "replicate": "edge"}


def _rows(layer: Any, x: Array) -> Array | None:
    """Return what each output sums over as rows: of a convolution, its windows."""
    if not is_convolution(layer):
        return x.reshape(-1, x.shape[-1])
    if layer.groups > 1:
        return None
    flat = layer._reversed_padding_repeated_twice  # from the last axis on, as torch.nn.functional.pad has it
    sides = [(0, 0), (0, 0), *list(zip(flat[::2], flat[1::2], strict=True))[::-1]]
    images = np.pad(x.reshape(-1, *x.shape[1 - layer.weight.ndim :]), sides, mode=_PADS[layer.padding_mode])
    return _windows(images, layer.kernel_size, layer.stride, layer.dilation)
