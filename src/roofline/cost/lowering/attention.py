"""Which kernels PyTorch runs for ``scaled_dot_product_attention`` on a GPU, forwards and backwards.

``select_sdp_backend`` takes the first of cuDNN (on data-centre chips from Hopper on), flash attention, the memory
efficient kernel and plain matmuls that allows the call. The first three are one kernel; what they cannot read as it
is (masks of bool, odd widths) is written anew before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from roofline.cost.lowering.rule import Rule, Site
from roofline.ir.graph import Tensor
from roofline.ir.sizes import Dim, ceil_div

_ATEN = "https://github.com/pytorch/pytorch/blob/v2.11.0/aten/src/ATen/native/transformers"
#: ``_scaled_dot_product_attention_math``, ``_safe_softmax``, ``convert_boolean_attn_mask``, ``pad_bias``.
FORWARD = f"{_ATEN}/attention.cpp"
#: Elements that heads of the memory efficient kernel are aligned to, by format (``minimum_gemm_alignment``).
ALIGNED = {"bf16": 8, "fp16": 8, "fp32": 4}
#: Elements to which flash attention pads its heads, and the memory efficient kernel rows of its mask.
HEADS_ALIGNED, MASK_ALIGNED = 8, 16
#: Elements of a row of keys where their number is symbolic, for the copy that turns them.
_FAR = 128
#: Widest heads of the fused kernels.
WIDEST = 256
#: Widths of heads that cuDNN's kernels compute, by their names (``..._flash_fprop_wgmma_f16_knob_7_64x128x128_...`` for
#: heads of 96); narrower heads are padded. Its documentation has the widths that it takes.
LANES = (64, 128, 256)
CUDNN = "https://docs.nvidia.com/deeplearning/cudnn/frontend/latest/operations/Attention.html"


@dataclass(frozen=True)
class Call:
    """One call of attention, by what the selection looks at."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None
    attrs: dict[str, Any]
    cudnn_first: bool

    @property
    def backend(self) -> str:
        """The first that takes the call: ``cudnn``, ``flash``, ``efficient`` or ``math``.

        As ``priority_order`` and ``can_use_cudnn_attention`` and its kin say in cuda/sdp_utils.cpp of PyTorch's folder.
        """
        dtype, widths = self.q.dtype, (self.q.shape[-1], self.v.shape[-1])
        if self.attrs.get("unfused") or dtype not in ALIGNED:
            return "math"
        half, even = dtype != "fp32", all(_divides(ALIGNED[dtype], width) for width in widths)
        narrow = all(isinstance(width, Dim) or width <= WIDEST for width in widths)
        if self.cudnn_first and half and even and narrow and self._cudnn_takes_the_rest:
            return "cudnn"
        square = not self.attrs.get("causal") or self.q.shape[-2] == self.k.shape[-2]
        if half and narrow and square and self.mask is None and widths[0] == widths[1]:
            return "flash"
        grouped = self.q.shape[1] != self.k.shape[1]  # which the efficient kernel takes in later versions alone
        return "efficient" if even and not grouped else "math"

    @property
    def _cudnn_takes_the_rest(self) -> bool:
        steps = float(self.attrs.get("dropped", 0.0)) * 16
        return self.k.shape[-2] != 1 and not self.attrs.get("mask_rank") and steps.is_integer()

    @property
    def pads_mask(self) -> bool:
        """True where the mask is copied into rows that the memory efficient kernel can load."""
        keys = self.k.shape[-2]
        return self.mask is not None and self.backend == "efficient" and not _divides(MASK_ALIGNED, keys)

    @property
    def lanes(self) -> int:
        """Width that narrower heads are computed at, 0 where that is their own."""
        width = self.q.shape[-1]
        if isinstance(width, Dim) or width in LANES or self.backend != "cudnn":
            return 0
        return min((lanes for lanes in LANES if lanes > width), default=0)

    @property
    def pads_heads(self) -> bool:
        """True where heads are copied into wider ones that flash attention takes."""
        return self.backend == "flash" and not _divides(HEADS_ALIGNED, self.q.shape[-1])


def _divides(number: int, size: Any) -> bool:
    return isinstance(size, Dim) or size % number == 0


