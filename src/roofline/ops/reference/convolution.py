"""What convolutions compute, of one, two and three axes: a sum over the taps of the window."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from roofline.ops.reference.calls import Array, Call, means


def _by_axis(value: Any, axes: int) -> tuple[Any, ...]:
    return tuple(value[:axes]) if isinstance(value, tuple | list) else (value,) * axes


def _paddings(value: Any, axes: int) -> list[tuple[int, int]]:
    return [each if isinstance(each, tuple) else (each, each) for each in _by_axis(value, axes)]


def _taps(
    window: Sequence[int], steps: Sequence[int], gaps: Sequence[int], counts: Sequence[int]
) -> Iterator[tuple[tuple[int, ...], tuple[slice, ...]]]:
    """Each tap of a window, with the places that it sees over all positions of the window."""
    for tap in itertools.product(*map(range, window)):
        starts = [at * gap for at, gap in zip(tap, gaps, strict=True)]
        yield (
            tap,
            tuple(
                slice(start, start + (count - 1) * step + 1, step)
                for start, step, count in zip(starts, steps, counts, strict=True)
            ),
        )


def _options(call: Call, axes: int) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    attrs = call.attrs
    return _by_axis(attrs.get("stride", 1), axes), _by_axis(attrs.get("dilation", 1), axes), attrs.get("groups", 1)


def _grouped(x: Array, groups: int) -> Array:
    """``(n, c, ...)`` as ``(n, groups, c / groups, ...)``."""
    return x.reshape(x.shape[0], groups, -1, *x.shape[2:])


def _added(out: Array, bias: tuple[Array, ...]) -> Array:
    axes = (1,) * (out.ndim - 2)
    return sum((each.reshape(1, -1, *axes) for each in bias), out)


@means("conv1d", "conv2d", "conv3d")
def convolve(call: Call, x: Array, weight: Array, *bias: Array) -> Array:
    axes = x.ndim - 2
    steps, gaps, groups = _options(call, axes)
    padded = _grouped(np.pad(x, [(0, 0), (0, 0), *_paddings(call.attrs.get("padding", 0), axes)]), groups)
    filters = weight.reshape(groups, -1, *weight.shape[1:])
    out = np.zeros((len(x), groups, weight.shape[0] // groups, *call.shape[2:]))
    for tap, seen in _taps(weight.shape[2:], steps, gaps, call.shape[2:]):
        out += np.einsum("ngi...,goi->ngo...", padded[:, :, :, *seen], filters[:, :, :, *tap], optimize=True)
    return _added(out.reshape(call.shape), bias)


def _spread(
    x: Array, weight: Array, steps: Sequence[int], gaps: Sequence[int], groups: int, least: Sequence[int]
) -> Array:
    """Every point adds its window to the output, before padding is cut off; at least ``least`` points an axis."""
    sizes, window = x.shape[2:], weight.shape[2:]
    full = [
        max((size - 1) * step + gap * (wide - 1) + 1, low)
        for size, step, gap, wide, low in zip(sizes, steps, gaps, window, least, strict=True)
    ]
    points, filters = _grouped(x, groups), weight.reshape(groups, -1, *weight.shape[1:])
    out = np.zeros((len(x), groups, weight.shape[1], *full))
    for tap, seen in _taps(window, steps, gaps, sizes):
        out[:, :, :, *seen] += np.einsum("ngi...,gio->ngo...", points, filters[:, :, :, *tap], optimize=True)
    return out.reshape(len(x), -1, *full)


@means("conv_transpose2d", "conv_transpose3d")
def convolve_transposed(call: Call, x: Array, weight: Array, *bias: Array) -> Array:
    axes = x.ndim - 2
    steps, gaps, groups = _options(call, axes)
    starts = [before for before, _ in _paddings(call.attrs.get("padding", 0), axes)]
    ends = [start + size for start, size in zip(starts, call.shape[2:], strict=True)]
    out = _spread(x, weight, steps, gaps, groups, ends)
    return _added(out[:, :, *map(slice, starts, ends)], bias)


def _inferred(call: Call, image: Sequence[int], points: Sequence[int]) -> tuple[int, ...]:
    """The stride of a gradient that carries none: by how much the image is larger."""
    own = tuple(max(1, round(size / count)) for size, count in zip(image, points, strict=True))
    return _by_axis(call.attrs.get("stride", own), len(own))


@means("conv2d_grad_input")
def convolve_grad_input(call: Call, grad: Array, weight: Array) -> Array:
    """The transposed convolution; a padding that the node does not carry counts as none."""
    steps = _inferred(call, call.shape[2:], grad.shape[2:])
    _, gaps, groups = _options(call, 2)
    starts = [before for before, _ in _paddings(call.attrs.get("padding", 0), 2)]
    ends = [start + size for start, size in zip(starts, call.shape[2:], strict=True)]
    return _spread(grad, weight, steps, gaps, groups, ends)[:, :, *map(slice, starts, ends)]


@means("conv2d_grad_weight")
def convolve_grad_weight(call: Call, x: Array, grad: Array) -> Array:
    """What each tap saw, times the gradient of what it was added to."""
    steps = _inferred(call, x.shape[2:], grad.shape[2:])
    _, gaps, groups = _options(call, 2)
    counts, window = grad.shape[2:], call.shape[2:]
    ends = [(count - 1) * step + gap * (wide - 1) + 1
            for count, step, gap, wide in zip(counts, steps, gaps, window, strict=True)]  # fmt: skip
    paddings = [(before, max(behind, end - size - before))
                for (before, behind), end, size in zip(_paddings(call.attrs.get("padding", 0), 2), ends, x.shape[2:],
                                                       strict=True)]  # fmt: skip
    padded = _grouped(np.pad(x, [(0, 0), (0, 0), *paddings]), groups)
    upper, out = _grouped(grad, groups), np.zeros(call.shape)
    filters: Array = out.reshape(groups, -1, *call.shape[1:])
    for tap, seen in _taps(window, steps, gaps, counts):
        filters[:, :, :, *tap] = np.einsum("ngipq,ngopq->goi", padded[:, :, :, *seen], upper, optimize=True)
    return out


@means("maxpool2d", "avgpool2d")
def pool(call: Call, x: Array) -> Array:
    """Over windows; the mean counts the padding, as PyTorch's does."""
    window = _by_axis(call.attrs["r"], 2)
    steps = _by_axis(call.attrs.get("stride") or window, 2)
    largest = call.op == "maxpool2d"
    around = [(0, 0), (0, 0), *_paddings(call.attrs.get("padding", 0), 2)]
    padded = np.pad(x, around, constant_values=-np.inf if largest else 0.0)
    seen = [padded[:, :, *places] for _, places in _taps(window, steps, (1, 1), call.shape[2:])]
    total: Array = np.maximum.reduce(seen) if largest else np.add.reduce(seen) / len(seen)
    return total
