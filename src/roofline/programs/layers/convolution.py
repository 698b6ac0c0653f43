"""Convolutions and the norms of images, whose channels come first."""

from __future__ import annotations

from typing import Any

from roofline.ir.errors import ShapeError
from roofline.ops.builder import Builder
from roofline.programs.layers.primitives import weights


def conv(
    b: Builder, x: str, out: int, kernel: int | list[int], name: str, *, stride: Any = 1, padding: Any = 0,
    groups: int = 1, bias: bool = False, **options: Any,
) -> str:  # fmt: skip
    """Add a convolution with its own weight (and bias); one number stands for height and width."""
    shape: Any = b.shape(x)
    r, s = kernel if isinstance(kernel, list) else (kernel, kernel)
    if len(shape) != 4:
        raise ShapeError(f"conv2d takes (batch, channels, height, width) but got {list(shape)}")
    if groups < 1 or shape[1] % groups:
        raise ShapeError(f"conv2d: groups = {groups} must divide the {shape[1]} input channels")
    kernels = weights(b, name, (out, shape[1] // groups, r, s), bias)
    return b.op("conv2d", x, *kernels, name=name, stride=stride, padding=padding, groups=groups, **options)


def batchnorm(b: Builder, x: str, name: str) -> str:
    """Add batch normalisation with scale, shift and the running statistics, which are no parameters."""
    channels = b.shape(x)[1:2]
    scale_and_shift = weights(b, name, channels, True)
    statistics = [b.source(f"{name}.{part}", channels, "buffer") for part in ("running_mean", "running_var")]
    return b.op("batchnorm2d", x, *scale_and_shift, *statistics, name=name)


def channel_norm(b: Builder, x: str, kind: str, name: str, bias: bool = True) -> str:
    """Add a norm of channels, ``groupnorm`` or ``layernorm2d``, with its scale and shift."""
    return b.op(kind, x, *weights(b, name, b.shape(x)[1:2], bias), name=name)
