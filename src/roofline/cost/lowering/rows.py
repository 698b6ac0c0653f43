"""What PyTorch launches for kernels of rows, which take rows that lie one after the other."""

from __future__ import annotations

from typing import Any

from roofline.cost.lowering.rule import Rule, Site

_ATEN = "https://github.com/pytorch/pytorch/blob/v2.11.0/aten/src/ATen/native/cuda"
#: Where their operands are made contiguous: ``layer_norm_cuda`` by ``expect_contiguous``, ``host_softmax`` and
#: ``host_softmax_backward`` by ``contiguous``.
NORM, SOFTMAX = f"{_ATEN}/layer_norm_kernel.cu", f"{_ATEN}/SoftMax.cu"
SOURCES = {"layernorm": NORM, "layernorm_grad": NORM, "softmax": SOFTMAX, "softmax_grad": SOFTMAX}


def after_copy(site: Site) -> str:
    """Add copies in order of the first operands that lie apart, then the operator on them."""

    def copy(name: str, access: Any) -> str:
        return site.b.op("copy", name, name="contiguous", dtype=site.b.tensor(name).dtype, access=access)

    names, ways = site.inputs, site.attrs["copied"]
    first = [copy(name, way) if way else name for name, way in zip(names, ways, strict=False)]
    return site.main(*first, *names[len(first) :])


RULES = tuple(
    Rule(op, "copies whose rows lie one after the other, then the kernel of rows", source, after_copy,
         lambda site: "copied" in site.attrs)
    for op, source in SOURCES.items()
)  # fmt: skip
