"""LongCat-Flash: experts that return their input, and a dense block beside the experts of every other layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from roofline.programs.architectures import decoder as parts
from roofline.programs.architectures.config import Count
from roofline.programs.architectures.decoder_keys import DecoderConfig
from roofline.programs.huggingface import experts, groups
from roofline.programs.huggingface.keys import Keys, row
from roofline.programs.layers.base import Layer, Run, become
from roofline.programs.layers.feedforward import Experts


class LongCatConfig(DecoderConfig):
    """A decoder's keys and LongCat's own."""

    zero_experts: Count = 0  #: Experts beside the others that return their input, counted as if no token went there.


@dataclass(frozen=True)
class WithZeroExperts(Experts):
    """Experts beside some that do nothing: places in the router, and rows of the up-projection that nothing reads."""

    zero: int = 0

    @property
    def places(self) -> int:
        """Outputs of the router."""
        return self.experts + self.zero

    def up(self, run: Run, x: str) -> str:
        """Return the activated inner columns of the experts that rows are sent to."""
        y = super().up(run, x)
        if self.zero:
            shape = (self.zero, (1 + self.gated) * self.inner, run.width)
            run.b.weight("gate_up.idle", shape, run.expert_dtype or run.dtype or None)
        return y


def _feed(c: LongCatConfig, layer: int) -> Layer:
    if c.feed_of(layer) != "moe":
        return parts.mlp(c, c.inner)
    return parts.with_shared(c, become(WithZeroExperts, parts.experts(c), zero=c.zero_experts))


def _longcat(c: Keys) -> dict[str, Any]:
    """Read layers of which each is two: one with a dense block beside the experts, and one without experts.

    The experts' output joins the residual after the second, which costs as much.
    """
    if c.name("num_hidden_layers") == "num_hidden_layers":
        c.fail("num_hidden_layers", "twice num_layers; wanted num_layers itself")
    zero = c.size("zero_expert_num", least=0) or 0
    if zero:
        c.notes.append(f"zero_expert_num = {zero}: tokens are counted as sent to none of the experts that do nothing")
    feeds = ["moe", "dense"]
    routed = experts.routed(c, "n_routed_experts", "num_experts_per_tok", feeds, c.needed("moe_intermediate_size"))
    return {**routed, "feeds": feeds, "layers": 2 * len(c.layers), "zero_experts": zero,
            "shared_intermediate": c.needed("intermediate_size"), "router_bias": c.switch("router_bias")}  # fmt: skip


ROWS = {
    "longcat_flash": row(
        *groups.LATENT, _longcat,
        names={"num_hidden_layers": "num_layers", "num_experts_per_tok": "moe_topk",
               "intermediate_size": "ffn_hidden_size", "moe_intermediate_size": "expert_ffn_hidden_size"},
        family=parts.variant(LongCatConfig, feed=_feed),
    ),
}  # fmt: skip
