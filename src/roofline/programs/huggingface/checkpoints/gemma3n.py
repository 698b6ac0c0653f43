"""Gemma 3n: several residual streams (AltUp), a low-rank branch (LAuReL), embeddings per layer, shared caches.

Formulas: AltUp https://openreview.net/forum?id=KIfhqLzXUN, LAuReL arXiv 2411.07501; layers as transformers runs them
(``models/gemma3n/modeling_gemma3n.py``). Gates that are nearly all zero are multiplied as dense matrices there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import Field

from roofline.programs.architectures import decoder as parts
from roofline.programs.architectures.config import Positive, in_turn
from roofline.programs.huggingface import groups
from roofline.programs.huggingface.checkpoints.attention import Gemma4Config, LayerTable, gemma4_attention
from roofline.programs.huggingface.keys import Keys, row
from roofline.programs.layers.base import Chain, Layer, Run, become
from roofline.programs.layers.feedforward import MLP
from roofline.programs.layers.primitives import activate, gated, linear, part


class Gemma3nConfig(Gemma4Config):
    """Gemma 4's keys and Gemma 3n's own."""

    streams: Positive = 4  #: Residual streams, of which the layers compute one.
    laurel_rank: Positive = 64  #: Rank of the branch beside attention.
    scaled_stream: bool = True  #: Whether the computed stream is scaled before the layer's own embeddings.
    #: Whether most of a layer's gate is cut off to zero, in turn over the depth.
    sparse_pattern: tuple[bool, ...] = Field((), max_length=2000)


@dataclass(frozen=True)
class SparseMLP(MLP):
    """A feed-forward block whose gate is cut off below its mean and some standard deviations."""

    def up(self, run: Run, x: str) -> str:
        """Return the activated inner columns."""
        b = run.b
        both = run.linear(x, 2 * self.inner, "gate_up", self.bias)
        gate, up = (part(b, both, self.inner, name) for name in ("gate", "up"))
        mean = b.op("reduce", gate, name="gate_mean", axes=-1, keepdim=True)
        deviation = b.op("reduce", gate, name="gate_std", axes=-1, keepdim=True, flops=4)
        cutoff = b.op("add", mean, b.op("mul_scalar", deviation, name="gate_std_scaled"), name="cutoff")
        gate = b.op("relu", b.op("sub", gate, cutoff, name="gate_above"), name="gate_cut")
        return gated(b, gate, up, self.activation)


@dataclass(frozen=True)
class Router:
    """Weights of the streams from one of them; prediction and correction share the matrices."""

    streams: int

    def weights(self, run: Run) -> tuple[str, str]:
        """Declare its norm and its matrix."""
        b = run.b
        return b.weight("router_norm.weight", (run.width,)), b.weight("router.weight", (self.streams, run.width))

    def __call__(self, run: Run, x: str, weights: tuple[str, str], name: str) -> str:
        b, (scale, matrix) = run.b, weights
        y = b.op("mul_scalar", b.op("rmsnorm", x, scale, name=f"{name}_norm"), name=f"{name}_scaled")
        return b.op("tanh", b.op("linear", y, matrix, name=f"{name}_router"), name=f"{name}_modalities")


@dataclass(frozen=True)
class AltUpLayer:
    """A layer that predicts all streams, computes one, and corrects the others by what it found."""

    config: Gemma3nConfig
    attention: Layer
    feed: Layer

    def __call__(self, run: Run, x: str) -> str:
        b, c = run.b, self.config
        router = Router(c.streams)
        with b.scope("altup"):
            weights = router.weights(run)
            predicted = self.predict(run, x, router(run, self.active(run, x, "first"), weights, "predict"))
        active = self.active(run, predicted, "active")
        computed = self.compute(run, active)
        with b.scope("altup"):
            modalities = router(run, computed, weights, "correct")
            corrected = self.correct(run, predicted, active, computed, modalities)
        return self.own(run, corrected)

    def active(self, run: Run, x: str, name: str) -> str:
        """Return the stream that is computed: a view."""
        return run.b.op("slice", x, name=name, shape=(run.batch, run.new, run.width))

    def predict(self, run: Run, x: str, modalities: str) -> str:
        """Return each stream with a mixture of all added."""
        b, n, rows = run.b, self.config.streams, run.batch * run.new
        mix = b.op("view", linear(b, modalities, n * n, "prediction"), name="by_row", shape=(rows, n, n))
        mixed = b.op("bmm", mix, b.op("view", x, name="streams_by_row", shape=(rows, n, run.width)), name="mixed")
        mixed = b.op("view", mixed, name="mixed_streams", shape=(run.batch, run.new, n, run.width))
        return b.op("add", mixed, x, name="predicted")

    def compute(self, run: Run, x: str) -> str:
        """Return the layer's output: attention beside the low-rank branch, then feed-forward."""
        b, c = run.b, self.config
        norm = parts.norm_of(c)
        with b.scope("attn"):
            normed = norm(run, x)
            y = b.op("add", x, norm.named("post_norm")(run, self.attention(run, normed)), name="residual")
        with b.scope("laurel"):
            low = run.linear(run.linear(normed, c.laurel_rank, "left"), run.width, "right")
            y = b.op("add", y, b.op("add", normed, norm(run, low), name="out"), name="residual")
            y = b.op("mul_scalar", y, name="scaled")
        with b.scope("mlp"):
            fed = norm.named("post_norm")(run, self.feed(run, norm(run, y)))
            return b.op("add", y, fed, name="residual")

    def correct(self, run: Run, predicted: str, active: str, computed: str, modalities: str) -> str:
        """Return all streams, each moved by a share of what the computed one differs by from its prediction."""
        b, n = run.b, self.config.streams
        shares = b.op("add_scalar", linear(b, modalities, n, "correction"), name="shares")
        shares = b.op("view", shares, name="by_stream", shape=(run.batch, run.new, n, 1))
        news = b.op("sub", computed, active, name="innovation")
        news = b.op("view", news, name="innovation_row", shape=(run.batch, run.new, 1, run.width))
        return b.op("add", b.op("mul", news, shares, name="moved"), predicted, name="corrected")

    def own(self, run: Run, x: str) -> str:
        """Add the layer's own embeddings, gated by the computed stream, to the others."""
        b, c = run.b, self.config
        with b.scope("layer_embed"):
            scale, first = b.weight("stream_scale", (run.width,)), self.active(run, x, "computed")
            first = b.op("mul", first, scale, name="computed_scaled") if c.scaled_stream else first
            gate = activate(b, run.linear(first, c.layer_embed, "gate"), c.activation)
            own = part(b, run.shared["layer_embed"], c.layer_embed, "own")
            y = run.linear(b.op("mul", gate, own, name="gated"), run.width, "project")
            y = parts.norm_of(c)(run, y)
            y = b.op("view", y, name="row", shape=(run.batch, run.new, 1, run.width))
            return b.op("add", x, y, name="residual")


