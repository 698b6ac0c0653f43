"""Convolutions and pooling, with the paddings that ONNX allows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from roofline.frontends import emit
from roofline.frontends.call import with_options
from roofline.frontends.onnx.walk import Call, Result, Rule
from roofline.ir.sizes import Size, ceil_div, maximum, prod
from roofline.ops.windows import window


def _list(call: Call, name: str, axes: int, default: int) -> list[int]:
    values = call.attr(name)
    return [int(value) for value in values] if values else [default] * axes


class Window:
    """Kernel, strides, dilations and paddings of a convolution or a pooling.

    Args:
        call: The node.
        sizes: Of the image, without batch and channels.
        kernel: Of the window.
    """

    def __init__(self, call: Call, sizes: Sequence[Size], kernel: Sequence[Any]) -> None:
        axes = len(sizes)
        self.sizes, self.kernel = list(sizes), list(kernel)
        self.strides = _list(call, "strides", axes, 1)
        self.dilations = _list(call, "dilations", axes, 1)
        pads = _list(call, "pads", 2 * axes, 0)
        self.pads: list[tuple[Any, Any]] = list(zip(pads[:axes], pads[axes:], strict=True))
        auto = str(call.attr("auto_pad", "NOTSET"))
        if auto.startswith("SAME"):
            self.pads = [self._same(at, auto.endswith("LOWER")) for at in range(axes)]
        elif auto == "VALID":
            self.pads = [(0, 0)] * axes
        self.ceil = bool(call.attr("ceil_mode", 0))

    def _same(self, at: int, lower: bool) -> tuple[Any, Any]:
        """Return as much as makes the output ``ceil(size / stride)``."""
        size, stride = self.sizes[at], self.strides[at]
        reach = self.dilations[at] * (self.kernel[at] - 1) + 1
        if reach % 2:  # half of the reach at each end gives that output too, whatever the size
            return reach // 2, reach // 2
        short = (ceil_div(size, stride) - 1) * stride + reach - size
        total = max(short, 0) if isinstance(short, int) else maximum(short, 0)
        if stride == 1:
            total = reach - 1
        less, more = total // 2, total - total // 2
        return (more, less) if lower else (less, more)

    def out(self) -> list[Size]:
        """Return the sizes of the output."""
        sizes: list[Size] = []
        for at, (before, behind) in enumerate(self.pads):
            reach = self.dilations[at] * (self.kernel[at] - 1) + 1
            span = self.sizes[at] + before + behind - reach
            stride = self.strides[at]
            steps = ceil_div(span, stride) if self.ceil else span // stride
            within = self.sizes[at] + before
            if self.ceil and isinstance(within, int) and isinstance(steps, int) and steps * stride >= within:
                steps -= 1  # a window that would start behind the image
            sizes.append(steps + 1)
        return sizes

    def symmetric(self) -> list[int] | None:
        """Return paddings that are the same before and behind and give the same output, if there are any."""
        sizes, pads = self.out(), []
        for at, (before, behind) in enumerate(self.pads):
            total = before + behind
            options = {before, total // 2, total - total // 2} if isinstance(total, int) else set()
            fits = [
                pad for pad in sorted(options)
                if window(self.sizes[at], self.kernel[at], self.strides[at], pad, self.dilations[at]) == sizes[at]
            ]  # fmt: skip
            if not fits:
                return None
            pads.append(before if before in fits else fits[-1])
        return pads


def convolve(call: Call, x: str, weight: str, bias: str | None) -> str:
    """Add a plain convolution; paddings that differ before and behind, where they matter, are written out first."""
    shape, kernel = call.b.shape(x), call.b.shape(weight)[2:]
    view = Window(call, shape[2:], kernel)
    padding = view.symmetric()
    if padding is None:
        wide = [size + before + behind for size, (before, behind) in zip(view.sizes, view.pads, strict=True)]
        x, padding = (
            call.rearrange((*shape[:2], *wide), x, dtype=call.b.tensor(x).dtype, part="padded"),
            [0] * len(wide),
        )
    return emit.convolution(
        call.b, x, weight, bias, stride=view.strides, padding=padding, dilation=view.dilations,
        groups=call.number("group", 1), name=call.name,
    )  # fmt: skip


def _conv(call: Call) -> Result:
    return convolve(call, call.tensor(0), call.tensor(1), call.maybe(2))


def _fused_conv(call: Call) -> Result:
    """A convolution with a sum and an activation at its end, one kernel."""
    with call.b.kernel(call.name):
        out = _conv(call)
        assert isinstance(out, str)
        if call.has(3):
            out = call.op("add", out, call.tensor(3), name=f"{call.name}.sum")
        kind = str(call.attr("activation", "")).lower()
        ops = {"relu": "relu", "sigmoid": "sigmoid", "tanh": "tanh", "clip": "clamp", "hardsigmoid": "hardsigmoid",
               "leakyrelu": "relu"}  # fmt: skip
        return call.op(ops[kind], out, name=f"{call.name}.{kind}") if kind else out


def _transposed(call: Call) -> Result:
    shape, kernel = call.shape(0), call.shape(1)[2:]
    axes = len(kernel)
    strides, dilations = _list(call, "strides", axes, 1), _list(call, "dilations", axes, 1)
    extra, pads = _list(call, "output_padding", axes, 0), _list(call, "pads", 2 * axes, 0)
    target: list[Any] | None = call.attr("output_shape")
    if str(call.attr("auto_pad", "NOTSET")).startswith("SAME") and not target:
        target = [size * stride for size, stride in zip(shape[2:], strides, strict=True)]
    full = [(shape[2 + at] - 1) * strides[at] + dilations[at] * (kernel[at] - 1) + 1 + extra[at] for at in range(axes)]
    if target:
        cut = [size - out for size, out in zip(full, target[-axes:], strict=True)]
    else:
        cut = [pads[at] + pads[at + axes] for at in range(axes)]
    # An odd cut takes one more at one end, which an output padding of one less makes the same size.
    if not all(isinstance(each, int) for each in cut):
        raise call.missing("a padding that depends on a symbolic size")
    odd = [int(each) % 2 for each in cut]
    return emit.convolution(
        call.b, call.tensor(0), call.tensor(1), call.maybe(2), stride=strides,
        padding=[(int(each) + one) // 2 for each, one in zip(cut, odd, strict=True)], dilation=dilations,
        groups=call.number("group", 1), transposed=True, name=call.name,
        output_padding=[more + one for more, one in zip(extra, odd, strict=True)],
    )  # fmt: skip


@with_options
def _pool(call: Call, op: str) -> Result:
    out = pool(call, op, call.tensor(0))
    return [out, call.rearrange(call.b.shape(out), out, dtype="int64", part="places") if call.is_read(1) else None]


def pool(call: Call, op: str, x: str) -> str:
    """Add a pooling of one to three axes; what the two-dimensional operator cannot say is a reduction of windows."""
    shape = call.b.shape(x)
    kernel = [int(size) for size in call.attr("kernel_shape") or []]
    view = Window(call, shape[2:], kernel)
    out, padding = (*shape[:2], *view.out()), view.symmetric()
    plain = padding is not None and all(step == 1 for step in view.dilations) and len(kernel) in (1, 2)
    if not plain or padding is None:
        return _windows(call, x, out, op, prod(kernel))
    one = len(kernel) == 1
    flat = call.view(x, (*shape[:2], 1, shape[2]), "row") if one else x
    pad, strides, side = ([first, *each] if one else each for first, each in
                          zip((0, 1, 1), (padding, view.strides, kernel), strict=True))  # fmt: skip
    pooled = call.op(op, flat, r=tuple(side), stride=tuple(strides), padding=tuple(pad))
    return call.view(pooled, out, "line")


def _windows(call: Call, x: str, out: tuple[Size, ...], op: str, taps: int) -> str:
    """Read windows once, then reduce them, in one kernel."""
    with call.b.kernel(call.name):
        rows = call.rearrange((*out, taps), x, part="windows")
        return call.reduce("sum" if op == "avgpool2d" else "max", rows, [len(out)])


@with_options
def over_image(call: Call, how: str) -> Result:
    """Return the rule of a reduction of whole images."""
    axes = list(range(2, len(call.shape(0))))
    return call.reduce(how, call.tensor(0), axes, True)


RULES: dict[str, Rule] = {
    "Conv": _conv, "ConvTranspose": _transposed, "com.microsoft.FusedConv": _fused_conv, "MaxPool": _pool("maxpool2d"),
    "AveragePool": _pool("avgpool2d"), "LpPool": _pool("avgpool2d"), "GlobalAveragePool": over_image("mean"),
    "GlobalMaxPool": over_image("max"), "GlobalLpPool": over_image("norm"),
}  # fmt: skip
