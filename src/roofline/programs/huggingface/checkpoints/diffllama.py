"""DiffLlama: attention as the difference of two (Differential Transformer, 2024), in the order of transformers."""

from __future__ import annotations

from dataclasses import dataclass

from roofline.programs.architectures import decoder as parts
from roofline.programs.architectures.decoder_keys import DecoderConfig
from roofline.programs.huggingface import groups
from roofline.programs.huggingface.keys import row
from roofline.programs.layers.attention import Attention
from roofline.programs.layers.base import Layer, Run, become


@dataclass(frozen=True)
class DifferentialAttention(Attention):
    """``(softmax(q1 k1) - lambda softmax(q2 k2)) v`` with values twice as wide.

    It runs as two attentions over all heads, one for each half of the values.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.heads % 2 or self.kv_heads % 2:
            raise ValueError("differential attention needs an even number of heads and of key-value heads")

    def attend(self, run: Run, q: str, k: str, v: str, bias: str = "") -> str:
        """Add both attentions and their difference."""
        b = run.b
        batch, heads, new, width = b.shape(q)
        halves = []
        for name in ("first", "second"):
            with b.scope(name):
                half = b.op("slice", v, name="v_half", shape=(batch, b.shape(v)[1] // 2, *b.shape(v)[2:]))
                halves.append(super().attend(run, q, k, b.op("cat", half, half, name="v_twice", axis=1), bias))
        both = b.op("cat", *halves, name="both")
        shape = (batch, heads // 2, new, 2 * width)
        first, second = (b.op("slice", both, name=name, shape=shape) for name in ("kept", "taken"))
        y = b.op("sub", first, b.op("mul", second, self.weight(run), name="weighted"), name="difference")
        y = b.op("mul_scalar", b.op("rmsnorm", y, name="pair_norm"), name="pair_scaled")
        return b.op("view", y, name="pairs", shape=(batch, heads, new, width))

    def weight(self, run: Run) -> str:
        """Return ``exp(q1 . k1) - exp(q2 . k2)`` plus a constant of the layer."""
        b, shares = run.b, []
        for index in (1, 2):
            q, k = (b.weight(f"lambda_{name}{index}", (self.width,)) for name in "qk")
            total = b.op("reduce", b.op("mul", q, k, name=f"lambda{index}_qk"), name=f"lambda{index}_sum", keepdim=True)
            shares.append(b.op("exp", total, name=f"lambda{index}"))
        return b.op("add_scalar", b.op("sub", *shares, name="lambda_difference"), name="lambda")


def _attend(c: DecoderConfig, layer: int) -> Layer:
    return become(DifferentialAttention, parts.attention(c, layer))


ROWS = {
    "diffllama": row(*groups.LLAMA, groups.biases, family=parts.variant(attend=_attend)),
}  # fmt: skip