def _as_large(run: Run, x: str, size: str, name: str) -> str:
    """Bring rows to the root mean square of others."""
    b = run.b
    return b.op("div", b.op("mul", x, size, name=f"{name}_sized"), _size(run, x, f"{name}_size"), name=name)


def _size(run: Run, x: str, name: str) -> str:
    b = run.b
    mean = b.op("reduce", b.op("square", x, name=f"{name}_squares"), name=f"{name}_mean", axes=-1, keepdim=True)
    return b.op("sqrt", mean, name=name)


@dataclass(frozen=True)
class StreamTable(LayerTable):
    """The token table, embeddings of the layers, and projections to the other streams."""

    streams: int = 4

    def __call__(self, run: Run, ids: str) -> str:
        x = super().__call__(run, ids)
        with run.b.scope("altup"):
            size = _size(run, x, "size")
            others = [_as_large(run, linear(run.b, x, run.width, f"project_{i}"), size, f"stream_{i}")
                      for i in range(1, self.streams)]  # fmt: skip
            shape = (run.batch, run.new, 1, run.width)
            rows = [run.b.op("view", y, name="row", shape=shape) for y in (x, *others)]
            return run.b.op("cat", *rows, name="streams", axis=2)


@dataclass(frozen=True)
class Gathered:
    """One stream from all: projections of the others, as large as the computed one, and their mean."""

    streams: int

    def __call__(self, run: Run, x: str) -> str:
        b, shape = run.b, (run.batch, run.new, run.width)
        with b.scope("altup_out"):
            rows = [b.op("slice", x, name=f"row_{i}", shape=shape) for i in range(self.streams)]
            size = _size(run, rows[0], "size")
            total = rows[0]
            for i, y in enumerate(rows[1:], 1):
                y = _as_large(run, linear(b, y, run.width, f"project_{i}"), size, f"stream_{i}")
                total = b.op("add", total, y, name=f"sum_{i}")
            return b.op("mul_scalar", total, name="mean")


