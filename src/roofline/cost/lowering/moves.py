"""What PyTorch launches on CUDA to fill, pad and roll."""

from __future__ import annotations

from roofline.cost.lowering.rows import after_copy
from roofline.cost.lowering.rule import Rule, Site

#: ``masked_fill`` clones, then fills in place.
MASK = "https://github.com/pytorch/pytorch/blob/v2.11.0/aten/src/ATen/native/TensorAdvancedIndexing.cpp"
#: ``constant_pad_nd`` fills the result, then copies into a part of it.
PAD = "https://github.com/pytorch/pytorch/blob/v2.11.0/aten/src/ATen/native/PadNd.cpp"
#: ``roll_cuda`` leaves several axes to ``roll_common``, which rolls one after the other.
ROLL = "https://github.com/pytorch/pytorch/blob/v2.11.0/aten/src/ATen/native/TensorTransformations.h"


def _padded(site: Site) -> str:
    b, (source,) = site.b, site.inputs
    b.op("fill", name="fill", shape=site.kernel.output.shape, dtype=site.dtype)
    return b.op("copy", source, name="into_part", dtype=site.dtype, access=("strided", 3, 0))


def _rolled(site: Site) -> str:
    (source,) = site.inputs
    for _ in range(site.attrs["times"]):
        source = site.main(source, times=1)
    return source


RULES = (
    Rule("mask", "a copy, then the masked fill", MASK, after_copy, lambda site: "copied" in site.attrs),
    Rule("rearrange", "one roll an axis", ROLL, _rolled, lambda site: site.attrs.get("times", 1) > 1),
    Rule("rearrange", "a fill, then a copy into a part", PAD, _padded,
         lambda site: site.attrs.get("what") == "constant_pad_nd"),
)  # fmt: skip
