"""Convolutions of one, two and three axes, by the products that they sum; a group has its share of the channels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from roofline.ir.graph import Node
from roofline.ir.sizes import prod
from roofline.ir.units import MAC
from roofline.ops.arrays import Call
from roofline.ops.gradients import Tape, bias_gradient, options
from roofline.ops.registry import Array, Work, op
from roofline.ops.windows import padded, paddings, per_axis, positions, positive, taps

_NOUNS = {"c": "input channels", "o": "output channels", "f": "output channels", "g": "groups",
          "i": "input channels in the kernel"}  # fmt: skip
_GROUPS: dict[str, Any] = {"options": {"groups": "g"}, "defaults": {"groups": 1}, "nouns": _NOUNS}


def _products(axes: str) -> Callable[..., Work]:
    """Count a multiply-add for each point of some axes."""
    names = axes.split()
    return lambda sizes: Work(flops=MAC * prod(sizes[axis] for axis in names))


def _sizes(image: str, kernel: str, result: str) -> Callable[..., dict[str, Any]]:
    """Derive the result's axes from the image's and the kernel's."""

    def derive(sizes: Mapping[str, Any], stride: Any = 1, padding: Any = 0, dilation: Any = 1) -> dict[str, Any]:
        by_axis = (per_axis(each, len(image)) for each in (stride, padding, dilation))
        axes = zip(result, image, kernel, *by_axis, strict=True)
        return {to: positions(sizes[of], sizes[taps_], *rest) for to, of, taps_, *rest in axes}

    return derive