def call_of(site: Site) -> Call:
    """Return the call of a site; cuDNN comes first on compute capabilities 9 and 10: fp8 units and stacked memory."""
    operands = {tensor.name: tensor for tensor in site.kernel.operands}
    products = [node for node in site.kernel.nodes if node.op == "attention_scores"]
    values = next((node for node in site.kernel.nodes if node.op == "attention_values"), products[-1])
    added = next((node.inputs[1] for node in site.kernel.nodes if node.op == "add"), "")
    v = products[-1] if len(products) > 1 else values
    first = site.chip.vendor == "NVIDIA" and "fp8" in site.chip.matrix and site.chip.main.name.startswith("HBM")
    q, k = site.kernel.inputs
    return Call(q, k, operands.get(v.inputs[1], k), operands.get(added), site.attrs, first)


# --- masks and heads, written anew for a fused kernel -----------------------------------------------------------------


def _additive(site: Site, mask: Tensor, dtype: str) -> str:
    """Add what turns a mask of bool into numbers: negated, a zero, and one of the two for each."""
    name = site.read(mask)
    if mask.dtype != "bool":
        return name
    zero = site.b.op("fill", name="zero", shape=(1,), dtype=dtype)
    hidden = site.b.op("elementwise", name, name="logical_not", dtype="bool", flops=0)
    return site.b.op("where", hidden, zero, zero, name="mask", dtype=dtype)


def _prepared(site: Site) -> str:
    call, b, other = call_of(site), site.b, dict[str, str]()
    if call.mask is not None:
        mask = _additive(site, call.mask, call.q.dtype)
        if call.pads_mask:
            shape = (*call.q.shape[:-1], ceil_div(call.k.shape[-2], MASK_ALIGNED) * MASK_ALIGNED)
            b.op("fill", name="padding", shape=shape, dtype=call.q.dtype)
            full = b.op("rearrange", mask, name="padded", shape=(*call.q.shape[:-1], call.k.shape[-2]))
            mask = full
        other[call.mask.name] = mask
    for tensor in (call.q, call.k, call.v) if call.pads_heads else ():
        shape = (*tensor.shape[:-1], ceil_div(tensor.shape[-1], HEADS_ALIGNED) * HEADS_ALIGNED)
        b.op("fill", name="padding", shape=shape, dtype=tensor.dtype)
        other[tensor.name] = b.op("rearrange", site.read(tensor), name="padded", shape=shape, dtype=tensor.dtype)
    return site.whole(other, call.backend, **({"lanes": call.lanes} if call.lanes else {}))


def _is_padded_inside(site: Site) -> bool:
    return bool(call_of(site).lanes)


def _widened(site: Site) -> str:
    return site.whole({}, "cudnn", lanes=call_of(site).lanes)


def _needs_preparing(site: Site) -> bool:
    call = call_of(site)
    return call.pads_heads or call.pads_mask or (call.mask is not None and call.mask.dtype == "bool")


# --- plain matmuls ----------------------------------------------------------------------------------------------------


def _is_math(site: Site) -> bool:
    return call_of(site).backend == "math"


def _operands(site: Site, call: Call) -> list[str]:
    """Add casts to fp32, the scale of queries and keys, heads repeated, and copies that join heads with the batch.

    Keys are turned before they are copied, so that neighbours of a row come from other sectors.
    """
    b, half = site.b, call.q.dtype in ("bf16", "fp16")
    dtype, names = "fp32" if half else call.q.dtype, []
    for word, tensor in zip("qkv", (call.q, call.k, call.v), strict=True):
        name = site.read(tensor)
        if half:
            name = b.op("cast", name, name=f"{word}_fp32", dtype=dtype)
        if word != "v":
            name = b.op("mul_scalar", name, name=f"{word}_scaled", dtype=dtype)
        if tensor.shape[1] != call.q.shape[1]:
            name = b.op("rearrange", name, name=f"{word}_repeated", shape=(tensor.shape[0], call.q.shape[1],
                                                                          *tensor.shape[2:]), dtype=dtype)  # fmt: skip
        if word == "k":
            name = _turned(site, name)
        if word in call.attrs.get("apart", ()) and tensor.shape[1] == call.q.shape[1]:
            apart = 0 if word != "k" else _FAR if isinstance(tensor.shape[-2], Dim) else tensor.shape[-2]
            name = b.op("copy", name, name=f"{word}_joined", dtype=dtype, access=("strided", 4, apart))
        names.append(name)
    return names


def _turned(site: Site, name: str) -> str:
    rank = len(site.b.shape(name))
    return site.b.op("permute", name, name="turned", axes=(*range(rank - 2), rank - 1, rank - 2))


