"""Encoder-decoder models of the T5, BART and Whisper kinds, as Hugging Face runs them.

``forward`` runs ``S`` encoder and ``S`` decoder positions, ``train`` a loss on the decoder's too. ``decode`` adds one
token per sequence against a decoder cache of ``C`` positions and cross-attention keys and values of ``S`` encoder
positions, kept from the first step. An encoder of sound has a fixed number of positions instead of ``S``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from roofline.ir.graph import Graph, Info, Positions
from roofline.ir.sizes import Size, symbol
from roofline.ops.builder import Builder
from roofline.programs.architectures.config import Count, Family, Layers, PositionKeys, Positive
from roofline.programs.layers import primitives
from roofline.programs.layers.attention import Attention, RelativeBias
from roofline.programs.layers.base import Chain, Layer, Norm, Residual, Run
from roofline.programs.layers.feedforward import MLP
from roofline.programs.layers.primitives import cross_entropy, embed, linear, merge_heads, split_heads, weights


class TableKeys(PositionKeys):
    """What comes before the layers and after them."""

    vocab: Positive  #: Rows of the token table.
    encoder_vocab: Count = 0  #: Rows of the encoder's own token table, 0 where both stacks share one.
    positions: Count = 0  #: Rows of the encoder's table of positions, 0 for none.
    decoder_positions: Count = 0  #: Rows of the decoder's.
    fixed_positions: bool = False  #: Whether positions that are not learned are added (M2M-100).
    #: Rows of a spectrogram that two convolutions bring to ``source`` positions (Whisper), 0 for tokens.
    mel_bins: Count = 0
    source: Count = 0  #: Positions of an encoder of sound.
    embed_norm: bool = False  #: A norm of the embeddings of both stacks.
    final_norm: bool = True  #: A norm at the end of both stacks.
    tied: bool = True  #: Whether the head is the token table.
    logit_scale: bool = True  #: Whether a tied head's input is multiplied by a constant, as T5's is.
    head: bool = True  #: Whether there is a head.

    @property
    def limit(self) -> Positions | None:
        """The positions of both stacks at most, those of a sound apart."""
        rows = [rows for rows in (0 if self.mel_bins else self.positions, self.decoder_positions) if rows]
        most = self.max_positions or min(rows, default=0)
        return Positions(most, bool(rows)) if most else None


class Seq2SeqConfig(TableKeys):
    """Sizes and options of an encoder-decoder."""

    hidden: Positive  #: Width of the residual stream.
    encoder_layers: Layers  #: Blocks of the encoder.
    decoder_layers: Layers  #: Blocks of the decoder.
    heads: Positive  #: Attention heads.
    decoder_heads: Positive | None = None  #: Attention heads of the decoder, ``heads`` when absent.
    head_dim: Positive  #: Width of a head; heads together need not be as wide as ``hidden``.
    intermediate: Positive  #: Inner size of the feed-forward block.
    decoder_intermediate: Positive | None = None  #: That of the decoder, ``intermediate`` when absent.
    buckets: Count = 32  #: Rows of each stack's table of relative positions, 0 for none.
    layer_buckets: bool = False  #: Whether every layer has its own such table (UMT5).
    norm: Literal["rmsnorm", "layernorm"] = "rmsnorm"  #: Kind of norm.
    post_norms: bool = False  #: Norms after each sum instead of before each branch (BART).
    bias: bool = False  #: Biases of attention and feed-forward.
    k_bias: bool = True  #: Whether those of the key projections are among them.
    activation: Literal["relu", "gelu_tanh", "gelu", "silu"] = "relu"  #: Of the feed-forward block.
    gated: bool = False  #: Whether the feed-forward block has a gate (T5 1.1).
    fused_qkv: bool = False  #: One projection for q, k and v; T5 runs three.


@dataclass(frozen=True)
class CrossAttention:
    """Attention to what the encoder returned, or in decode to its keys and values of the first step."""

    heads: int
    width: int
    bias: bool
    k_bias: bool

    def __call__(self, run: Run, x: str) -> str:
        b = run.b
        q = split_heads(b, linear(b, x, self.columns, "q", self.bias), self.heads, "q_heads")
        k, v = (self.side(run, name, self.bias and (self.k_bias or name != "k")) for name in "kv")
        return linear(b, merge_heads(b, primitives.attention(b, q, k, v)), run.width, "out", self.bias)

    @property
    def columns(self) -> int:
        """Columns of all heads."""
        return self.heads * self.width

    def side(self, run: Run, name: str, bias: bool) -> str:
        """Return keys or values; in decode their weights are still in memory."""
        b = run.b
        if not run.decodes:
            y = linear(b, run.shared["memory"], self.columns, name, bias)
            return split_heads(b, y, self.heads, f"{name}_heads")
        weights(b, name, (self.columns, run.width), bias)
        return b.cache(f"{name}_cache", (run.batch, self.heads, run.shared["source"], self.width))


@dataclass(frozen=True)
class Seq2Seq:
    """Two stacks of layers, of which the second attends to what the first returns."""

    config: Seq2SeqConfig
    encoder: Sequence[Layer]
    decoder: Sequence[Layer]
    norm: Norm
    relative: tuple[RelativeBias, RelativeBias] | None

    def __call__(self, b: Builder, phase: str) -> Graph:
        c, decode = self.config, phase == "decode"
        source: Size = c.source if c.mel_bins else symbol("S")
        new, held = (1, symbol("C")) if decode else (symbol("S"), symbol("S"))
        run = Run(b, phase, new=new, context=held, width=c.hidden)
        run.table = b.weight("embed.weight", (c.vocab, c.hidden))
        run.shared |= {"memory": self.memory(run, source), "source": source}
        with b.scope("decoder"):
            ids = b.input("ids", (run.batch, new), "int64")
            x = self.place(run, embed(b, run.table, ids, "embed"), c.decoder_positions)
            x = self.stack(run, self.decoder, x, 1)
        if c.head:
            if c.tied and c.logit_scale:
                x = b.op("mul_scalar", x, name="scaled")
            x = b.op("linear", x, run.table if c.tied else b.weight("head.weight", (c.vocab, c.hidden)), name="head")
            x = cross_entropy(b, x) if phase == "train" else x
        info = Info(layers=c.encoder_layers + c.decoder_layers, positions=c.limit)
        return b.graph([x, *run.caches], run.batch * new, "token", info)

    def stack(self, run: Run, layers: Sequence[Layer], x: str, side: int) -> str:
        """Run the layers of the encoder (side 0) or of the decoder (side 1)."""
        run.bias = self.relative[side](run) if self.relative else ""
        for layer, block in enumerate(layers):
            with run.b.scope(f"layers.{layer}"):
                x = block(run, x)
        return self.norm(run, x) if self.config.final_norm else x

    def memory(self, run: Run, source: Size) -> str:
        """Run the encoder; a decode step has its result cached, but the weights are still in memory."""
        b, c = run.b, self.config
        with b.scope("encoder"):
            table = b.weight("embed.weight", (c.encoder_vocab, c.hidden)) if c.encoder_vocab else run.table
            if not run.decodes:
                return self.encode(b, table, source)
            aside = Builder("aside", b.dtype)
            with aside.scope("encoder"):
                self.encode(aside, aside.input("table", b.shape(table)), source)
            for tensor in aside.graph([]).tensors.values():
                if tensor.kind == "weight":
                    b.weight(tensor.name.removeprefix("encoder."), tensor.shape)
        return ""

    def encode(self, b: Builder, table: str, source: Size) -> str:
        """Run the encoder on tokens or on sound."""
        c, run = self.config, Run(b, new=source, context=source, width=self.config.hidden)
        if c.mel_bins:
            x = self.sound(run)
        else:
            x = embed(b, table, b.input("ids", (run.batch, source), "int64"), "embed")
        return self.stack(run, self.encoder, self.place(run, x, c.positions), 0)

    def sound(self, run: Run) -> str:
        """Bring a spectrogram to positions by two convolutions of three taps, the second over every other one."""
        b, c = run.b, self.config
        x = b.input("spectrogram", (run.batch, c.mel_bins, 2 * c.source))
        for name, channels, stride in (("conv1", c.mel_bins, 1), ("conv2", c.hidden, 2)):
            kernels = weights(b, name, (c.hidden, channels, 3), True)
            x = b.op("conv1d", x, *kernels, name=name, stride=stride, padding=1)
            x = b.op("gelu", x, name=f"{name}_gelu")
        return b.op("view", x, name="sound", shape=(run.batch, c.source, c.hidden))

    def place(self, run: Run, x: str, rows: int) -> str:
        """Add positions, and norm the sum where the model does."""
        b, c = run.b, self.config
        if rows:
            places = b.input("position_ids", (run.new,), "int64")
            learned = embed(b, b.weight("positions.weight", (rows, c.hidden)), places, "positions")
            x = b.op("add", x, learned, name="embed_positions")
        if c.fixed_positions:
            x = b.op("add", x, b.input("position_rows", (run.new, c.hidden)), name="embed_positions")
        return self.norm.named("embed_norm")(run, x) if c.embed_norm else x


# --- a config to layers ----------------------------------------------------------------------------------------------


def _attention(c: Seq2SeqConfig, heads: int, causal: bool) -> Attention:
    columns = c.heads * c.head_dim  # the encoder's heads fix them where the decoder has another number
    if columns % heads:
        raise ValueError(f"decoder_heads = {heads} do not divide the {columns} columns of heads = {c.heads}")
    return Attention(
        heads, heads, columns // heads, causal=causal, rotates=False, fused=c.fused_qkv, qkv_bias=c.bias,
        k_bias=c.k_bias, out_bias=c.bias,
        relative=RelativeBias(c.buckets, heads) if c.buckets and c.layer_buckets else None,
    )  # fmt: skip


def seq2seq(c: Seq2SeqConfig) -> Seq2Seq:
    """Compose an encoder-decoder.

    Raises:
        ValueError: Sizes that do not fit together.
    """
    if c.mel_bins and not c.source:
        raise ValueError("mel_bins needs source, the positions of the encoder")
    norm, heads = Norm(c.norm), c.decoder_heads or c.heads
    before, after = (None, norm) if c.post_norms else (norm, None)

    def block(inner: int, **branches: Layer) -> Layer:
        branches["mlp"] = MLP(inner, c.activation, c.gated, bias=c.bias)
        return Chain([Residual(scope, branch, before, of_sum=after) for scope, branch in branches.items()])

    attention = _attention(c, heads, True)
    cross = CrossAttention(heads, attention.width, c.bias, c.k_bias)
    encoder = block(c.intermediate, attn=_attention(c, c.heads, False))
    decoder = block(c.decoder_intermediate or c.intermediate, attn=attention, cross=cross)
    relative = None
    if c.buckets and not c.layer_buckets:
        relative = RelativeBias(c.buckets, c.heads), RelativeBias(c.buckets, heads)
    return Seq2Seq(c, [encoder] * c.encoder_layers, [decoder] * c.decoder_layers, norm, relative)


FAMILIES = {"seq2seq": Family("seq2seq", Seq2SeqConfig, seq2seq, ("forward", "train", "decode"))}
