"""Convolutions over one, two and three axes, by their multiply-adds; a group has its share of the channels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from roofline.ir.graph import Node
from roofline.ir.sizes import minimum, prod
from roofline.ir.units import MAC
from roofline.ops.arrays import Call
from roofline.ops.gradients import Tape, bias_gradient, options
from roofline.ops.registry import Array, Op, Work, declare, op
from roofline.ops.windows import padded, paddings, per_axis, positions, positive, taps

_NOUNS = {"c": "input channels", "o": "output channels", "f": "output channels", "g": "groups",
          "i": "input channels in the kernel"}  # fmt: skip
#: Options that a backward takes over.
_CARRIED = ("compute", "padded", "groups", "stride", "padding", "dilation", "channels_last")


def _products(axes: str) -> Callable[..., Work]:
    """Count a multiply-add for each point of some axes."""
    names = axes.split()
    return lambda sizes: Work(flops=MAC * prod(sizes[axis] for axis in names))


def _windows(image: str, kernel: str, result: str) -> Callable[..., Work]:
    """Count the products of a convolution; steps that are longer than its window leave points of the image unread."""
    products = _products(f"n o {result} i {kernel}")
    axes = list(zip(image.split(), kernel.split(), result.split(), strict=True))

    def work(sizes: Mapping[str, Any], stride: Any = 1) -> Work:
        if not any(isinstance(step, int) and step > 1 for step in per_axis(stride, len(axes))):
            return products(sizes)
        seen = prod(minimum(sizes[of], sizes[to] * sizes[by]) for of, by, to in axes)
        return replace(products(sizes), reads={0: sizes["n"] * sizes["c"] * seen})

    return work


def _sizes(image: str, kernel: str, result: str) -> Callable[..., dict[str, Any]]:
    """Derive the axes of a result from those of the image and the kernel."""
    axes = list(zip(result.split(), image.split(), kernel.split(), strict=True))

    def derive(sizes: Mapping[str, Any], stride: Any = 1, padding: Any = 0, dilation: Any = 1) -> dict[str, Any]:
        by_axis = zip(*(per_axis(each, len(axes)) for each in (stride, padding, dilation)), strict=True)
        return {to: positions(sizes[of], sizes[by], *own) for (to, of, by), own in zip(axes, by_axis, strict=True)}

    return derive


def _transposed_sizes(image: str, kernel: str, result: str) -> Callable[..., dict[str, Any]]:
    axes = list(zip(result.split(), image.split(), kernel.split(), strict=True))

    def derive(
        sizes: Mapping[str, Any], stride: Any = 1, padding: Any = 0, output_padding: Any = 0, dilation: Any = 1
    ) -> dict[str, Any]:
        by_axis = zip(*(per_axis(each, len(axes)) for each in (stride, padding, output_padding, dilation)), strict=True)
        return {
            to: positive((sizes[of] - 1) * step - 2 * pad + gap * (sizes[by] - 1) + 1 + extra)
            for (to, of, by), (step, pad, extra, gap) in zip(axes, by_axis, strict=True)
        }

    return derive


# --- numpy: a sum over the taps of the window -------------------------------------------------------------------------


def _steps(call: Call, axes: int) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    attrs = call.attrs
    return per_axis(attrs.get("stride", 1), axes), per_axis(attrs.get("dilation", 1), axes), attrs.get("groups", 1)


def _grouped(x: Array, groups: int) -> Array:
    """Show ``(n, c, ...)`` as ``(n, groups, c / groups, ...)``."""
    return x.reshape(x.shape[0], groups, -1, *x.shape[2:])


def _biased(out: Array, bias: tuple[Array, ...]) -> Array:
    return sum((each.reshape(1, -1, *(1,) * (out.ndim - 2)) for each in bias), out)


def _convolve(call: Call, x: Array, weight: Array, *bias: Array) -> Array:
    steps, gaps, groups = _steps(call, x.ndim - 2)
    around = _grouped(padded(x, call.attrs.get("padding", 0)), groups)
    filters = weight.reshape(groups, -1, *weight.shape[1:])
    out = np.zeros((len(x), groups, weight.shape[0] // groups, *call.shape[2:]))
    for tap, seen in taps(weight.shape[2:], steps, gaps, call.shape[2:]):
        out += np.einsum("ngi...,goi->ngo...", around[:, :, :, *seen], filters[:, :, :, *tap], optimize=True)
    return _biased(out.reshape(call.shape), bias)


def _spread(
    x: Array, weight: Array, steps: Sequence[int], gaps: Sequence[int], groups: int, least: Sequence[int]
) -> Array:
    """Add the window of every point to the output, before padding is cut off; at least ``least`` points per axis."""
    sizes, window = x.shape[2:], weight.shape[2:]
    full = [
        max((size - 1) * step + gap * (wide - 1) + 1, low)
        for size, step, gap, wide, low in zip(sizes, steps, gaps, window, least, strict=True)
    ]
    points, filters = _grouped(x, groups), weight.reshape(groups, -1, *weight.shape[1:])
    out = np.zeros((len(x), groups, weight.shape[1], *full))
    for tap, seen in taps(window, steps, gaps, sizes):
        out[:, :, :, *seen] += np.einsum("ngi...,gio->ngo...", points, filters[:, :, :, *tap], optimize=True)
    return out.reshape(len(x), -1, *full)


def _convolve_transposed(call: Call, x: Array, weight: Array, *bias: Array) -> Array:
    steps, gaps, groups = _steps(call, x.ndim - 2)
    return _biased(_cut(call, x, weight, steps, gaps, groups), bias)


def _cut(call: Call, x: Array, weight: Array, steps: Sequence[int], gaps: Sequence[int], groups: int) -> Array:
    """Spread every point, and cut the padding off."""
    starts = [before for before, _ in paddings(call.attrs.get("padding", 0), x.ndim - 2)]
    ends = [start + size for start, size in zip(starts, call.shape[2:], strict=True)]
    return _spread(x, weight, steps, gaps, groups, ends)[:, :, *map(slice, starts, ends)]


def inferred_stride(call: Call, image: Sequence[int], points: Sequence[int]) -> tuple[int, ...]:
    """Return the stride of a gradient; where it carries none, by how much the image is larger."""
    own = tuple(max(1, round(size / count)) for size, count in zip(image, points, strict=True))
    return per_axis(call.attrs.get("stride", own), len(own))


# --- backward: its operators are of planes ----------------------------------------------------------------------------


def _plane(t: Tape, x: str, name: str) -> str:
    """Show an array of any number of image axes as one of two: the first are joined, a single one has height 1."""
    first, second, *axes = t.shape(x)
    return t.reshaped(x, (first, second, prod(axes[:-1]), axes[-1]), name)


def _plane_options(t: Tape, node: Node) -> dict[str, Any]:
    """Return the options of a convolution as one of planes.

    Along the height a line has none; of a volume, only those that are not by axis are taken over.
    """
    axes = len(t.shape(node.inputs[0])) - 2
    if axes == 2:
        return options(node, *_CARRIED)
    attrs = options(node, "compute", "padded", "groups", "channels_last")
    if axes == 1:
        neutral = {"stride": 1, "padding": 0, "dilation": 1}
        attrs |= {key: (neutral[key], per_axis(value, 1)[0]) for key, value in node.attrs if key in neutral}
    return attrs


def _gradient(t: Tape, node: Node, dy: str) -> None:
    x, w, *bias = node.inputs
    attrs, out = _plane_options(t, node), _plane(t, dy, "grad_plane")
    if t.needs_grad(x):
        image = t.shape(_plane(t, x, "plane"))[1:]
        filters = _plane(t, t.saved(w), "w_plane")
        back = t.op("conv2d_grad_input", out, filters, name="grad_x", like=x, image=image, **attrs)
        t.accumulate(x, t.reshaped(back, t.shape(x), "grad_x_shaped"))
    if t.needs_grad(w):
        kernel = t.shape(_plane(t, w, "w_plane"))[1:]
        plane = _plane(t, t.saved(x), "plane")
        back = t.op("conv2d_grad_weight", plane, out, name="grad_w", like=w, kernel=kernel, **attrs)
        t.accumulate(w, t.reshaped(back, t.shape(w), "grad_w_shaped"))
    bias_gradient(t, bias, dy, (0, *range(2, len(t.shape(dy)))))


def _transposed_gradient(t: Tape, node: Node, dy: str) -> None:
    """Run a plain convolution for the input; for the kernel, image and gradient change places."""
    x, w, *bias = node.inputs
    attrs = options(node, *_CARRIED)
    if t.needs_grad(x):
        t.accumulate(x, t.op("conv2d", dy, t.saved(w), name="grad_x", like=x, **attrs))
    if t.needs_grad(w):
        operands = (dy, t.saved(x))
        t.accumulate(w, t.op("conv2d_grad_weight", *operands, name="grad_w", like=w, kernel=t.shape(w)[1:], **attrs))
    bias_gradient(t, bias, dy, (0, 2, 3))


# --- the operators ----------------------------------------------------------------------------------------------------

#: For each number of axes those of the image, of the kernel, and of the result.
_AXES = {1: ("x", "r", "p"), 2: ("h w", "r s", "p q"), 3: ("d h w", "t r s", "e p q")}

for _rank, (_image, _kernel, _result) in _AXES.items():
    _fixed: dict[str, Any] = {"fixed": f"{_image} {_kernel} {_result}", "options": {"groups": "g"},
                              "defaults": {"groups": 1}, "nouns": _NOUNS}  # fmt: skip
    declare(Op(
        f"conv{_rank}d", f"n c=(g i) {_image}, o=(g u) i {_kernel}, [o] -> n o {_result}", "conv",
        f"Direct convolution of {_rank} axes: every output point sums a product for each tap and channel of its group.",
        _windows(_image, _kernel, _result), _convolve, derive=_sizes(_image, _kernel, _result),
        gradient=_gradient, **_fixed,
    ))  # fmt: skip
    if _rank > 1:
        declare(Op(
            f"conv_transpose{_rank}d", f"n c=(g v) {_image}, c o {_kernel}, [f] -> n f=(g o) {_result}", "conv",
            f"Transposed convolution of {_rank} axes: every *input* point spreads its products.",
            _products(f"n c {_image} o {_kernel}"), _convolve_transposed,
            derive=_transposed_sizes(_image, _kernel, _result),
            gradient=_transposed_gradient if _rank == 2 else None, **_fixed,
        ))  # fmt: skip


@op("conv2d_grad_input", "n o=(g u) p q, o i r s -> n c=(g i) h w", "conv", nouns=_NOUNS, fixed="h w r s p q",
    options={"image": "c h w", "groups": "g"}, defaults={"groups": None},
    formula=_products("n o p q i r s"))  # fmt: skip
def conv2d_grad_input(call: Call, grad: Array, weight: Array) -> Array:
    """Gradient of the input, whose sizes without the batch are ``image``: every output point spreads its products.

    That is the transposed convolution; a padding that the node does not carry counts as none.
    """
    _, gaps, groups = _steps(call, 2)
    return _cut(call, grad, weight, inferred_stride(call, call.shape[2:], grad.shape[2:]), gaps, groups)


@op("conv2d_grad_weight", "n c=(g i) h w, n o=(g u) p q -> o i r s", "conv", nouns=_NOUNS, fixed="h w r s p q",
    options={"kernel": "i r s", "groups": "g"}, defaults={"groups": None},
    formula=_products("n o p q i r s"))  # fmt: skip
def conv2d_grad_weight(call: Call, x: Array, grad: Array) -> Array:
    """Gradient of the kernel, whose sizes without the output channels are ``kernel``.

    What each tap saw, times the gradient of what it was added to.
    """
    steps = inferred_stride(call, x.shape[2:], grad.shape[2:])
    _, gaps, groups = _steps(call, 2)
    counts, window = grad.shape[2:], call.shape[2:]
    ends = [(count - 1) * step + gap * (wide - 1) + 1
            for count, step, gap, wide in zip(counts, steps, gaps, window, strict=True)]  # fmt: skip
    own = zip(paddings(call.attrs.get("padding", 0), 2), ends, x.shape[2:], strict=True)
    around = tuple((before, max(behind, end - size - before)) for (before, behind), end, size in own)
    image, upper, out = _grouped(padded(x, around), groups), _grouped(grad, groups), np.zeros(call.shape)
    filters: Array = out.reshape(groups, -1, *call.shape[1:])
    for tap, seen in taps(window, steps, gaps, counts):
        filters[:, :, :, *tap] = np.einsum("ngipq,ngopq->goi", image[:, :, :, *seen], upper, optimize=True)
    return out
