"""Convolutions, by the products that they sum."""

from __future__ import annotations

from typing import Any

from roofline.ir.errors import ShapeError
from roofline.ir.units import MAC
from roofline.ops.registry import Work, op, pair, positive, single, triple, window


def _conv_sizes(
    c: Any, h: Any, w: Any, o: Any, i: Any, r: Any, s: Any,
    stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1,
) -> dict[str, Any]:  # fmt: skip
    if c != i * groups or (isinstance(o, int) and o % groups):
        raise ShapeError(f"has {c} input and {o} output channels but a kernel for {i} in {groups} groups")
    (sh, sw), (ph, pw), (dh, dw) = pair(stride), pair(padding), pair(dilation)
    return {"p": positive(window(h, r, sh, ph, dh)), "q": positive(window(w, s, sw, pw, dw))}


@op("conv2d", "n c h w, o i r s, [o] -> n o p q", "conv", derive=_conv_sizes)
def conv2d(n: Any, o: Any, p: Any, q: Any, i: Any, r: Any, s: Any) -> Work:
    """Direct convolution: every output point sums ``i*r*s`` products (groups are in ``i``)."""
    return Work(flops=MAC * n * o * p * q * i * r * s)


def _transposed_sizes(
    h: Any,
    w: Any,
    o: Any,
    r: Any,
    s: Any,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> dict[str, Any]:
    (sh, sw), (ph, pw), (oh, ow), (dh, dw) = pair(stride), pair(padding), pair(output_padding), pair(dilation)
    p = (h - 1) * sh - 2 * ph + dh * (r - 1) + 1 + oh
    q = (w - 1) * sw - 2 * pw + dw * (s - 1) + 1 + ow
    return {"f": o * groups, "p": positive(p), "q": positive(q)}


@op("conv_transpose2d", "n c h w, c o r s, [f] -> n f p q", "conv", derive=_transposed_sizes)
def conv_transpose2d(n: Any, c: Any, h: Any, w: Any, o: Any, r: Any, s: Any) -> Work:
    """Transposed convolution: every *input* point spreads ``o*r*s`` products."""
    return Work(flops=MAC * n * c * h * w * o * r * s)


def _conv1d_sizes(
    c: Any, x: Any, i: Any, r: Any, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> dict[str, Any]:
    if c != i * groups:
        raise ShapeError(f"has {c} input channels but a kernel for {i} in {groups} groups")
    return {"p": positive(window(x, r, single(stride), single(padding), single(dilation)))}


@op("conv1d", "n c x, o i r, [o] -> n o p", "conv", derive=_conv1d_sizes)
def conv1d(n: Any, o: Any, p: Any, i: Any, r: Any) -> Work:
    """One-dimensional convolution."""
    return Work(flops=MAC * n * o * p * i * r)


def _conv3d_sizes(
    c: Any, d: Any, h: Any, w: Any, i: Any, t: Any, r: Any, s: Any,
    stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1,
) -> dict[str, Any]:  # fmt: skip
    if c != i * groups:
        raise ShapeError(f"has {c} input channels but a kernel for {i} in {groups} groups")
    steps, pads, gaps = triple(stride), triple(padding), triple(dilation)
    sizes = zip((d, h, w), (t, r, s), steps, pads, gaps, strict=True)
    e, p, q = (positive(window(*each)) for each in sizes)
    return {"e": e, "p": p, "q": q}


@op("conv3d", "n c d h w, o i t r s, [o] -> n o e p q", "conv", derive=_conv3d_sizes)
def conv3d(n: Any, o: Any, e: Any, p: Any, q: Any, i: Any, t: Any, r: Any, s: Any) -> Work:
    """Three-dimensional convolution, of videos and volumes."""
    return Work(flops=MAC * n * o * e * p * q * i * t * r * s)


def _transposed3d_sizes(
    d: Any, h: Any, w: Any, o: Any, t: Any, r: Any, s: Any,
    stride: Any = 1, padding: Any = 0, output_padding: Any = 0, dilation: Any = 1, groups: int = 1,
) -> dict[str, Any]:  # fmt: skip
    options = (triple(each) for each in (stride, padding, output_padding, dilation))
    axes = zip("epq", (d, h, w), (t, r, s), *options, strict=True)
    sizes = {
        axis: positive((size - 1) * step - 2 * pad + gap * (kernel - 1) + 1 + extra)
        for axis, size, kernel, step, pad, extra, gap in axes
    }
    return {"f": o * groups, **sizes}


@op("conv_transpose3d", "n c d h w, c o t r s, [f] -> n f e p q", "conv", derive=_transposed3d_sizes)
def conv_transpose3d(n: Any, c: Any, d: Any, h: Any, w: Any, o: Any, t: Any, r: Any, s: Any) -> Work:
    """Transposed convolution of videos and volumes: every *input* point spreads its products."""
    return Work(flops=MAC * n * c * d * h * w * o * t * r * s)


# --- backwards: each sums the same products as the convolution itself -------------------------------------------------


@op(
    "conv2d_grad_input",
    "n o p q, o i r s -> n c h w",
    "conv",
    derive=lambda image: dict(zip("chw", image, strict=True)),
)
def conv2d_grad_input(n: Any, o: Any, p: Any, q: Any, i: Any, r: Any, s: Any) -> Work:
    """Gradient of the input, whose sizes without the batch are ``image``: every output point spreads its products."""
    return Work(flops=MAC * n * o * p * q * i * r * s)


@op(
    "conv2d_grad_weight",
    "n c h w, n o p q -> o i r s",
    "conv",
    derive=lambda kernel: dict(zip("irs", kernel, strict=True)),
)
def conv2d_grad_weight(n: Any, o: Any, p: Any, q: Any, i: Any, r: Any, s: Any) -> Work:
    """Gradient of the kernel, whose sizes without the output channels are ``kernel``."""
    return Work(flops=MAC * n * o * p * q * i * r * s)
