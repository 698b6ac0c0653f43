"""What PyTorch launches for a convolution on CUDA."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roofline.cost.convolution import ALIGNMENT, PLAIN, TAPS, has_few, has_few_last, is_point, may_be_direct
from roofline.cost.lowering.rule import Rule, Site
from roofline.ir.dtypes import DTYPES
from roofline.ir.sizes import prod

#: ``_convolution`` calls cuDNN without the bias and adds it after: the cases ConvBackend::Cudnn and CudnnTranspose.
#: A depthwise one whose channels come first runs on PyTorch's own kernel, with its bias: ConvBackend::CudaDepthwise2d.
ATEN = "https://github.com/pytorch/pytorch/blob/v2.11.0/aten/src/ATen/native/Convolution.cpp"
#: Kernels of the matrix units want channels last: cuDNN adds transposing kernels before and after them where tensors
#: are not. Measured in measurements/h100-sxm/zoo/ops.csv: ``nchwToNhwcKernel`` and ``nhwcToNchwKernel``.
CUDNN = "https://docs.nvidia.com/deeplearning/performance/dl-performance-convolutional/index.html#tensor-layout"
#: Channels in and out, and points of all images, from which cuDNN copies images of odd planes for a 1x1.
WIDE, MANY = 160, 768
#: Channels of a group that fill a tile, and groups of them that cuDNN runs one after the other, any if they are wider;
#: where all images have no more points. Read off 55 grouped convolutions on an H200 (measurements/h200-sxm/
#: convolutions.csv, half of networks.csv): 4 groups of 32 with 4900 points do, 8 of 16 and 2 of 128 with 5832 do not.
TILED, WIDER, GROUPS, ROWS = 16, 48, 4, 5000
INPUT, WEIGHT = "conv2d_grad_input", "conv2d_grad_weight"
OPS = ("conv1d", "conv2d", "conv3d", "conv_transpose2d", "conv_transpose3d")


def _on_cudnn(site: Site) -> bool:
    """Tell whether cuDNN runs it: PyTorch has a kernel of its own where each channel is a group."""
    depthwise = site.attrs.get("groups", 1) == site.kernel.shapes[0][1] != 1
    return site.chip.vendor == "NVIDIA" and not (depthwise and _channels_first(site))


def _channels_first(site: Site) -> bool:
    return not site.attrs.get("channels_last", True)


def _biased(site: Site) -> bool:
    return _on_cudnn(site) and len(site.inputs) == 3


def _turned(site: Site) -> bool:
    """Tell whether its kernel wants another layout than its tensors have."""
    on_matrix = DTYPES[site.kernel.inputs[0].dtype].bits <= 16 or site.tf32
    return _on_cudnn(site) and _channels_first(site) and on_matrix


def _odd(sizes: Mapping[str, Any]) -> Any:
    """Tell whether planes have an odd number of points, which matmuls load one by one: copies pay where there are many.

    From how many on is read off measurements/h100-sxm/zoo/ops.csv and a sweep of 34 such convolutions.
    """
    points = prod(sizes[axis] for axis in "dhwx" if axis in sizes)
    return (points % 2 != 0) & (sizes["i"] >= WIDE) & (sizes["o"] >= WIDE) & (sizes["n"] * points >= MANY)


def _is_gradient_of_points(site: Site) -> bool:
    """Tell whether a gradient is of a window of one point that stepped by one: matmuls, in either layout."""
    first, second, out = (*site.kernel.shapes[:2], site.kernel.output.shape)
    gradient, window, image = (first, second, out) if _of_input(site) else (second, out, first)
    return gradient[2:] == image[2:] and all(size == 1 for size in window[2:])


def _gradient_in_channels_last(site: Site) -> None:
    """Copies of both operands, the gradient, a copy of it; weights of one point lie the same in both layouts."""
    windows = any(size != 1 for size in (site.kernel.shapes[1] if _of_input(site) else site.kernel.output.shape)[2:])
    turned = (True, windows) if _of_input(site) else (True, True)
    operands = [
        _copied(site, name, what) if wants else name
        for name, what, wants in zip(site.inputs, ("first", "second"), turned, strict=True)
    ]
    out = site.main(*operands, channels_last=True)
    if windows or _of_input(site):
        _copied(site, out, "result")


def _of_input(site: Site) -> bool:
    return site.kernel.main.op == INPUT


def _bias_after(site: Site) -> str:
    return _with_bias(site, site.main(*site.inputs[:2]))


def _in_channels_last(site: Site) -> str:
    """A copy of the image, one of a window's weights, the convolution, and a copy of its result."""
    image, weight = site.inputs[:2]
    image = _copied(site, image, "image")
    if any(size != 1 for size in site.b.shape(weight)[2:]):
        weight = _copied(site, weight, "weights")
    return _with_bias(site, _copied(site, site.main(image, weight, channels_last=True), "result"))


def _copied(site: Site, name: str, what: str) -> str:
    """Add a transposing copy of channels and points; the graph goes on with the shape that it had."""
    shape = site.b.shape(name)
    flat = site.b.op("view", name, name=f"{what}_flat", shape=(*shape[:2], prod(shape[2:])))
    turned = site.b.op("transpose_copy", flat, name=f"{what}_layout", tiled=True)
    return site.b.op("view", turned, name=f"{what}_turned", shape=shape)


