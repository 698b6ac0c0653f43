"""Vision transformers: patches by convolution, tokens beside them, learned or rotary positions.

The defaults are torchvision's ViT; CLIP, SigLIP, DINOv2, BEiT, Pixtral and Qwen's vision tower differ in options. A
tower of a multimodal model ends in a projector to the width of the language model.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from roofline.ir.graph import Graph, Info
from roofline.ir.sizes import Size, symbol
from roofline.ops.builder import Builder
from roofline.programs.families import blocks
from roofline.programs.families.config import Config, Count, Family, Layers, Positive
from roofline.programs.families.encoder import qkv


class ViTConfig(Config):
    """Sizes and options of a vision transformer.

    Attributes:
        image: Height and width of the image.
        patch: Height and width of a patch.
        hidden: Width of the residual stream.
        layers: Number of blocks.
        heads: Attention heads.
        intermediate: Inner size of the feed-forward block, ``4 * hidden`` when absent.
        classes: Outputs of the head.
        channels: Colours of the image, times the frames that a patch spans.
        crop: Whether an image that is no multiple of a patch loses its edge, instead of being refused.
        class_token: A token beside the patches.
        tokens: More tokens beside them (DeiT's distillation token, registers).
        position_rows: Rows of the table of positions, as many as there are tokens when absent, 0 for no table.
        idle: Parameters of the embeddings that a forward pass does not touch, such as a mask token.
        patch_bias: Bias of the convolution.
        embed_norm: A norm of the embeddings (CLIP).
        norm: Kind of norm.
        activation: Of the feed-forward block.
        gated: Whether the feed-forward block has a gate.
        qkv_bias: Biases of the q, k and v projections.
        k_bias: Whether the bias of k is among them.
        out_bias: Bias of the attention output projection.
        mlp_bias: Biases of the feed-forward block.
        layer_scale: A learned scale of each branch.
        rope: Whether queries and keys are rotated.
        final_norm: A norm at the end.
        head: What follows: ``classes``, from the class token; ``classes_mean``, from it beside the mean of the patches;
            ``mean``, from the normed mean of the patches; ``mean_only``, that mean itself; ``pooler``, a dense layer
            and a tanh; ``normed``, the normed class token; ``attention``, attention of one learned query and a
            feed-forward block (SigLIP); ``project``, the normed class token projected to ``classes`` columns without a
            bias; ``tokens``, a projector of the tokens that ``project_*`` describe; ``none``.
        also: A head that runs beside it, without its output being used: ``normed`` or ``attention``.
        project_norm: Kind of norm in the projector, empty for none.
        project_norm_merged: Whether it comes after patches are merged.
        project_merge: Patches along each edge that become one token, side by side in its columns.
        project_reduce: Whether the columns of a merged token are projected back to ``hidden``.
        project_pool: Patches along each edge that are averaged.
        project_widths: Outputs of the projector's linear layers, with activations between them.
        project_bias: Biases of these.
        project_activation: Between them.
        project_prefix: Whether the projector takes the tokens beside the patches as well.
        project_again: Projectors of earlier layers beside the last, which norm merged tokens (Qwen3-VL).
        qk_norm: Norm of queries and keys over all heads together.
        fused_qkv: One projection for q, k and v, as torch's multi-head attention runs it.
        attention: ``sdpa`` (one kernel) or ``naive`` (scores written out).
    """

    image: Positive
    patch: Positive
    hidden: Positive
    layers: Layers
    heads: Positive
    intermediate: Positive | None = None
    classes: Positive = 1000
    channels: Positive = 3
    crop: bool = False
    class_token: bool = True
    tokens: Count = 0
    position_rows: Count | None = None
    idle: Count = 0
    patch_bias: bool = True
    embed_norm: bool = False
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    activation: Literal["gelu", "gelu_tanh", "quick_gelu", "silu", "relu"] = "gelu"
    gated: bool = False
    qkv_bias: bool = True
    k_bias: bool = True
    out_bias: bool = True
    mlp_bias: bool = True
    layer_scale: bool = False
    rope: bool = False
    final_norm: bool = True
    head: Literal[
        "classes", "classes_mean", "mean", "mean_only", "pooler", "normed", "attention", "project", "tokens", "none"
    ] = "classes"  # fmt: skip
    also: Literal["", "normed", "attention"] = ""
    project_norm: Literal["", "layernorm", "rmsnorm"] = ""
    project_norm_merged: bool = False
    project_merge: Positive = 1
    project_reduce: bool = False
    project_pool: Positive = 1
    project_widths: tuple[Positive, ...] = Field((), max_length=8)
    project_bias: bool = True
    project_activation: Literal["gelu", "gelu_tanh", "silu", "relu"] = "gelu"
    project_prefix: bool = False
    project_again: Count = 0
    qk_norm: bool = False
    fused_qkv: bool = True
    attention: Literal["sdpa", "naive"] = "sdpa"

    @model_validator(mode="after")
    def _consistent(self) -> ViTConfig:
        if self.hidden % self.heads:
            raise ValueError(f"hidden = {self.hidden} is no multiple of heads = {self.heads}")
        if self.image % self.patch and not self.crop:
            raise ValueError(f"image = {self.image} is no multiple of patch = {self.patch}")
        if self.image < self.patch:
            raise ValueError(f"image = {self.image} is smaller than patch = {self.patch}")
        if self.rope and self.hidden // self.heads % 2:
            raise ValueError("rotary embedding needs an even head width")
        edge = self.image // self.patch
        if edge < self.project_merge or edge < self.project_pool:
            raise ValueError(f"{edge} patches along an edge are fewer than the projector joins")
        return self

    @property
    def patches(self) -> int:
        """Patches of an image."""
        return (self.image // self.patch) ** 2

    @property
    def prefix(self) -> int:
        """Tokens beside them."""
        return self.class_token + self.tokens


def _build(b: Builder, c: ViTConfig) -> Graph:
    batch = symbol("B")
    x = _embeddings(b, c)
    length = c.patches + c.prefix
    cos, sin = (b.input(n, (length, c.hidden // c.heads)) for n in ("cos", "sin")) if c.rope else ("", "")
    for layer in range(c.layers):
        with b.scope(f"layers.{layer}"):
            x = _layer(b, c, x, cos, sin)
    if c.final_norm:
        x = blocks.norm(b, x, c.norm, "norm")
    outputs = [HEADS[c.head](b, c, x)]
    if c.also:
        outputs.append(HEADS[c.also](b, c, x))
    for number in range(c.project_again):
        with b.scope(f"again.{number}"):
            outputs.append(_tokens(b, c.model_copy(update={"project_norm_merged": True}), x))
    return b.graph(outputs, batch, "image", Info(layers=c.layers))


def _embeddings(b: Builder, c: ViTConfig) -> str:
    batch = symbol("B")
    pixels = b.input("image", (batch, c.channels, c.image, c.image))
    weights = [b.weight("patches.weight", (c.hidden, c.channels, c.patch, c.patch))]
    if c.patch_bias:
        weights.append(b.weight("patches.bias", (c.hidden,)))
    x = b.op("conv2d", pixels, *weights, name="patches", stride=c.patch)
    x = b.op("view", x, name="tokens", shape=(batch, c.patches, c.hidden))
    if c.prefix:
        extra = b.weight("class_token", (1, c.prefix, c.hidden))
        one = b.op("expand", extra, name="class_tokens", shape=(batch, c.prefix, c.hidden))
        x = b.op("cat", one, x, name="with_class", axis=1)
    if c.idle:
        b.weight("idle", (c.idle,))
    if c.position_rows != 0:
        x = b.op("add", x, _positions(b, c, c.patches + c.prefix), name="embed_positions")
    return blocks.norm(b, x, c.norm, "embed_norm") if c.embed_norm else x


def _positions(b: Builder, c: ViTConfig, length: int) -> str:
    """The table of positions; one of another size is brought to the image's."""
    rows = c.position_rows or length
    table = b.weight("positions", (1, rows, c.hidden))
    return table if rows == length else b.op("rearrange", table, name="positions_resized", shape=(1, length, c.hidden))


def _layer(b: Builder, c: ViTConfig, x: str, cos: str, sin: str) -> str:
    with b.scope("attn"):
        y = blocks.norm(b, x, c.norm, "norm")
        q, k, v = qkv(b, y, c.heads, c.hidden, c.fused_qkv and c.k_bias, c.qkv_bias, c.k_bias)
        if c.qk_norm:
            q, k = _whole_norm(b, c, q, "q_norm"), _whole_norm(b, c, k, "k_norm")
        if c.rope:
            q, k = blocks.rope(b, q, cos, sin, "rope_q"), blocks.rope(b, k, cos, sin, "rope_k")
        attend = blocks.attention if c.attention == "sdpa" else blocks.naive_attention
        y = blocks.linear(b, blocks.merge_heads(b, attend(b, q, k, v)), c.hidden, "out", bias=c.out_bias)
        x = _sum(b, c, x, y)
    with b.scope("mlp"):
        y = blocks.norm(b, x, c.norm, "norm")
        inner = c.intermediate or 4 * c.hidden
        y = blocks.mlp(b, y, inner, c.activation, is_gated=c.gated, bias=c.mlp_bias)
        return _sum(b, c, x, y)


def _whole_norm(b: Builder, c: ViTConfig, x: str, name: str) -> str:
    """A norm over all heads together."""
    return blocks.split_heads(b, blocks.norm(b, blocks.merge_heads(b, x), "rmsnorm", name), c.heads, f"{name}_heads")


def _sum(b: Builder, c: ViTConfig, x: str, y: str) -> str:
    if c.layer_scale:
        y = b.op("mul", y, b.weight("layer_scale", (c.hidden,)), name="scaled")
    return b.op("add", x, y, name="residual")


# --- heads -----------------------------------------------------------------------------------------------------------


def _first(b: Builder, c: ViTConfig, x: str) -> str:
    return b.op("slice", x, name="first", shape=(symbol("B"), c.hidden))


def _patch_tokens(b: Builder, c: ViTConfig, x: str, prefix: bool = False) -> str:
    length = c.patches + (c.prefix if prefix else 0)
    return b.op("slice", x, name="patch_tokens", shape=(symbol("B"), length, c.hidden)) if c.prefix else x


def _mean(b: Builder, c: ViTConfig, x: str) -> str:
    columns = b.op("view", _patch_tokens(b, c, x), name="by_column", shape=(symbol("B"), c.hidden, c.patches))
    return b.op("mean", columns, name="mean")


def _classes(b: Builder, c: ViTConfig, x: str) -> str:
    return blocks.linear(b, _first(b, c, x), c.classes, "head", bias=True)


def _classes_mean(b: Builder, c: ViTConfig, x: str) -> str:
    both = b.op("cat", _first(b, c, x), _mean(b, c, x), name="class_and_mean")
    return blocks.linear(b, both, c.classes, "head", bias=True)


def _mean_classes(b: Builder, c: ViTConfig, x: str) -> str:
    return blocks.linear(b, _normed_mean(b, c, x), c.classes, "head", bias=True)


def _normed_mean(b: Builder, c: ViTConfig, x: str) -> str:
    return blocks.norm(b, _mean(b, c, x), c.norm, "pooled_norm")


def _pooler(b: Builder, c: ViTConfig, x: str) -> str:
    return b.op("tanh", blocks.linear(b, _first(b, c, x), c.hidden, "pooler", bias=True), name="pooled")


def _normed(b: Builder, c: ViTConfig, x: str) -> str:
    return blocks.norm(b, _first(b, c, x), c.norm, "pooled_norm")


def _project(b: Builder, c: ViTConfig, x: str) -> str:
    return blocks.linear(b, _normed(b, c, x), c.classes, "head")


def _attention_pool(b: Builder, c: ViTConfig, x: str) -> str:
    """One learned query attends to all tokens; a normed feed-forward block is added."""
    batch, width = symbol("B"), c.hidden // c.heads
    with b.scope("pool"):
        probe = b.op("expand", b.weight("probe", (1, 1, c.hidden)), name="probes", shape=(batch, 1, c.hidden))
        q = blocks.split_heads(b, blocks.linear(b, probe, c.hidden, "q", True), c.heads, "q_heads")
        both = blocks.linear(b, x, 2 * c.hidden, "kv", True)
        shape = (batch, c.heads, b.shape(x)[1], width)
        k, v = (b.op("view", blocks.part(b, both, c.hidden, n), name=f"{n}_heads", shape=shape) for n in "kv")
        y = blocks.linear(b, blocks.merge_heads(b, blocks.attention(b, q, k, v)), c.hidden, "out", True)
        z = blocks.norm(b, y, c.norm, "norm")
        z = blocks.mlp(b, z, c.intermediate or 4 * c.hidden, c.activation, bias=True)
        return b.op("slice", b.op("add", y, z, name="residual"), name="pooled", shape=(batch, c.hidden))


def _tokens(b: Builder, c: ViTConfig, x: str) -> str:
    """The projector: pooled or merged patches through norms and linear layers."""
    with b.scope("projector"):
        x = _patch_tokens(b, c, x, c.project_prefix)
        if c.project_pool > 1:
            x = _pooled(b, c, x)
        if c.project_norm and not c.project_norm_merged:
            x = blocks.norm(b, x, c.project_norm, "norm")
        if c.project_merge > 1:
            x = _merged(b, c, x)
        if c.project_reduce:
            x = blocks.linear(b, x, c.hidden, "merging")
        if c.project_norm and c.project_norm_merged:
            x = blocks.norm(b, x, c.project_norm, "norm")
        for number, width in enumerate(c.project_widths):
            if number:
                x = b.op(c.project_activation, x, name=f"act_{number}")
            x = blocks.linear(b, x, width, f"linear_{number + 1}", c.project_bias)
        return x


def _edge(c: ViTConfig, joined: int) -> int:
    return c.image // c.patch // joined


def _pooled(b: Builder, c: ViTConfig, x: str) -> str:
    edge, batch = c.image // c.patch, symbol("B")
    square = b.op("view", x, name="square", shape=(batch, c.hidden, edge, edge))
    small = b.op("avgpool2d", square, name="pooled", r=c.project_pool)
    return b.op("view", small, name="pooled_tokens", shape=(batch, _edge(c, c.project_pool) ** 2, c.hidden))


def _merged(b: Builder, c: ViTConfig, x: str) -> str:
    """Neighbouring patches side by side: a copy."""
    joined = c.project_merge
    shape: tuple[Size, ...] = (symbol("B"), _edge(c, joined) ** 2, c.hidden * joined**2)
    return b.op("rearrange", x, name="merged", shape=shape)


def _bare(b: Builder, c: ViTConfig, x: str) -> str:
    return x


HEADS = {
    "classes": _classes,
    "classes_mean": _classes_mean,
    "mean": _mean_classes,
    "mean_only": _normed_mean,
    "pooler": _pooler,
    "normed": _normed,
    "attention": _attention_pool,
    "project": _project,
    "tokens": _tokens,
    "none": _bare,
}


def _train(b: Builder, c: ViTConfig) -> Graph:
    """A loss follows where the model ends in classes."""
    graph = _build(b, c)
    if not c.head.startswith("classes") and c.head != "mean":
        return graph
    return b.graph([blocks.cross_entropy(b, graph.outputs[0])], graph.items, graph.item, graph.info)


FAMILIES = {"vit": Family("vit", ViTConfig, {"forward": _build, "train": _train})}
