"""What PyTorch launches for kernels of rows, which take rows that lie one after the other."""

from __future__ import annotations

from roofline.cost.lowering.rule import Rule, Site

_ATEN = "https://github.com/pytorch/pytorch/blob/v2.11.0/aten/src/ATen/native/cuda"
#: Where their operands are made contiguous: ``layer_norm_cuda`` by ``expect_contiguous``, ``host_softmax`` and
#: ``host_softmax_backward`` by ``contiguous``.
NORM, SOFTMAX = f"{_ATEN}/layer_norm_kernel.cu", f"{_ATEN}/SoftMax.cu"
SOURCES = {"layernorm": NORM, "layernorm_grad": NORM, "softmax": SOFTMAX, "softmax_grad": SOFTMAX}


def after_copy(site: Site) -> str:
    """Add a copy of the first operand in order, then the operator on it."""
    first, *rest = site.inputs
    dtype, access = site.b.tensor(first).dtype, site.attrs["copied"]
    return site.main(site.b.op("copy", first, name="contiguous", dtype=dtype, access=access), *rest)


RULES = tuple(
    Rule(op, "a copy whose rows lie one after the other, then the kernel of rows", source, after_copy,
         lambda site: "copied" in site.attrs)
    for op, source in SOURCES.items()
)  # fmt: skip
