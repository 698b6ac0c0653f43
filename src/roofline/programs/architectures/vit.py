"""Vision transformers: patches by convolution, tokens beside them, learned or rotary positions.

The defaults are torchvision's ViT; CLIP, SigLIP, DINOv2, BEiT, Pixtral and Qwen's vision tower differ in options. A
tower of a multimodal model ends in a projector to the width of the language model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pydantic import Field

from roofline.ir.graph import Graph, Info
from roofline.ops.builder import Builder
from roofline.programs.architectures.config import Config, Count, Family, Layers, Positive
from roofline.programs.architectures.encoder import head_width
from roofline.programs.layers import primitives
from roofline.programs.layers.attention import Attention, HeadNorm
from roofline.programs.layers.base import Chain, Layer, Norm, Residual, Run
from roofline.programs.layers.feedforward import MLP
from roofline.programs.layers.primitives import cross_entropy, linear, merge_heads, part, split_heads, weights


class ImageKeys(Config):
    """What comes before the layers."""

    image: Positive  #: Height and width of the image.
    patch: Positive  #: Height and width of a patch.
    channels: Positive = 3  #: Colours of the image, times the frames that a patch spans.
    crop: bool = False  #: Whether an image that is not a multiple of a patch loses its edge, instead of being refused.
    class_token: bool = True  #: A token beside the patches.
    tokens: Count = 0  #: More tokens beside them (DeiT's distillation token, registers).
    #: Rows of the table of positions, as many as there are tokens when absent, 0 for no table.
    position_rows: Count | None = None
    idle: Count = 0  #: Parameters of the embeddings that a forward pass does not touch, such as a mask token.
    patch_bias: bool = True  #: Bias of the convolution.
    embed_norm: bool = False  #: A norm of the embeddings (CLIP).

    @property
    def edge(self) -> int:
        """Patches along an edge of the image."""
        return self.image // self.patch

    @property
    def prefix(self) -> int:
        """Tokens beside the patches."""
        return self.class_token + self.tokens

    @property
    def length(self) -> int:
        """All tokens."""
        return self.edge**2 + self.prefix


class Projector(Config):
    """The projector of a tower to the width of the language model."""

    norm: Literal["", "layernorm", "rmsnorm"] = ""  #: Kind of norm, empty for none.
    norm_merged: bool = False  #: Whether it comes after patches are merged.
    merge: Positive = 1  #: Patches along each edge that become one token, side by side in its columns.
    reduce: bool = False  #: Whether the columns of a merged token are projected back to ``hidden``.
    pool: Positive = 1  #: Patches along each edge that are averaged.
    widths: tuple[Positive, ...] = Field((), max_length=8)  #: Outputs of the linear layers.
    bias: bool = True  #: Biases of these.
    activation: Literal["gelu", "gelu_tanh", "silu", "relu"] = "gelu"  #: Between them.
    prefix: bool = False  #: Whether the projector takes the tokens beside the patches as well.


class ViTConfig(ImageKeys):
    """Sizes and options of a vision transformer."""

    hidden: Positive  #: Width of the residual stream.
    layers: Layers  #: Number of blocks.
    heads: Positive  #: Attention heads.
    intermediate: Positive | None = None  #: Inner size of the feed-forward block, ``4 * hidden`` when absent.
    classes: Positive = 1000  #: Outputs of the head.
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"  #: Kind of norm.
    activation: Literal["gelu", "gelu_tanh", "quick_gelu", "silu", "relu"] = "gelu"  #: Of the feed-forward block.
    gated: bool = False  #: Whether the feed-forward block has a gate.
    qkv_bias: bool = True  #: Biases of the q, k and v projections.
    k_bias: bool = True  #: Whether the bias of k is among them.
    out_bias: bool = True  #: Bias of the attention output projection.
    mlp_bias: bool = True  #: Biases of the feed-forward block.
    layer_scale: bool = False  #: A learned scale of each branch.
    rope: bool = False  #: Whether queries and keys are rotated.
    final_norm: bool = True  #: A norm at the end.
    #: What follows: ``classes``, from the class token; ``classes_mean``, from it beside the mean of the patches;
    #: ``mean``, from the normed mean of the patches; ``mean_only``, that mean itself; ``pooler``, a dense layer and a
    #: tanh; ``normed``, the normed class token; ``attention``, attention of one learned query and a feed-forward block
    #: (SigLIP); ``project``, the normed class token projected to ``classes`` columns without a bias; ``tokens``, a
    #: projector of the tokens, ``project``; ``none``.
    head: Literal[
        "classes", "classes_mean", "mean", "mean_only", "pooler", "normed", "attention", "project", "tokens", "none"
    ] = "classes"  # fmt: skip
    #: A head that runs beside it, without its output being used: ``normed`` or ``attention``.
    also: Literal["", "normed", "attention"] = ""
    project: Projector = Projector()  #: The projector at the end.
    deepstack: Count = 0  #: Projectors of earlier layers beside the last, which norm merged tokens (Qwen3-VL).
    qk_norm: bool = False  #: Norm of queries and keys over all heads together.
    fused_qkv: bool = True  #: One projection for q, k and v, as torch's multi-head attention runs it.
    attention: Literal["sdpa", "naive"] = "sdpa"  #: ``sdpa`` (one kernel) or ``naive`` (scores written out).

    @property
    def inner(self) -> int:
        """Inner size of the feed-forward block."""
        return self.intermediate or 4 * self.hidden


@dataclass(frozen=True)
class VisionTransformer:
    """A stack of layers on patches, and what follows it."""

    config: ViTConfig
    blocks: Sequence[Layer]

    def __call__(self, b: Builder, phase: str) -> Graph:
        c = self.config
        run = Run(b, phase, new=c.length, context=c.length, width=c.hidden, naive=c.attention == "naive")
        x = self.embeddings(run)
        if c.rope:
            run.cos, run.sin = (b.input(name, (c.length, c.hidden // c.heads)) for name in ("cos", "sin"))
        for layer, block in enumerate(self.blocks):
            with b.scope(f"layers.{layer}"):
                x = block(run, x)
        if c.final_norm:
            x = Norm(c.norm)(run, x)
        outputs = [HEADS[name](run, c, x) for name in (c.head, c.also) if name]
        merged = c.model_copy(update={"project": c.project.model_copy(update={"norm_merged": True})})
        for number in range(c.deepstack):
            with b.scope(f"again.{number}"):
                outputs.append(_tokens(run, merged, x))
        if phase == "train" and c.head in ("classes", "classes_mean", "mean"):
            outputs = [cross_entropy(b, outputs[0])]
        return b.graph(outputs, run.batch, "image", Info(layers=c.layers))

    def embeddings(self, run: Run) -> str:
        """Return patches, tokens beside them and positions."""
        b, c = run.b, self.config
        pixels = b.input("image", (run.batch, c.channels, c.image, c.image))
        kernels = weights(b, "patches", (c.hidden, c.channels, c.patch, c.patch), c.patch_bias)
        x = b.op("conv2d", pixels, *kernels, name="patches", stride=c.patch)
        x = b.op("view", x, name="tokens", shape=(run.batch, c.edge**2, c.hidden))
        if c.prefix:
            extra = b.weight("class_token", (1, c.prefix, c.hidden))
            one = b.op("expand", extra, name="class_tokens", shape=(run.batch, c.prefix, c.hidden))
            x = b.op("cat", one, x, name="with_class", axis=1)
        if c.idle:
            b.weight("idle", (c.idle,))
        if c.position_rows != 0:
            x = b.op("add", x, self.positions(run), name="embed_positions")
        return Norm(c.norm, name="embed_norm")(run, x) if c.embed_norm else x

    def positions(self, run: Run) -> str:
        """Return the table of positions; one of another size is brought to the image's."""
        c = self.config
        rows = c.position_rows or c.length
        table = run.b.weight("positions", (1, rows, c.hidden))
        if rows == c.length:
            return table
        return run.b.op("rearrange", table, name="positions_resized", shape=(1, c.length, c.hidden))


