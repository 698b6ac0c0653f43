"""What all layers share: the run that they are laid down in, linear layers, norms, residuals and chains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from roofline.ir.sizes import Size, minimum, symbol
from roofline.ops.builder import Builder
from roofline.programs.layers import primitives

_B, _S = symbol("B"), symbol("S")


@dataclass
class Run:
    """One build: what the layers share while they are laid down."""

    b: Builder  #: The builder.
    phase: str = "forward"  #: ``forward``, ``prefill``, ``decode`` or ``train``.
    batch: Size = _B  #: Sequences or images.
    new: Size = _S  #: Positions that are computed.
    context: Size = _S  #: Positions that they attend to.
    width: int = 0  #: Width of the residual stream.
    naive: bool = False  #: Whether attention writes its scores out, every step its own kernel.
    dropout: bool = False  #: Whether training drops activations.
    windowed: bool = True  #: Whether layers with a window cache only what they attend to.
    dtype: str = ""  #: Number format of the layers' matrices, where it is not the builder's.
    expert_dtype: str = ""  #: That of the experts', where it is another again.
    table: str = ""  #: The token table.
    ids: str = ""  #: The tokens.
    cos: str = ""  #: Cosines of the rotary embedding.
    sin: str = ""  #: Its sines.
    mask: str = ""  #: The mask of naive causal attention.
    bias: str = ""  #: What all layers add to their scores.
    tables: dict[int, tuple[str, str]] = field(default_factory=dict)  #: Cosines and sines for heads of other widths.
    #: What a layer leaves for later ones, by a name that they agree on.
    shared: dict[str, Any] = field(default_factory=dict)
    caches: list[str] = field(default_factory=list)  #: Updated caches, which are outputs of the graph.

    @property
    def decodes(self) -> bool:
        """Tell whether one new token per sequence is computed against a cache."""
        return self.phase == "decode"

    @property
    def keeps(self) -> bool:
        """Tell whether keys, values and states are cached for later positions."""
        return self.phase in ("prefill", "decode")

    @property
    def drops(self) -> bool:
        """Tell whether dropout runs."""
        return self.phase == "train" and self.dropout

    def drop(self, x: str, name: str) -> str:
        """Drop some of the elements in training, where the model does."""
        return primitives.drop(self.b, x, name) if self.drops else x

    def linear(self, x: str, out: Size, name: str, bias: bool = False) -> str:
        """Add a linear layer whose weight is stored as the layers' matrices are."""
        return primitives.linear(self.b, x, out, name, bias, self.dtype)

    def heads(self, x: str, heads: int, width: int, name: str) -> str:
        """View ``(B, S, heads * width)`` as ``(B, S, heads, width)``."""
        return self.b.op("view", x, name=name, shape=(self.batch, self.new, heads, width))

    def store(self, new: str, name: str, window: int = 0) -> str:
        """Write new positions ``(B, heads, S, d)`` to a cache.

        Returns:
            What attention reads: the cache in decode, else the new positions.
        """
        if not self.keeps:
            return new
        batch, heads, length, width = self.b.shape(new)
        held = minimum(self.context, window) if window and self.windowed else self.context
        cache = self.b.cache(name, (batch, heads, held, width))
        tail = new
        if not self.decodes and held != length:
            tail = self.b.op("slice", new, name=f"{name}_tail", shape=(batch, heads, held, width))
        self.caches.append(self.b.op("cache_update", cache, tail, name=f"{name}_update"))
        return self.caches[-1] if self.decodes else new

    def attend(
        self, q: str, k: str, v: str, *, causal: bool = True, window: int = 0, softcap: float = 0.0, bias: str = "",
        sinks: str | None = None,
    ) -> str:  # fmt: skip
        """Add attention of queries to keys and values, as one kernel or written out."""
        options: dict[str, Any] = {"softcap": softcap, "bias": bias or self.bias or None, "sinks": sinks,
                                   "dropout": self.drops}  # fmt: skip
        if self.naive:
            return primitives.naive_attention(self.b, q, k, v, mask=self.mask or None, **options)
        # A windowed cache holds only what is attended, so there is nothing left to mask.
        window = 0 if self.decodes and self.windowed else window
        return primitives.attention(self.b, q, k, v, causal=causal and not self.decodes, window=window, **options)


#: Adds operators to the run's graph; the name of its input in, that of its output out.
Layer = Callable[[Run, str], str]
_L = TypeVar("_L")


def become(derived: type[_L], layer: Any, /, **changes: Any) -> _L:
    """Make a layer one of a derived class, with the same fields and perhaps some more."""
    return derived(**{item.name: getattr(layer, item.name) for item in fields(layer)} | changes)


@dataclass(frozen=True)
class Norm:
    """A norm along the last axis, with its scale and (layer norms) its shift."""

    kind: str = "rmsnorm"
    bias: bool = True
    scale: bool = True
    name: str = "norm"

    def __call__(self, run: Run, x: str) -> str:
        return primitives.norm(run.b, x, self.kind, self.name, self.bias, self.scale)

    def named(self, name: str) -> Norm:
        """Return the same norm under another name."""
        return replace(self, name=name)


@dataclass(frozen=True)
class Chain:
    """Layers one after the other, in a scope where it has a name."""

    layers: Sequence[Layer]
    scope: str = ""

    def __call__(self, run: Run, x: str) -> str:
        if self.scope:
            with run.b.scope(self.scope):
                return Chain(self.layers)(run, x)
        for layer in self.layers:
            x = layer(run, x)
        return x


@dataclass(frozen=True)
class Scaled:
    """A multiplication by a constant."""

    name: str

    def __call__(self, run: Run, x: str) -> str:
        return run.b.op("mul_scalar", x, name=self.name)


@dataclass(frozen=True)
class Residual:
    """``x + after(branch(before(x)))``, perhaps with the sum normed."""

    scope: str  #: What the names inside begin with.
    branch: Layer  #: What is added.
    before: Layer | None = None  #: A norm of the branch's input.
    after: Layer | None = None  #: What is done to its output.
    of_sum: Layer | None = None  #: A norm of the sum.

    def __call__(self, run: Run, x: str) -> str:
        with run.b.scope(self.scope):
            y = self.branch(run, self.before(run, x) if self.before else x)
            y = run.drop(y, "dropout")
            y = self.after(run, y) if self.after else y
            x = run.b.op("add", self.carry(run, x), y, name="residual")
            return self.of_sum(run, x) if self.of_sum else x

    def carry(self, run: Run, x: str) -> str:
        """Return what the branch is added to."""
        return x


@dataclass(frozen=True)
class Parallel:
    """``x + (attention(norm(x)) + feed(norm(x)))``: both branches side by side, from one normed input or from two."""

    attention: Layer
    feed: Layer
    norm: Layer
    feed_scope: str = "mlp"
    two_norms: bool = False

    def __call__(self, run: Run, x: str) -> str:
        with run.b.scope("attn"):
            normed = self.norm(run, x)
            mixed = self.attention(run, normed)
        with run.b.scope(self.feed_scope):
            fed = self.feed(run, self.norm(run, x) if self.two_norms else normed)
        mixed, fed = run.drop(mixed, "attn_dropout"), run.drop(fed, "mlp_dropout")
        return run.b.op("add", x, run.b.op("add", mixed, fed, name="branches"), name="residual")
