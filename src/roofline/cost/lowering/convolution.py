"""What PyTorch launches for a convolution on CUDA."""

from __future__ import annotations

from roofline.cost.lowering.rule import Rule, Site

#: ``_convolution`` calls cuDNN without the bias and adds it after: the cases ConvBackend::Cudnn and CudnnTranspose.
ATEN = "https://github.com/pytorch/pytorch/blob/v2.11.0/aten/src/ATen/native/Convolution.cpp"
OPS = ("conv1d", "conv2d", "conv3d", "conv_transpose2d", "conv_transpose3d")


def _biased(site: Site) -> bool:
    depthwise = site.attrs.get("groups", 1) == site.kernel.shapes[0][1]
    return site.chip.vendor == "NVIDIA" and len(site.inputs) == 3 and not depthwise


def _bias_after(site: Site) -> str:
    image, weight, bias = site.inputs
    out = site.main(image, weight)
    channels = site.b.shape(bias) + (1,) * (len(site.b.shape(out)) - 2)
    return site.b.op("add", out, site.b.op("view", bias, name="by_channel", shape=channels), name="add_bias")


RULES = tuple(Rule(op, "the convolution, then its bias", ATEN, _bias_after, _biased) for op in OPS)
