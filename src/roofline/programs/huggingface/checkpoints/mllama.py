"""Llama 3.2 Vision: layers that attend to an image, and a tower that sees it as tiles (arXiv 2407.21783, section 7).

Layers as transformers runs them (``models/mllama/modeling_mllama.py``). All tiles of one image attend to each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import Field

from roofline.ir.graph import Graph, Info
from roofline.ir.sizes import Size
from roofline.ops.builder import Builder
from roofline.programs.architectures import decoder as parts
from roofline.programs.architectures import vit
from roofline.programs.architectures.config import Count, Positive
from roofline.programs.architectures.decoder_keys import DecoderConfig
from roofline.programs.huggingface import groups
from roofline.programs.huggingface.keys import Keys, row
from roofline.programs.layers import primitives
from roofline.programs.layers.attention import Attention, HeadNorm
from roofline.programs.layers.base import Chain, Layer, Norm, Residual, Run, become
from roofline.programs.layers.feedforward import MLP
from roofline.programs.layers.primitives import embed, linear, merge_heads, weights


class MllamaConfig(DecoderConfig):
    """A decoder's keys and those of the layers that attend to an image."""

    cross_layers: tuple[Count, ...] = Field((), max_length=2000)  #: Layers that attend to an image instead of the text.
    #: Positions of the image that they attend to; 0 for text alone, which leaves these layers out.
    image_positions: Count = 0


@dataclass(frozen=True)
class Gated:
    """What a branch returns, times the tanh of one learned number."""

    def __call__(self, run: Run, x: str) -> str:
        return run.b.op("mul", x, gate(run, "gate"), name="gated")


def gate(run: Run, name: str) -> str:
    """Return the tanh of one learned number."""
    return run.b.op("tanh", run.b.weight(name, (1,)), name=f"{name}_tanh")


@dataclass(frozen=True)
class ImageAttention(Attention):
    """Attention to an image, whose keys and values are computed once and kept."""

    positions: int = 0

    def __call__(self, run: Run, x: str) -> str:
        norm = HeadNorm()
        q = norm(run, run.linear(x, self.heads * self.width, "q"), self.heads, "q")
        keys, values = self.side(run, "k"), self.side(run, "v")
        y = run.attend(q, keys, values, causal=False) if not run.mask else self.written_out(run, q, keys, values)
        return self.output(run, merge_heads(run.b, y))

    def written_out(self, run: Run, q: str, k: str, v: str) -> str:
        """Attend step by step; the mask of the text has no place here."""
        return primitives.naive_attention(run.b, q, k, v)

    def side(self, run: Run, name: str) -> str:
        """Return keys or values; in decode their matrices are still in memory."""
        b, columns = run.b, self.kv_heads * self.width
        shape = (run.batch, self.kv_heads, self.positions, self.width)
        if run.decodes:
            weights(b, name, (columns, run.width), False, run.dtype)
            if name == "k":
                b.weight("k_norm.weight", (self.width,))
            return b.cache(f"{name}_cache", shape)
        y = run.linear(self.image(run), columns, name)
        if name == "k":
            y = HeadNorm()(run, y, self.kv_heads, name)
        else:
            y = primitives.split_heads(b, y, self.kv_heads, f"{name}_heads")
        if run.keeps:
            run.caches.append(b.op("cache_update", b.cache(f"{name}_cache", shape), y, name=f"{name}_cache_update"))
        return y

    def image(self, run: Run) -> str:
        """Return the image as the tower's projector leaves it."""
        if "image" not in run.shared:
            run.shared["image"] = run.b.input("image", (run.batch, self.positions, run.width))
        return str(run.shared["image"])


@dataclass(frozen=True)
class LeftOut:
    """A layer that does not run, whose weights are in memory."""

    layer: Layer

    def __call__(self, run: Run, x: str) -> str:
        aside = Builder("aside", run.b.dtype)
        self.layer(replace(run, b=aside, phase="decode"), aside.input("x", run.b.shape(x)))
        for tensor in aside.graph([]).tensors.values():
            if tensor.kind == "weight":
                run.b.weight(tensor.name, tensor.shape, tensor.dtype)
        return x


