"""DeepSeek-V3.2, GLM-MoE-DSA and MiniMax-M3: a small attention picks the positions to attend to.

Its projections, its keys in the cache and its scores are counted; attention itself still reads all positions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import Field

from roofline.programs.architectures import decoder as parts
from roofline.programs.architectures.config import Count, in_turn
from roofline.programs.architectures.decoder_keys import DecoderConfig
from roofline.programs.huggingface import experts, groups
from roofline.programs.huggingface.keys import Keys, row
from roofline.programs.layers.base import Layer, Run
from roofline.programs.layers.primitives import norm, rope, split_heads


class IndexConfig(DecoderConfig):
    """A decoder's keys and those of the small attention."""

    index_heads: Count = 0  #: Its heads, 0 for none.
    index_dim: Count = 0  #: Width of these heads.
    #: ``weighted``: queries from the query latent, weighted over the heads; ``heads``: queries and keys normed, a
    #: choice for each head (MiniMax-M3).
    index_kind: Literal["weighted", "heads"] = "weighted"
    #: Whether a layer has one, in turn over the depth.
    index_pattern: tuple[bool, ...] = Field((True,), min_length=1, max_length=2000)


@dataclass(frozen=True)
class Indexer:
    """Scores of all positions by a small attention with one key for all heads (DeepSeek-V3.2, section 2.1)."""

    heads: int
    width: int
    weighted: bool = True

    def __call__(self, run: Run, source: str, x: str) -> None:
        b = run.b
        with b.scope("index"):
            q = split_heads(b, run.linear(source, self.heads * self.width, "q"), self.heads, "q_heads")
            key = norm(b, run.linear(x, self.width, "k"), "layernorm" if self.weighted else "rmsnorm", "k_norm")
            q = q if self.weighted else norm(b, q, "rmsnorm", "q_norm")
            key = split_heads(b, key, 1, "k_head")
            q, key = rope(b, q, run.cos, run.sin, "rope_q"), rope(b, key, run.cos, run.sin, "rope_k")
            keys, causal = run.store(key, "index_cache"), not run.decodes and not run.naive
            if self.weighted:
                self.score(run, x, q, keys, causal)
            else:
                b.op("attention_scores", q, keys, name="scores", causal=causal)

    def score(self, run: Run, x: str, q: str, keys: str, causal: bool) -> None:
        """Add up the rectified scores of the heads by weights that each position finds."""
        b, rows, held = run.b, run.batch * run.new, run.b.shape(keys)[2]
        weights = b.op("view", run.linear(x, self.heads, "weights"), name="by_row", shape=(rows, 1, self.heads))
        with b.kernel("scoring"):
            scores = b.op("relu", b.op("attention_scores", q, keys, name="scores", causal=causal), name="relu")
            scores = b.op("view", scores, name="scores_by_row", shape=(rows, self.heads, held))
            b.op("bmm", weights, scores, name="summed")


def _attend(c: IndexConfig, layer: int) -> Layer:
    index = None
    if c.index_heads:
        if c.index_dim < c.rotary:
            raise ValueError(f"index_dim = {c.index_dim} is less than the {c.rotary} columns that are rotated")
        if c.index_kind == "weighted" and not (c.mla and c.q_lora):
            raise ValueError("index_kind = weighted needs mla = true and q_lora")
        if in_turn(c.index_pattern, layer, True):
            index = Indexer(c.index_heads, c.index_dim, c.index_kind == "weighted")
    if c.mla:
        return replace(parts.latent_attention(c, layer), index=index)
    return replace(parts.attention(c, layer), index=index)


# --- configs ---------------------------------------------------------------------------------------------------------


def _index(c: Keys) -> dict[str, Any]:
    c.ignore("layer_types")
    chosen = c.needed("index_topk")
    c.notes.append(f"index_topk = {chosen}: the scores that pick positions are counted, and attention to all of them")
    return c.needs(index_heads="index_n_heads", index_dim="index_head_dim")


def _index_shared(c: Keys) -> dict[str, Any]:
    """Read which layers take the choice of one before: listed, in letters, or all but every n-th."""
    words = {"full": True, "shared": False, "F": True, "S": False}
    letters = c.get("index_topk_pattern")
    listed = c.words("indexer_types") or (list(letters) if isinstance(letters, str) else c.words("index_topk_pattern"))
    step, offset = c.size("index_topk_freq", least=0) or 1, c.get("index_skip_topk_offset")
    offset = 2 if offset is None else c.size("index_skip_topk_offset", least=0) or 0
    listed = c.per_layer("indexer_types", listed, words)
    every = [max(layer - offset + 1, 0) % step == 0 for layer in c.layers]
    return {**_index(c), "index_pattern": [words[word] for word in listed] if listed else every}


#: MiniMax-M3's keys, and what they are called in the table of the published checkpoint.
_M3_TABLE = {"index_n_heads": "sparse_num_index_heads", "index_head_dim": "sparse_index_dim",
             "index_block_size": "sparse_block_size", "index_topk_blocks": "sparse_topk_blocks"}  # fmt: skip


def _minimax_m3(c: Keys) -> dict[str, Any]:
    """Read experts as wide as ``intermediate_size``, dense layers and shared ones of their own size, picked blocks."""
    table = c.mapping("sparse_attention_config")
    c = c.having(**{key: table[own] for key, own in _M3_TABLE.items() if own in table})
    frequency, sparse = table.get("sparse_attention_freq"), ("full_attention", "minimax_m3_sparse")
    kinds = c.words("mlp_layer_types") or experts.flags(
        c, "moe_layer_freq", c.get("moe_layer_freq"), ("dense", "sparse"))  # fmt: skip
    mixers = c.words("layer_types") or experts.flags(c, "sparse_attention_config", frequency, sparse)
    kinds = c.per_layer("mlp_layer_types", kinds, ("dense", "sparse"))
    picks = [word == "minimax_m3_sparse" for word in c.per_layer("layer_types", mixers, sparse) or ()]
    feeds = experts.sparse(c, lambda i: kinds is None or kinds[i] == "sparse")
    c.ignore("swiglu_alpha", "swiglu_limit", "hidden_act", "index_local_blocks")
    block, chosen = c.needed("index_block_size"), c.needed("index_topk_blocks")
    picked = {**c.needs(index_heads="index_n_heads", index_dim="index_head_dim"), "index_kind": "heads",
              "index_pattern": picks}  # fmt: skip
    if any(picks):
        blocks = f"index_topk_blocks = {chosen} of {block} positions"
        c.notes.append(f"{blocks}: the scores that pick blocks are counted, and attention to all of them")
    routed = experts.routed(c, "num_local_experts", "num_experts_per_tok", feeds, c.needed("intermediate_size"))
    return {"intermediate": c.needed("dense_intermediate_size"), **(picked if any(picks) else {}), **routed,
            "shared_intermediate": c.size("shared_intermediate_size", least=0) or 0}  # fmt: skip


_FAMILY = parts.variant(IndexConfig, attend=_attend)
_DEEPSEEK = (*groups.LATENT, experts.deepseek)

ROWS = {
    "deepseek_v32": row(*_DEEPSEEK, _index, router="sigmoid", family=_FAMILY),
    "glm_moe_dsa": row(*_DEEPSEEK, _index_shared, router="sigmoid", family=_FAMILY),
    "minimax_m3_vl_text": row(groups.body, groups.heads, groups.rotary_dim, _minimax_m3, qk_norm=True, router="sigmoid",
        activation="clamped_swiglu", family=_FAMILY),
}  # fmt: skip