def _probabilities(site: Site, call: Call, q: str, k: str) -> str:
    """Add scores, mask, softmax, zeros for rows without a key, and dropout."""
    b, dtype = site.b, site.b.tensor(q).dtype
    scores = b.op("bmm", q, k, name="scores", dtype=dtype)
    mask = _additive(site, call.mask, call.q.dtype) if call.mask is not None else _causal(site, call)
    if mask:
        scores = b.op("add", scores, mask, name="masked", dtype=dtype)
    weights = b.op("softmax", scores, name="softmax", dtype=dtype)
    none = b.op("elementwise", weights, name="is_hidden", dtype="bool", flops=0)
    rows = b.op("reduce", none, name="all_hidden", dtype="bool", axes=(-1,), keepdim=True, flops=0)
    zero = b.op("fill", name="zero", shape=(1,), dtype=dtype)
    weights = b.op("where", rows, zero, weights, name="or_zero", dtype=dtype)
    if not call.attrs.get("dropped"):
        return weights
    with b.kernel("dropout"):
        drawn = b.op("bernoulli", name="drawn", dtype="bool", shape=b.shape(weights))
        return b.op("dropout", weights, drawn, name="dropped", dtype=dtype)


def _causal(site: Site, call: Call) -> str:
    """Add a causal mask: ones, their lower triangle, and numbers of it."""
    if not call.attrs.get("causal"):
        return ""
    ones = site.b.op("fill", name="ones", shape=(call.q.shape[-2], call.k.shape[-2]), dtype="bool")
    seen = site.b.op("copy", ones, name="tril", dtype="bool")
    return _additive(site, site.b.tensor(seen), call.q.dtype)


def _math(site: Site) -> str:
    call, b, half = call_of(site), site.b, site.dtype in ("bf16", "fp16")
    q, k, v = _operands(site, call)
    weights = _probabilities(site, call, q, k)
    if half:  # returned, though nobody asks
        b.op("cast", weights, name="weights", dtype=site.dtype)
    out = b.op("bmm", weights, v, name="values", dtype=b.tensor(v).dtype)
    return b.op("cast", out, name="result", dtype=site.dtype) if half else out


def _math_backward(site: Site) -> None:
    """Add the gradients of those kernels, whose results are read again."""
    call, b, half = call_of(site), site.b, site.dtype in ("bf16", "fp16")
    dtype = "fp32" if half else site.dtype
    q, k, v = (b.source(word, t.shape, "cache", dtype) for word, t in zip("qkv", (call.q, call.k, call.v), strict=True))
    grad = b.op("cast", site.read(call.q), name="grad_fp32", dtype=dtype) if half else site.read(call.q)
    weights = b.source("weights", (*call.q.shape[:-1], call.k.shape[-2]), "cache", dtype)
    b.op("bmm", _turned(site, weights), grad, name="grad_v", dtype=dtype)
    back = b.op("bmm", grad, _turned(site, v), name="grad_weights", dtype=dtype)
    if call.attrs.get("dropped"):
        back = b.op("mul", back, weights, name="grad_dropout", dtype=dtype)
    back = b.op("mask", back, back, name="grad_or_zero", dtype=dtype)
    back = b.op("softmax_grad", back, weights, name="grad_softmax", dtype=dtype)
    b.op("bmm", back, k, name="grad_q", dtype=dtype)
    b.op("bmm", _turned(site, back), q, name="grad_k", dtype=dtype)
    for word, name in (("q", q), ("k", k)):
        b.op("mul_scalar", name, name=f"grad_{word}_scaled", dtype=dtype)
    for word, name in (("q", q), ("k", k), ("v", v)) if half else ():
        b.op("cast", name, name=f"grad_{word}_{site.dtype}", dtype=site.dtype)


RULES = (
    Rule("sdpa", "plain matmuls in fp32: scores, mask, softmax, zeros for rows without a key, values", FORWARD,
         _math, _is_math),
    Rule("sdpa", "a mask of numbers and padded operands, then the fused kernel", FORWARD, _prepared, _needs_preparing),
    *(Rule(op, "the fused kernel, whose tiles are wider than the heads", CUDNN, _widened, _is_padded_inside)
      for op in ("sdpa", "sdpa_backward")),
    Rule("sdpa_backward", "the gradients of plain matmuls in fp32", FORWARD, _math_backward, _is_math),
)  # fmt: skip