@dataclass(frozen=True)
class MoreRows(parts.Embeddings):
    """The token table and eight rows beyond the vocabulary, that of the image among them."""

    def tokens(self, run: Run, ids: str) -> str:
        """Return the embeddings of tokens."""
        run.b.weight("embed.idle", (8, self.hidden))
        return super().tokens(run, ids)


def _block(c: MllamaConfig, layer: int, *rest: Any) -> Layer:
    if layer not in c.cross_layers:
        return parts.block(c, layer, *rest)
    attention = become(ImageAttention, parts.attention(c, layer), positions=max(c.image_positions, 1))
    norm, after = parts.norm_of(c), Gated()
    made = Chain((Residual("cross", attention, norm, after), Residual("mlp", parts.mlp(c, c.inner), norm, after)))
    return made if c.image_positions else LeftOut(made)


def _text(c: Keys) -> dict[str, Any]:
    """Read which layers attend to an image, and how large it is where a tower says."""
    layers, positions = c.sizes("cross_attention_layers"), c.size("image_positions", least=0) or 0
    layers = [3, 8, 13, 18, 23, 28, 33, 38] if layers is None else layers
    seen = f"attend to one image of {positions} positions" if positions else "are left out, as for text alone"
    c.notes.append(f"cross_attention_layers: {len(layers)} layers {seen}; image_positions=N changes it")
    return {"cross_layers": layers, "image_positions": positions}


ROWS = {
    "mllama_text_model": row(*groups.LLAMA, _text, family=parts.variant(
        MllamaConfig, block=_block, embeddings=lambda c: become(MoreRows, parts.embeddings(c)))),
}  # fmt: skip


# --- the tower -------------------------------------------------------------------------------------------------------


