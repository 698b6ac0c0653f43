"""What PyTorch launches for norms over the channels of images on CUDA."""

from __future__ import annotations

from typing import Any

from roofline.cost.lowering.rule import Rule, Site
from roofline.ir.sizes import Size, prod

#: ``batch_norm_cuda_template`` and ``batch_norm_backward_cuda_template``: statistics or the reciprocal deviation, the
#: update of the running figures, then the norm; where channels come last the backward sums up in a kernel of its own.
NATIVE = "https://github.com/pytorch/pytorch/blob/v2.11.0/aten/src/ATen/native/cuda/Normalization.cu"
#: ``upsample_bilinear2d_out_cuda_template``: a thread a point of the result, which loops over images and channels.
UPSAMPLE = "https://github.com/pytorch/pytorch/blob/v2.11.0/aten/src/ATen/native/cuda/UpSampleBilinear2d.cu"
#: ``GroupNormKernelImplInternal``: RowwiseMoments, ComputeFusedParams, and an elementwise kernel on contiguous images.
GROUP_NORM = "https://github.com/pytorch/pytorch/blob/v2.11.0/aten/src/ATen/native/cuda/group_norm_kernel.cu"


def _native(site: Site) -> bool:
    """Tell whether PyTorch's own kernels run: ``_select_batch_norm_backend`` leaves fp32 scales to cuDNN.

    Not those of bf16 images.
    """
    formats = [tensor.dtype for tensor in site.kernel.operands]
    scale = next((tensor.dtype for tensor in site.kernel.operands if len(tensor.shape) == 1), formats[0])
    return site.chip.vendor == "NVIDIA" and ("bf16" in formats or (formats[0] == "fp16" and scale == "fp16"))


def _image_axes(site: Site, image: str) -> tuple[int, ...]:
    return tuple(axis for axis in range(len(site.b.shape(image))) if axis != 1)


def _by_channel(site: Site, vector: str, image: str) -> str:
    shape: tuple[Size, ...] = site.b.shape(vector) + (1,) * (len(site.b.shape(image)) - 2)
    return site.b.op("view", vector, name="by_channel", shape=shape)


def _layout(site: Site) -> dict[str, Any]:
    return {"channels_last": bool(site.attrs.get("channels_last", True))}


def _fixed(site: Site) -> None:
    """Batch norm by running figures: the deviation's reciprocal in fp32, then the norm."""
    image, *vectors = site.inputs
    variance = vectors[-1]
    if site.kernel.inputs[-1].dtype != "fp32":
        variance = site.b.op("cast", variance, name="widened", dtype="fp32")
    site.b.op("rsqrt", variance, name="deviation", dtype="fp32")
    site.main(image, *vectors, **_layout(site))


def _training(site: Site) -> None:
    """Batch norm by the figures of the batch: statistics, the update of the running ones, the norm."""
    image, *scales = site.inputs
    mean = site.b.op("reduce", image, name="statistics", dtype="fp32", axes=_image_axes(site, image), flops=4,
                     statistics=True, **_layout(site))  # fmt: skip
    site.b.op("elementwise", mean, name="running", flops=4)
    site.b.op("batchnorm2d", image, *scales, mean, mean, name="norm", dtype=site.dtype, **_layout(site))


def _backward(site: Site) -> None:
    """One kernel where channels come first; sums and the gradient by element where they come last."""
    if not _layout(site)["channels_last"]:
        site.main(*site.inputs, statistics=True)
        return
    gradient, image = site.inputs[:2]
    with site.b.kernel("sums"):
        terms = site.b.op("elementwise", gradient, image, name="terms", flops=3)
        sums = site.b.op("reduce", terms, name="sum", dtype="fp32", axes=_image_axes(site, image), flops=1,
                         statistics=True, channels_last=True)  # fmt: skip
    by_element = (gradient, image, _by_channel(site, sums, image))
    site.b.op("elementwise", *by_element, name="by_element", dtype=site.dtype, flops=5)


def _nothing(site: Site) -> None:
    """The kernel of the input's gradient has them."""


def _grouped(site: Site) -> None:
    """Statistics of each group of channels, figures by channel, the norm."""
    image = site.inputs[0]
    batch, channels, *points = site.b.shape(image)
    if _layout(site)["channels_last"] and len(points) > 1:
        flat = site.b.op("view", image, name="flat", shape=(batch, prod(points), channels))
        copied = site.b.op("transpose_copy", flat, name="channels_first")
        image = site.b.op("view", copied, name="turned", shape=(batch, channels, *points))
    groups = int(site.attrs.get("groups", 1))
    lines = site.b.op("view", image, name="rows", shape=(batch * groups, prod((channels // groups, *points))))
    site.b.op("reduce", lines, name="statistics", dtype="fp32", axes=-1, flops=4, statistics=True)
    figures = site.b.op("empty", name="figures", shape=(batch, channels), dtype="fp32")
    factor = site.b.op("elementwise", figures, name="by_channel", flops=4)
    site.b.op("mul", image, _by_channel(site, factor, image), name="norm", dtype=site.dtype)


def _nearest(site: Site) -> None:
    site.main(*site.inputs, enlarged="nearest_last" if _layout(site)["channels_last"] else "nearest")


def _interpolated(site: Site) -> None:
    site.main(*site.inputs, enlarged="linear" if _layout(site)["channels_last"] else "planes")


def _resizes(site: Site, *names: str) -> bool:
    """Tell whether it is one of PyTorch's kernels of these names; a graph from elsewhere does not say."""
    what = str(site.attrs.get("what", ""))
    return _on_cuda(site) and what.startswith(names) and not what.endswith("_aa") and "channels_last" in site.attrs


def _on_cuda(site: Site) -> bool:
    return site.chip.vendor == "NVIDIA"


RULES = (
    Rule("batchnorm2d", "the reciprocal deviation, the norm", NATIVE, _fixed, _native),
    Rule("batchnorm_train", "statistics, running figures, the norm", NATIVE, _training, _native),
    Rule("channelnorm_grad", "one kernel, or sums and a gradient by element", NATIVE, _backward,
         lambda site: _native(site) and bool(site.attrs.get("batch_norm"))),
    Rule("batch_norm_sums", "nothing: the gradient of the input has them", NATIVE, _nothing, _native),
    Rule("rearrange", "an element a thread", UPSAMPLE, _nearest,
         lambda site: _resizes(site, "upsample_nearest", "_upsample_nearest")),
    Rule("resample", "a point a thread, plane after plane, or an element", UPSAMPLE, _interpolated,
         lambda site: _resizes(site, "upsample_")),
    Rule("groupnorm", "statistics of rows, figures by channel, the norm", GROUP_NORM, _grouped, _on_cuda),
)  # fmt: skip
