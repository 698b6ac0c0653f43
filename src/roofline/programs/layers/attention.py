"""How models attend: multi-head, grouped and multi-query attention, and multi-head latent attention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from roofline.programs.layers.base import Layer, Run
from roofline.programs.layers.primitives import embed, merge_heads, norm, part, rope, split_heads

#: Input, output of the heads -> what is left of that output.
Gate = Callable[[Run, str, str], str]
#: What queries are projected from, input: a layer beside attention whose result nothing reads.
Index = Callable[[Run, str, str], None]


@dataclass(frozen=True)
class HeadNorm:
    """A norm of queries or keys."""

    kind: str = "rmsnorm"  #: ``rmsnorm`` or ``layernorm``.
    #: What shares a weight: every ``head``, none of the ``heads`` (each has its own), or the whole ``width``, which is
    #: then normalised at once.
    over: str = "head"
    bias: bool = False  #: Whether it has a shift.
    scale: bool = True  #: Whether it has a scale.

    def __call__(self, run: Run, x: str, heads: int, name: str) -> str:
        b = run.b
        if self.over == "width":
            return split_heads(b, norm(b, x, self.kind, f"{name}_norm", self.bias), heads, f"{name}_heads")
        x = split_heads(b, x, heads, f"{name}_heads")
        if self.over == "head":
            return norm(b, x, self.kind, f"{name}_norm", self.bias, self.scale)
        plain = b.op(self.kind, x, name=f"{name}_norm")
        scale = b.weight(f"{name}_norm.weight", (heads, 1, b.shape(x)[-1]))
        return b.op("mul", plain, scale, name=f"{name}_norm_scaled")


@dataclass(frozen=True)
class RelativeBias:
    """A bias of the scores: rows of one small table by the distance of query and key (T5)."""

    buckets: int
    heads: int

    def __call__(self, run: Run) -> str:
        b = run.b
        buckets = b.input("buckets", (run.new, run.context), "int64")
        rows = embed(b, b.weight("relative.weight", (self.buckets, self.heads)), buckets, "relative")
        return b.op("view", rows, name="relative_bias", shape=(self.heads, run.new, run.context))


@dataclass(frozen=True)
class OutputGate:
    """A gate of attention's output with a projection of its own: a number per head, or one per column."""

    by_column: bool = False
    bias: bool = False
    activation: str = "sigmoid"

    def __call__(self, run: Run, x: str, y: str) -> str:
        b = run.b
        heads, width = b.shape(y)[1], b.shape(y)[3] if self.by_column else 1
        gate = run.linear(x, heads * width, "output_gate")
        gate = b.op("view", gate, name="output_gate_heads", shape=(run.batch, heads, run.new, width))
        if self.bias:
            gate = b.op("add", gate, b.weight("output_gate.bias", (heads, 1, 1)), name="output_gate_biased")
        return b.op("mul", y, b.op(self.activation, gate, name="output_gate_act"), name="output_gated")