class TilesConfig(vit.ViTConfig):
    """A vision transformer's keys and those of tiles."""

    tiles: Positive = 4  #: Tiles of an image.
    ratios: Positive = 8  #: Shapes that tiles can be laid out in.
    global_layers: Count = 0  #: Gated layers after the others.
    kept: tuple[Count, ...] = Field((), max_length=2000)  #: Layers whose outputs are put beside the last.

    @property
    def padded(self) -> int:
        """Positions of a tile, padded to a multiple of eight."""
        return -(-self.length // 8) * 8


@dataclass(frozen=True)
class Tiles:
    """A stack of layers on the patches of all tiles, gated ones after it, and the projector."""

    config: TilesConfig
    layers: Sequence[Layer]
    gated: Sequence[Layer]

    def __call__(self, b: Builder, phase: str) -> Graph:
        c = self.config
        length = c.tiles * c.padded
        run = Run(b, phase, new=length, context=length, width=c.hidden, naive=c.attention == "naive")
        run.ids = b.input("ratio", (run.batch,), "int64")
        x, seen = self.embeddings(run), []
        for layer, block in enumerate(self.layers):
            with b.scope(f"layers.{layer}"):
                x = block(run, x)
            seen += [x] if layer in c.kept else []
        x = self.tile(run, Norm("layernorm", name="norm")(run, x), c.padded, 1, "after")
        for layer, block in enumerate(self.gated):
            with b.scope(f"global.layers.{layer}"):
                x = block(run, x)
        shape = (run.batch, c.tiles * c.length, c.hidden)
        rows = [b.op("slice", y, name=f"kept_{i}", shape=shape) for i, y in enumerate((x, *seen))]
        joined = b.op("cat", *rows, name="joined", axis=-1) if len(rows) > 1 else rows[0]
        with b.scope("projector"):
            for number, width in enumerate(c.project.widths):
                joined = linear(b, joined, width, f"linear_{number + 1}", c.project.bias)
        return b.graph([joined], run.batch, "image", Info(layers=c.layers + c.global_layers))

    def embeddings(self, run: Run) -> str:
        """Return the patches of all tiles with a class token each, positions and padding."""
        b, c = run.b, self.config
        many: Size = run.batch * c.tiles
        kernels = weights(b, "patches", (c.hidden, c.channels, c.patch, c.patch), False)
        x = b.op("conv2d", b.input("image", (many, c.channels, c.image, c.image)), *kernels, stride=c.patch)
        x = b.op("view", x, name="tokens", shape=(run.batch, c.tiles * c.edge**2, c.hidden))
        x = self.tile(run, x, c.edge**2, 1, "before")
        x = b.op("view", x, name="by_tile", shape=(many, c.edge**2, c.hidden))
        one = b.op("expand", b.weight("class_token", (1, 1, c.hidden)), name="class", shape=(many, 1, c.hidden))
        x = b.op("cat", one, x, name="with_class", axis=1)
        share = gate(run, "position_gate")
        rest = b.op("add_scalar", share, name="position_rest")
        rows = b.op("mul", b.weight("positions", (c.length, c.hidden)), rest, name="positions_gated")
        x = b.op("add", x, rows, name="embed_positions")
        x = b.op("view", x, name="whole", shape=(run.batch, c.tiles * c.length, c.hidden))
        x = self.tile(run, x, c.length, c.length, "tile_positions", share)
        x = Norm("layernorm", name="embed_norm")(run, x)
        x = b.op("view", x, name="unpadded", shape=(many, c.length, c.hidden))
        if c.padded > c.length:
            zeros = b.op("fill", name="padding", shape=(many, c.padded - c.length, c.hidden))
            x = b.op("cat", x, zeros, name="padded", axis=1)
        return b.op("view", x, name="padded_tokens", shape=(run.batch, c.tiles * c.padded, c.hidden))

    def tile(self, run: Run, x: str, positions: int, rows: int, name: str, share: str = "") -> str:
        """Add rows of a gated table by the shape that an image's tiles are laid out in."""
        b, c = run.b, self.config
        table = b.weight(f"{name}.weight", (c.ratios + 1, c.tiles * rows * c.hidden))
        picked = embed(b, table, run.ids, name)
        picked = b.op("view", picked, name=f"{name}_rows", shape=(run.batch, c.tiles, rows, c.hidden))
        picked = b.op("mul", picked, share or gate(run, f"{name}_gate"), name=f"{name}_gated")
        by_tile = b.op("view", x, name=f"{name}_tiles", shape=(run.batch, c.tiles, positions, c.hidden))
        y = b.op("add", by_tile, picked, name=f"{name}_added")
        return b.op("view", y, name=f"{name}_out", shape=(run.batch, c.tiles * positions, c.hidden))


def tower(c: TilesConfig) -> Tiles:
    """Compose the tower."""
    vit.vision_transformer(c)  # its checks
    attention = Attention(c.heads, c.heads, c.hidden // c.heads, causal=False, rotates=False, fused=False)
    first = Residual("attn", attention, Norm("layernorm"))
    second = Residual("mlp", MLP(c.inner, c.activation, False, bias=True), Norm("layernorm"))
    block = Chain((first, second))
    gated = Chain((replace(first, after=Gated()), replace(second, after=Gated())))
    return Tiles(c, [block] * c.layers, [gated] * c.global_layers)


def vision(c: Keys) -> dict[str, Any]:
    """Read how many tiles and layouts there are, and which layers' outputs are kept."""
    listed, layers = c.get("supported_aspect_ratios"), c.sizes("intermediate_layers_indices")
    if listed is not None and (not isinstance(listed, list | tuple) or not 0 < len(listed) <= 1000):
        c.fail("supported_aspect_ratios", f"expected a list of layouts, given {str(listed)[:60]!r}")
    layers = [3, 7, 15, 23, 30] if layers is None else layers
    if any(layer >= len(c.layers) for layer in layers):
        c.fail("intermediate_layers_indices", f"{str(layers)[:60]} names a layer beyond {len(c.layers)}")
    return {"tiles": c.needed("max_num_tiles"), "ratios": len(listed or range(8)), "kept": layers,
            "global_layers": c.size("num_global_layers", least=0, most=2000) or 0}  # fmt: skip


def image_positions(vision: Mapping[str, Any]) -> dict[str, Any]:
    """Return how many positions the tower of a config makes of one image, for the language model's keys."""
    image, patch, tiles = (vision.get(key, usual) for key, usual in
                           (("image_size", 448), ("patch_size", 14), ("max_num_tiles", 4)))  # fmt: skip
    if not all(type(size) is int and 0 < size < 2**16 for size in (image, patch, tiles)):
        return {}  # the tower itself says what is wrong
    return {"image_positions": tiles * ((image // patch) ** 2 + 1)}