def _transposed_sizes(image: str, kernel: str, result: str) -> Callable[..., dict[str, Any]]:
    def derive(
        sizes: Mapping[str, Any], stride: Any = 1, padding: Any = 0, output_padding: Any = 0, dilation: Any = 1
    ) -> dict[str, Any]:
        by_axis = (per_axis(each, len(image)) for each in (stride, padding, output_padding, dilation))
        return {
            to: positive((sizes[of] - 1) * step - 2 * pad + gap * (sizes[taps_] - 1) + 1 + extra)
            for to, of, taps_, step, pad, extra, gap in zip(result, image, kernel, *by_axis, strict=True)
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


def _inferred(call: Call, image: Sequence[int], points: Sequence[int]) -> tuple[int, ...]:
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
        return options(node)
    attrs = options(node, "compute", "padded", "groups", "channels_last")
    if axes == 1:
        neutral = {"stride": 1, "padding": 0, "dilation": 1}
        attrs |= {key: (neutral[key], per_axis(value, 1)[0]) for key, value in node.attrs if key in neutral}
    return attrs


def _gradient(t: Tape, node: Node, dy: str) -> None:
    x, w, *bias = node.inputs
    attrs, out = _plane_options(t, node), _plane(t, dy, "grad_plane")
    if t.wants(x):
        image = t.shape(_plane(t, x, "plane"))[1:]
        filters = _plane(t, t.kept(w), "w_plane")
        back = t.op("conv2d_grad_input", out, filters, name="grad_x", like=x, image=image, **attrs)
        t.give(x, t.reshaped(back, t.shape(x), "grad_x_shaped"))
    if t.wants(w):
        kernel = t.shape(_plane(t, w, "w_plane"))[1:]
        plane = _plane(t, t.kept(x), "plane")
        back = t.op("conv2d_grad_weight", plane, out, name="grad_w", like=w, kernel=kernel, **attrs)
        t.give(w, t.reshaped(back, t.shape(w), "grad_w_shaped"))
    bias_gradient(t, bias, dy, (0, *range(2, len(t.shape(dy)))))


def _transposed_gradient(t: Tape, node: Node, dy: str) -> None:
    """Run a plain convolution for the input; for the kernel, image and gradient change places."""
    x, w, *bias = node.inputs
    attrs = options(node)
    if t.wants(x):
        t.give(x, t.op("conv2d", dy, t.kept(w), name="grad_x", like=x, **attrs))
    if t.wants(w):
        operands = (dy, t.kept(x))
        t.give(w, t.op("conv2d_grad_weight", *operands, name="grad_w", like=w, kernel=t.shape(w)[1:], **attrs))
    bias_gradient(t, bias, dy, (0, 2, 3))


# --- the operators ----------------------------------------------------------------------------------------------------


@op("conv1d", "n c=(g i) x, o=(g u) i r, [o] -> n o p", "conv", **_GROUPS, fixed="x r p",
    formula=_products("n o p i r"), derive=_sizes("x", "r", "p"), gradient=_gradient)  # fmt: skip
def conv1d(call: Call, *arrays: Array) -> Array:
    """One-dimensional convolution."""
    return _convolve(call, *arrays)


@op("conv2d", "n c=(g i) h w, o=(g u) i r s, [o] -> n o p q", "conv", **_GROUPS, fixed="h w r s p q",
    formula=_products("n o p q i r s"), derive=_sizes("hw", "rs", "pq"), gradient=_gradient)  # fmt: skip
def conv2d(call: Call, *arrays: Array) -> Array:
    """Direct convolution: every output point sums ``i*r*s`` products (groups are in ``i``)."""
    return _convolve(call, *arrays)


@op("conv3d", "n c=(g i) d h w, o=(g u) i t r s, [o] -> n o e p q", "conv", **_GROUPS, fixed="d h w t r s e p q",
    formula=_products("n o e p q i t r s"), derive=_sizes("dhw", "trs", "epq"), gradient=_gradient)  # fmt: skip
def conv3d(call: Call, *arrays: Array) -> Array:
    """Three-dimensional convolution, of videos and volumes."""
    return _convolve(call, *arrays)


@op("conv_transpose2d", "n c=(g v) h w, c o r s, [f] -> n f=(g o) p q", "conv", **_GROUPS, fixed="h w r s p q",
    formula=_products("n c h w o r s"), derive=_transposed_sizes("hw", "rs", "pq"),
    gradient=_transposed_gradient)  # fmt: skip
def conv_transpose2d(call: Call, *arrays: Array) -> Array:
    """Transposed convolution: every *input* point spreads ``o*r*s`` products."""
    return _convolve_transposed(call, *arrays)


@op("conv_transpose3d", "n c=(g v) d h w, c o t r s, [f] -> n f=(g o) e p q", "conv", **_GROUPS,
    fixed="d h w t r s e p q", formula=_products("n c d h w o t r s"),
    derive=_transposed_sizes("dhw", "trs", "epq"))  # fmt: skip
def conv_transpose3d(call: Call, *arrays: Array) -> Array:
    """Transposed convolution of videos and volumes: every *input* point spreads its products."""
    return _convolve_transposed(call, *arrays)


@op("conv2d_grad_input", "n o=(g u) p q, o i r s -> n c=(g i) h w", "conv", nouns=_NOUNS, fixed="h w r s p q",
    options={"image": "c h w", "groups": "g"}, defaults={"groups": None},
    formula=_products("n o p q i r s"))  # fmt: skip
def conv2d_grad_input(call: Call, grad: Array, weight: Array) -> Array:
    """Gradient of the input, whose sizes without the batch are ``image``: every output point spreads its products.

    That is the transposed convolution; a padding that the node does not carry counts as none.
    """
    _, gaps, groups = _steps(call, 2)
    return _cut(call, grad, weight, _inferred(call, call.shape[2:], grad.shape[2:]), gaps, groups)


@op("conv2d_grad_weight", "n c=(g i) h w, n o=(g u) p q -> o i r s", "conv", nouns=_NOUNS, fixed="h w r s p q",
    options={"kernel": "i r s", "groups": "g"}, defaults={"groups": None},
    formula=_products("n o p q i r s"))  # fmt: skip
def conv2d_grad_weight(call: Call, x: Array, grad: Array) -> Array:
    """Gradient of the kernel, whose sizes without the output channels are ``kernel``.

    What each tap saw, times the gradient of what it was added to.
    """
    steps = _inferred(call, x.shape[2:], grad.shape[2:])
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