@dataclass(frozen=True)
class LayerScale:
    """A learned scale of each column."""

    def __call__(self, run: Run, x: str) -> str:
        return run.b.op("mul", x, run.b.weight("layer_scale", (run.width,)), name="scaled")


# --- heads -----------------------------------------------------------------------------------------------------------


def _first(run: Run, c: ViTConfig, x: str) -> str:
    return run.b.op("slice", x, name="first", shape=(run.batch, c.hidden))


def _patch_tokens(run: Run, c: ViTConfig, x: str, prefix: bool = False) -> str:
    length = c.length if prefix else c.edge**2
    return run.b.op("slice", x, name="patch_tokens", shape=(run.batch, length, c.hidden)) if c.prefix else x


def _mean(run: Run, c: ViTConfig, x: str) -> str:
    shape = (run.batch, c.hidden, c.edge**2)
    return run.b.op("mean", run.b.op("view", _patch_tokens(run, c, x), name="by_column", shape=shape), name="mean")


def _labels(run: Run, c: ViTConfig, x: str) -> str:
    return linear(run.b, x, c.classes, "head", bias=True)


def _normed_mean(run: Run, c: ViTConfig, x: str) -> str:
    return Norm(c.norm, name="pooled_norm")(run, _mean(run, c, x))


def _normed(run: Run, c: ViTConfig, x: str) -> str:
    return Norm(c.norm, name="pooled_norm")(run, _first(run, c, x))