def _block(c: Gemma3nConfig, layer: int, attend: parts.Compose, feed: parts.Compose, *_: Any) -> Layer:
    own: Layer = AltUpLayer(c, attend(c, layer), feed(c, layer))
    return own if layer < c.layers - 1 else Chain([own, Gathered(c.streams)])


def _feed(c: Gemma3nConfig, layer: int) -> Layer:
    usual = parts.mlp(c, in_turn(c.inner_pattern, layer, c.inner))
    return become(SparseMLP, usual) if in_turn(c.sparse_pattern, layer, False) else usual


def _model(c: Gemma3nConfig) -> parts.Decoder:
    if not c.layer_embed:
        raise ValueError("layer_embed = 0: the layers of Gemma 3n have embeddings of their own")
    return parts.decoder(
        c, attend=gemma4_attention, block=_block, feed=_feed,
        embeddings=lambda c: become(StreamTable, parts.embeddings(c), layers=c.layers, width_of_layer=c.layer_embed,
                                    vocab=c.layer_vocab or c.vocab, streams=c.streams),
    )  # fmt: skip


def _each(c: Keys, key: str, usual: Sequence[float]) -> list[float]:
    """Return a number for each layer, from a list, from one for all, or as the class has it."""
    value = c.get(key)
    if value is None:
        return list(usual)
    listed = value if isinstance(value, list | tuple) else [value] * len(c.layers)
    if len(listed) != len(c.layers):
        c.fail(key, f"expected one number, or one for each of {len(c.layers)} layers, given {str(value)[:60]}")
    return [c.real(key, number) for number in listed]


def _gemma3n(c: Keys) -> dict[str, Any]:
    """Read which layers attend to what and whose keys and values, sizes of the layers, streams."""
    listed, size = c.words("layer_types"), c.size("sliding_window")
    usual = ["sliding" if (layer + 1) % 5 else "full" for layer in c.layers]
    pattern = usual if listed is None else groups.layer_types(c, listed, size).get("pattern") or ["full"] * len(listed)
    inner = _each(c, "intermediate_size", ())
    if not inner or not all(number == int(number) >= 1 for number in inner):
        c.fail("intermediate_size", f"expected whole numbers from 1, given {str(c.get('intermediate_size'))[:60]}")
    sparse = _each(c, "activation_sparsity_pattern", [0.95 * (len(c.layers) > 10 and i < 10) for i in c.layers])
    if any(sparse):
        c.notes.append("activation_sparsity_pattern: gates that are nearly all zero are counted as dense matmuls")
    c.ignore("altup_active_idx", "altup_coef_clip")
    return {
        "pattern": pattern, "window": size, "inner_pattern": [int(number) for number in inner],
        "sparse_pattern": [share > 0 for share in sparse],
        **c.needs(layer_embed="hidden_size_per_layer_input", layer_vocab="vocab_size_per_layer_input",
                  streams="altup_num_inputs", laurel_rank="laurel_rank"),
        "shared_layers": c.size("num_kv_shared_layers", least=0) or 0, "scaled_stream": c.switch("altup_correct_scale"),
    }  # fmt: skip


ROWS = {
    "gemma3n_text": row(
        groups.body, groups.heads, groups.activation, groups.rotary, groups.biases, groups.softcaps, _gemma3n,
        embedding_scale=True, qk_norm=True,
        family=replace(parts.FAMILIES["decoder"], config=Gemma3nConfig, compose=_model),
    ),
}  # fmt: skip