def _is_padded(site: Site) -> bool:
    """Tell whether cuDNN pads its channels: where they lie last, and fill no load of the matrix units."""
    channels, bits = site.kernel.shapes[1][1], DTYPES[site.kernel.inputs[0].dtype].bits
    least = 8 * ALIGNMENT // bits
    few = isinstance(channels, int) and channels < least and bits <= 16 and site.attrs.get("groups", 1) == 1
    return few and _on_cudnn(site) and not _channels_first(site) and not is_point(site.kernel)


def _padded(site: Site) -> str:
    """Add kernels that write image and weights anew with more channels, after zeros, and the convolution."""
    for name, what in zip(site.inputs[:2], ("image", "weights"), strict=True):
        count, _, *points = site.b.shape(name)
        shape = (count, 8 * ALIGNMENT // DTYPES[site.dtype].bits, *points)
        site.b.op("fill", name=f"{what}_zeros", shape=shape, dtype=site.dtype)
        site.b.op("rearrange", name, name=f"{what}_padded", shape=shape, what="pad", tiled=True)
    return _bias_after(site)


def _may_be_direct(site: Site) -> bool:
    return _turned(site) and may_be_direct(site.kernel)


def _steps_on(site: Site) -> bool:
    return _is_padded(site) and may_be_direct(site.kernel)


def _is_apart(site: Site) -> bool:
    """Tell whether cuDNN runs one group after the other: few groups of more channels than share a tile, in 16 bits."""
    groups, channels = site.attrs.get("groups", 1), site.kernel.shapes[1][1]
    narrow = DTYPES[site.kernel.inputs[0].dtype].bits <= 16 and site.kernel.main.op in PLAIN
    known = isinstance(channels, int) and isinstance(groups, int)
    few = narrow and known and groups > 1 and (groups <= GROUPS or channels >= WIDER) and channels >= TILED
    return few and _on_cudnn(site)


def _has_few_points(sizes: Mapping[str, Any]) -> Any:
    """Tell whether the points of all results are few for a kernel of all groups, or its windows too long."""
    points, window = (prod(sizes[axis] for axis in axes if axis in sizes) for axes in ("nepq", "rst"))
    return (points <= ROWS) | (window > TAPS)


def _group_by_group(site: Site) -> str:
    """Add each group's copies and convolution, and the bias; windows of many points run on the vector units.

    Where channels lie last, image and result of a group are cut out of all (``nhwcSliceCKernel``).
    """
    groups, (images, weights) = int(site.attrs["groups"]), site.kernel.shapes[:2]
    image = site.b.op("empty", name="group", shape=(images[0], weights[1], *images[2:]), dtype=site.dtype)
    own = site.b.op("empty", name="filters", shape=(weights[0] // groups, *weights[1:]), dtype=site.dtype)
    direct = prod(weights[2:]) > TAPS
    with site.b.repeat(groups):
        if not _channels_first(site):
            image = _cut(site, image, "image")
        elif not direct:
            image, own = _copied(site, image, "image"), _copied(site, own, "weights")
        out = site.main(image, own, channels_last=not direct, direct=direct, groups=1)
        if not _channels_first(site):
            _cut(site, out, "result")
        elif not direct:
            _copied(site, out, "result")
    out = site.b.op("empty", name="all", shape=site.kernel.output.shape, dtype=site.dtype)
    return _with_bias(site, out)


def _cut(site: Site, name: str, what: str) -> str:
    return site.b.op("rearrange", name, name=f"{what}_cut", shape=site.b.shape(name), what="slice", tiled=True)


def _with_bias(site: Site, out: str) -> str:
    if len(site.inputs) < 3:
        return out
    bias = site.inputs[2]
    channels = site.b.shape(bias) + (1,) * (len(site.b.shape(out)) - 2)
    return site.b.op("add", out, site.b.op("view", bias, name="by_channel", shape=channels), name="add_bias")


def _rules(op: str) -> tuple[Rule, ...]:
    copies = "copies to channels last, the convolution, a copy back, its bias"
    return (
        Rule(op, "the same group after group", CUDNN, _group_by_group, _is_apart, _has_few_points),
        Rule(op, "one kernel for images of few channels, its bias", CUDNN, _bias_after, _may_be_direct, has_few),
        Rule(op, "one kernel for images of few channels, its bias", CUDNN, _bias_after, _steps_on, has_few_last),
        Rule(op, "image and weights with more channels, the convolution, its bias", CUDNN, _padded, _is_padded),
        Rule(op, copies, CUDNN, _in_channels_last, lambda site: _turned(site) and not is_point(site.kernel)),
        Rule(op, copies, CUDNN, _in_channels_last, lambda site: _turned(site) and is_point(site.kernel), _odd),
        Rule(op, "the convolution, then its bias", ATEN, _bias_after, _biased),
    )


def _turned_gradient(site: Site) -> bool:
    depthwise = site.attrs.get("groups", 1) == site.kernel.shapes[0][1] != 1
    on_matrix = DTYPES[site.kernel.inputs[0].dtype].bits <= 16 or site.tf32
    first = _channels_first(site) and site.chip.vendor == "NVIDIA"
    return first and on_matrix and not depthwise and not _is_gradient_of_points(site)


RULES = (
    *(rule for op in OPS for rule in _rules(op)),
    *(
        Rule(
            op,
            "copies to channels last, the gradient, a copy back",
            CUDNN,
            _gradient_in_channels_last,
            _turned_gradient,
        )
        for op in (INPUT, WEIGHT)
    ),
)