def _attention_pool(run: Run, c: ViTConfig, x: str) -> str:
    """Let one learned query attend to all tokens; a normed feed-forward block is added."""
    b = run.b
    with b.scope("pool"):
        probe = b.op("expand", b.weight("probe", (1, 1, c.hidden)), name="probes", shape=(run.batch, 1, c.hidden))
        q = split_heads(b, linear(b, probe, c.hidden, "q", True), c.heads, "q_heads")
        both = linear(b, x, 2 * c.hidden, "kv", True)
        k, v = (split_heads(b, part(b, both, c.hidden, name), c.heads, f"{name}_heads") for name in "kv")
        y = linear(b, merge_heads(b, primitives.attention(b, q, k, v)), c.hidden, "out", True)
        z = MLP(c.inner, c.activation, gated=False, bias=True)(run, Norm(c.norm)(run, y))
        return b.op("slice", b.op("add", y, z, name="residual"), name="pooled", shape=(run.batch, c.hidden))


def _tokens(run: Run, c: ViTConfig, x: str) -> str:
    """Add the projector: pooled or merged patches through norms and linear layers."""
    b, project = run.b, c.project
    norm = Norm(project.norm) if project.norm else None
    with b.scope("projector"):
        x = _patch_tokens(run, c, x, project.prefix)
        if project.pool > 1:
            square = b.op("view", x, name="square", shape=(run.batch, c.hidden, c.edge, c.edge))
            small = b.op("avgpool2d", square, name="pooled", r=project.pool)
            shape = (run.batch, (c.edge // project.pool) ** 2, c.hidden)
            x = b.op("view", small, name="pooled_tokens", shape=shape)
        if norm and not project.norm_merged:
            x = norm(run, x)
        if (joined := project.merge) > 1:  # neighbouring patches side by side: a copy
            shape = (run.batch, (c.edge // joined) ** 2, c.hidden * joined**2)
            x = b.op("rearrange", x, name="merged", shape=shape)
        if project.reduce:
            x = linear(b, x, c.hidden, "merging")
        if norm and project.norm_merged:
            x = norm(run, x)
        for number, width in enumerate(project.widths):
            if number:
                x = b.op(project.activation, x, name=f"act_{number}")
            x = linear(b, x, width, f"linear_{number + 1}", project.bias)
        return x


HEADS: dict[str, Callable[[Run, ViTConfig, str], str]] = {
    "classes": lambda run, c, x: _labels(run, c, _first(run, c, x)),
    "classes_mean": lambda run, c, x: _labels(
        run, c, run.b.op("cat", _first(run, c, x), _mean(run, c, x), name="class_and_mean")),
    "mean": lambda run, c, x: _labels(run, c, _normed_mean(run, c, x)),
    "mean_only": _normed_mean,
    "pooler": lambda run, c, x: run.b.op(
        "tanh", linear(run.b, _first(run, c, x), c.hidden, "pooler", bias=True), name="pooled"),
    "normed": _normed,
    "attention": _attention_pool,
    "project": lambda run, c, x: linear(run.b, _normed(run, c, x), c.classes, "head"),
    "tokens": _tokens,
    "none": lambda run, c, x: x,
}  # fmt: skip


# --- a config to layers ----------------------------------------------------------------------------------------------


def vision_transformer(c: ViTConfig) -> VisionTransformer:
    """Compose a vision transformer.

    Raises:
        ValueError: Sizes that do not fit together.
    """
    width = head_width(c)
    if c.image % c.patch and not c.crop:
        raise ValueError(f"image = {c.image} is not a multiple of patch = {c.patch}")
    if c.image < c.patch:
        raise ValueError(f"image = {c.image} is smaller than patch = {c.patch}")
    if c.rope and width % 2:
        raise ValueError("rotary embedding needs an even head width")
    if c.edge < max(c.project.merge, c.project.pool):
        raise ValueError(f"{c.edge} patches along an edge are fewer than the projector joins")
    attention = Attention(
        c.heads, c.heads, width, causal=False, rotates=c.rope, fused=c.fused_qkv and c.k_bias, qkv_bias=c.qkv_bias,
        k_bias=c.k_bias, out_bias=c.out_bias, norm=HeadNorm(over="width") if c.qk_norm else None,
    )  # fmt: skip
    mlp = MLP(c.inner, c.activation, c.gated, bias=c.mlp_bias)
    residual = Residual("attn", attention, Norm(c.norm), LayerScale() if c.layer_scale else None)
    block = Chain((residual, replace(residual, scope="mlp", branch=mlp)))
    return VisionTransformer(c, [block] * c.layers)


FAMILIES = {"vit": Family("vit", ViTConfig, vision_transformer)}
