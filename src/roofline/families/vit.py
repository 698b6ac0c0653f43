"""Vision transformers as torchvision runs them: patches by convolution, a class token, learned positions."""

from __future__ import annotations

from pydantic import model_validator

from roofline.build import Builder
from roofline.families import blocks
from roofline.families.config import Config, Family, Layers, Positive
from roofline.families.encoder import qkv
from roofline.graph import Graph
from roofline.sizes import symbol


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
        channels: Colours of the image.
        fused_qkv: One projection for q, k and v, as torch's multi-head attention runs it.
    """

    image: Positive
    patch: Positive
    hidden: Positive
    layers: Layers
    heads: Positive
    intermediate: Positive | None = None
    classes: Positive = 1000
    channels: Positive = 3
    fused_qkv: bool = True

    @model_validator(mode="after")
    def _consistent(self) -> ViTConfig:
        if self.hidden % self.heads:
            raise ValueError(f"hidden = {self.hidden} is no multiple of heads = {self.heads}")
        if self.image % self.patch:
            raise ValueError(f"image = {self.image} is no multiple of patch = {self.patch}")
        return self


def _build(b: Builder, c: ViTConfig) -> Graph:
    batch = symbol("B")
    x = _patches(b, c)
    for layer in range(c.layers):
        with b.scope(f"layers.{layer}"):
            x = _layer(b, c, x)
    x = blocks.norm(b, x, "layernorm", "norm")
    first = b.op("slice", x, name="first", shape=(batch, c.hidden))
    logits = blocks.linear(b, first, c.classes, "head", bias=True)
    return b.graph([logits], batch, "image", {"layers": c.layers, "image": c.image})


def _patches(b: Builder, c: ViTConfig) -> str:
    batch, tokens = symbol("B"), (c.image // c.patch) ** 2
    pixels = b.input("image", (batch, c.channels, c.image, c.image))
    weights = (
        b.weight("patches.weight", (c.hidden, c.channels, c.patch, c.patch)),
        b.weight("patches.bias", (c.hidden,)),
    )
    x = b.op("conv2d", pixels, *weights, name="patches", stride=c.patch)
    x = b.op("view", x, name="tokens", shape=(batch, tokens, c.hidden))
    one = b.op("expand", b.weight("class_token", (1, 1, c.hidden)), name="class_tokens", shape=(batch, 1, c.hidden))
    x = b.op("cat", one, x, name="with_class", axis=1)
    return b.op("add", x, b.weight("positions", (1, tokens + 1, c.hidden)), name="embed_positions")


def _layer(b: Builder, c: ViTConfig, x: str) -> str:
    with b.scope("attn"):
        y = blocks.norm(b, x, "layernorm", "norm")
        y = blocks.attention(b, *qkv(b, y, c.heads, c.hidden, c.fused_qkv, True))
        y = blocks.linear(b, blocks.merge_heads(b, y), c.hidden, "out", bias=True)
        x = b.op("add", x, y, name="residual")
    with b.scope("mlp"):
        y = blocks.norm(b, x, "layernorm", "norm")
        y = blocks.mlp(b, y, c.intermediate or 4 * c.hidden, "gelu", bias=True)
        return b.op("add", x, y, name="residual")


FAMILIES = {"vit": Family("vit", ViTConfig, {"forward": _build})}