@dataclass(frozen=True)
class Attention:
    """Multi-head, grouped or multi-query attention, to a window or to all positions, with its cache."""

    heads: int  #: Query heads.
    kv_heads: int  #: Key-value heads.
    width: int  #: Width of a head.
    window: int = 0  #: Positions that a query attends to, 0 for all.
    causal: bool = True  #: Whether a position sees only those before it.
    rotates: bool = True  #: Whether queries and keys are rotated.
    fused: bool = True  #: One projection for q, k and v.
    qkv_bias: bool = False  #: Biases of these projections.
    k_bias: bool = True  #: Whether that of the keys is among them.
    out_bias: bool = False  #: Bias of the output projection.
    norm: HeadNorm | None = None  #: A norm of queries and keys.
    softcap: float = 0.0  #: Soft bound of the scores, 0 for none.
    sinks: bool = False  #: One learned logit per head in the softmax.
    gate: Gate | None = None  #: A gate of the output.
    index: Index | None = None  #: A small attention that picks the positions to attend to.
    relative: Callable[[Run], str] | None = None  #: A bias of the scores that the layer has to itself.
    clip: bool = False  #: Whether queries, keys and values are clamped.

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise ValueError(f"heads = {self.heads} is not a multiple of kv_heads = {self.kv_heads}")

    def __call__(self, run: Run, x: str) -> str:
        q, k, v = self.project(run, x)
        return self.output(run, self.mix(run, x, q, k, v))

    @property
    def widths(self) -> tuple[int, int, int]:
        """Columns of queries, keys and values."""
        return self.heads * self.width, self.kv_heads * self.width, self.kv_heads * self.width

    def project(self, run: Run, x: str) -> tuple[str, str, str]:
        """Return queries, keys and values, all heads beside each other."""
        names = zip("qkv", self.widths, strict=True)
        if self.fused:
            qkv = self.clamped(run, run.linear(x, sum(self.widths), "qkv", self.qkv_bias), "qkv")
            q, k, v = (part(run.b, qkv, width, name) for name, width in names)
        else:
            q, k, v = (
                self.clamped(run, run.linear(x, width, name, self.qkv_bias and (self.k_bias or name != "k")), name)
                for name, width in names
            )
        return q, k, v

    def clamped(self, run: Run, x: str, name: str) -> str:
        """Return projections within their bounds, where the layer has any."""
        return run.b.op("clamp", x, name=f"{name}_clamped") if self.clip else x

    def mix(self, run: Run, x: str, q: str, k: str, v: str) -> str:
        """Attend, from projected queries, keys and values; heads are side by side again at the end."""
        q = self.position(run, self.split(run, q, self.heads, "q"), "rope_q")
        bias = self.relative(run) if self.relative else ""
        keys, values = self.keys_and_values(run, k, v)
        if self.index:
            self.index(run, x, x)
        y = self.attend(run, q, keys, values, bias)
        return merge_heads(run.b, self.gate(run, x, y) if self.gate else y)

    def split(self, run: Run, x: str, heads: int, name: str) -> str:
        """Return queries or keys by head, normed before or after as the model does."""
        return self.norm(run, x, heads, name) if self.norm else split_heads(run.b, x, heads, f"{name}_heads")

    def position(self, run: Run, x: str, name: str) -> str:
        """Rotate queries or keys, where the layer does."""
        return rope(run.b, x, *run.tables.get(self.width, (run.cos, run.sin)), name) if self.rotates else x

    def keys_and_values(self, run: Run, k: str, v: str) -> tuple[str, str]:
        """Return what is attended to: keys and values, or in decode the caches that they are written to."""
        k = self.split(run, k, self.kv_heads, "k")
        v = self.values(run, split_heads(run.b, v, self.kv_heads, "v_heads"))
        k = self.position(run, k, "rope_k")
        return run.store(k, "k_cache", self.window), run.store(v, "v_cache", self.window)

    def values(self, run: Run, v: str) -> str:
        """Return the values as they are attended to."""
        return v

    def attend(self, run: Run, q: str, k: str, v: str, bias: str = "") -> str:
        """Add the scores, their softmax and the weighted values."""
        sinks = run.b.weight("sinks", (self.heads,)) if self.sinks else None
        return run.attend(q, k, v, causal=self.causal, window=self.window, softcap=self.softcap, bias=bias, sinks=sinks)

    def output(self, run: Run, y: str) -> str:
        """Project back to the width of the residual stream."""
        return run.linear(y, run.width, "out", self.out_bias)


@dataclass(frozen=True)
class QueryGatedAttention(Attention):
    """Attention whose output is gated by a second half of the query projection (Qwen3-Next)."""

    @property
    def widths(self) -> tuple[int, int, int]:
        """Columns of queries with their gates, keys and values."""
        return 2 * self.heads * self.width, self.kv_heads * self.width, self.kv_heads * self.width

    def mix(self, run: Run, x: str, q: str, k: str, v: str) -> str:
        """Attend with the first half of the queries; the second gates the output."""
        b, width = run.b, self.heads * self.width
        q, gate = part(b, q, width, "q_part"), part(b, q, width, "gate")
        y = super().mix(run, x, q, k, v)
        return b.op("mul", y, b.op("sigmoid", gate, name="gate_sigmoid"), name="gated")


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, section 2.1; DeepSeek-V3, section 2.1.1)."""

    heads: int  #: Heads.
    q_lora: int  #: Rank of the query projection, 0 for a full one.
    kv_lora: int  #: Rank of the key-value latent.
    nope: int  #: Head width without position.
    rope: int  #: Head width that is rotated, one key for all heads.
    value: int  #: Head width of values.
    rotates: bool = True  #: Whether that part is rotated.
    qkv_bias: bool = False  #: Biases of the projections to the latents.
    out_bias: bool = False  #: Bias of the output projection.
    norm: str = "rmsnorm"  #: Kind of norm of the latents.
    softcap: float = 0.0  #: Soft bound of the scores, 0 for none.
    gate: Gate | None = None  #: A gate of the output.
    index: Index | None = None  #: A small attention that picks the positions to attend to.

    def __post_init__(self) -> None:
        if not all((self.kv_lora, self.nope, self.rope, self.value)):
            raise ValueError("mla = true needs kv_lora, nope_dim, rope_dim and value_dim")

    def __call__(self, run: Run, x: str) -> str:
        """Attend; decode absorbs the up-projections into queries and output."""
        b = run.b
        source = x
        if self.q_lora:
            source = norm(b, run.linear(x, self.q_lora, "q_a", self.qkv_bias), self.norm, "q_a_norm")
        nope, rotated = self.queries(run, source)
        latent, key = self.latent(run, x)
        up = b.weight("kv_b.weight", (self.heads * (self.nope + self.value), self.kv_lora), run.dtype or None)
        if run.keeps:
            joined = b.op("cat", split_heads(b, latent, 1, "latent_head"), key, name="latent_key")
            cache = run.store(joined, "latent_cache")
        if self.index:
            self.index(run, source, x)
        if run.decodes:
            y = self.absorbed(run, nope, rotated, cache, up)
        else:
            y = self.expanded(run, nope, rotated, latent, key, up)
        y = merge_heads(b, self.gate(run, x, y) if self.gate else y)
        return run.linear(y, run.width, "out", self.out_bias)

    def position(self, run: Run, x: str, name: str) -> str:
        """Rotate queries or keys, where the layer does."""
        return rope(run.b, x, run.cos, run.sin, name) if self.rotates else x

    def queries(self, run: Run, x: str) -> tuple[str, str]:
        """Return queries without and with position, ``(B, heads, S, nope)`` and ``(B, heads, S, rope)``."""
        b = run.b
        heads = split_heads(b, run.linear(x, self.heads * (self.nope + self.rope), "q_b"), self.heads, "q_heads")
        nope, rotated = part(b, heads, self.nope, "q_nope"), part(b, heads, self.rope, "q_pe")
        return nope, self.position(run, rotated, "rope_q")

    def latent(self, run: Run, x: str) -> tuple[str, str]:
        """Return the latent ``(B, S, kv_lora)`` and the rotated key that all heads share ``(B, 1, S, rope)``."""
        b = run.b
        both = run.linear(x, self.kv_lora + self.rope, "kv_a", self.qkv_bias)
        latent = norm(b, part(b, both, self.kv_lora, "kv_latent"), self.norm, "kv_a_norm")
        key = split_heads(b, part(b, both, self.rope, "k_pe"), 1, "k_pe_head")
        return latent, self.position(run, key, "rope_k")

    def expanded(self, run: Run, nope: str, rotated: str, latent: str, key: str, up: str) -> str:
        """Compute keys and values of every head from the latent: the cheaper form for many queries."""
        b = run.b
        heads = split_heads(b, b.op("linear", latent, up, name="kv_b"), self.heads, "kv_heads")
        shared = b.op("expand", key, name="k_pe_all", shape=(run.batch, self.heads, run.new, self.rope))
        k = b.op("cat", part(b, heads, self.nope, "k_nope"), shared, name="k")
        q = b.op("cat", nope, rotated, name="q")
        return run.attend(q, k, part(b, heads, self.value, "v"), softcap=self.softcap)

    def absorbed(self, run: Run, nope: str, rotated: str, cache: str, up: str) -> str:
        """Move the up-projection to the query and output side: attention reads only the latent."""
        b = run.b
        key_up = b.op("slice", up, name="kv_b_k", shape=(self.heads, self.nope, self.kv_lora))
        value_up = b.op("slice", up, name="kv_b_v", shape=(self.heads, self.kv_lora, self.value))
        by_head = b.op("view", nope, name="q_by_head", shape=(self.heads, run.batch, self.nope))
        absorbed = b.op("bmm", by_head, key_up, name="absorb_k")
        absorbed = b.op("view", absorbed, name="q_latent", shape=(run.batch, self.heads, 1, self.kv_lora))
        q = b.op("cat", absorbed, rotated, name="q")
        values = b.op("slice", cache, name="latent_values", shape=(*b.shape(cache)[:-1], self.kv_lora))
        y = run.attend(q, cache, values, softcap=self.softcap)
        y = b.op("view", y, name="y_by_head", shape=(self.heads, run.batch, self.kv_lora))
        y = b.op("bmm", y, value_up, name="absorb_v")
        return b.op("view", y, name="y", shape=(run.batch, self.heads, 1, self.value))


@dataclass(frozen=True)
class Beside:
    """Attention and another mixer from one input, added (Falcon-H1)."""

    attention: Layer
    other: Layer

    def __call__(self, run: Run, x: str) -> str:
        with run.b.scope("attn"):
            attended = self.attention(run, x)
        with run.b.scope("ssm"):
            mixed = self.other(run, x)
        return run.b.op("add", attended, mixed, name="mixed")
