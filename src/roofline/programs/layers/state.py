"""Mixers that keep a state of fixed size: Mamba, Mamba-2, the gated delta rule, short convolutions, recurrences.

Formulas: Mamba arXiv 2312.00752, Mamba-2 arXiv 2405.21060, gated delta rule arXiv 2412.06464, Griffin arXiv 2402.19427,
lightning attention arXiv 2401.04658, Kimi delta attention arXiv 2510.26692, xLSTM arXiv 2503.13427; layers as
transformers runs them. The state of a sequence, that of the convolution and that of the scan, is a cache whose size
does not depend on the context.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from roofline.ir.sizes import Size
from roofline.programs.layers.base import Run
from roofline.programs.layers.primitives import norm, part, weights


@dataclass(frozen=True)
class Convolution:
    """The causal depthwise convolution before a scan, which keeps its last inputs."""

    taps: int = 4  #: Positions that it sees.
    bias: bool = True  #: Whether it has a bias.
    #: Whether the cache keeps all ``taps`` inputs, as transformers does, or the ``taps - 1`` that the next step needs,
    #: as some engines do.
    keeps_all: bool = True
    dtype: str = ""  #: Number format of the kept inputs, the cache's when empty.

    def __call__(self, run: Run, x: str) -> str:
        b = run.b
        channels = b.shape(x)[-1]
        inputs = [x, *weights(b, "conv", (channels, self.taps), self.bias)]
        length = self.taps - (not self.keeps_all)
        if not run.keeps or not length:
            return b.op("causal_conv", *inputs, name="conv")
        cache = b.cache("conv_state", (run.batch, channels, length), self.dtype or None)
        with b.kernel("conv_kernel"):
            y = b.op("causal_conv", *inputs, *([cache] if run.decodes else []), name="conv")
            run.caches.append(b.op("state_update", cache, y, name="conv_update"))
        return y


@dataclass(frozen=True)
class Mamba:
    """Mamba: projection, convolution, selective scan with steps, B and C of each position, gate."""

    inner: int  #: Channels.
    state: int  #: State of a channel.
    rank: int  #: Rank of the step projection.
    conv: Convolution = Convolution()  #: The convolution.
    bias: bool = False  #: Biases of the input and output projections.
    norms: str = "none"  #: Norms of the step, B and C: ``scaled`` (Jamba) or ``plain``, without a weight.
    dtype: str = ""  #: Number format of the kept state, the cache's when empty.

    def __call__(self, run: Run, x: str) -> str:
        b, inner = run.b, self.inner
        both = run.linear(x, 2 * inner, "in_proj", self.bias)
        u, z = part(b, both, inner, "u"), part(b, both, inner, "z")
        u = b.op("silu", self.conv(run, u), name="u_silu")
        sizes = (("dt", self.rank), ("b", self.state), ("c", self.state))
        chosen = run.linear(u, self.rank + 2 * self.state, "x_proj")
        parts = [part(b, chosen, width, name) for name, width in sizes]
        if self.norms != "none":
            scale = self.norms == "scaled"
            parts = [norm(b, p, "rmsnorm", f"{n}_norm", scale=scale) for (n, _), p in zip(sizes, parts, strict=True)]
        step = b.op("softplus", run.linear(parts[0], inner, "dt_proj", True), name="step")
        inputs = [u, step, _decay(run, (inner, self.state)), *parts[1:], b.weight("d", (inner,))]
        y = _scan(run, "selective_scan", inputs, (run.batch, inner, self.state), self.dtype)
        y = b.op("mul", y, b.op("silu", z, name="z_silu"), name="gated")
        return run.linear(y, run.width, "out_proj", self.bias)


@dataclass(frozen=True)
class Mamba2:
    """Mamba-2: one projection for gate, input, B, C and steps; convolution; scan by heads; gated norm."""

    inner: int  #: Channels.
    state: int  #: State of a channel.
    heads: int  #: Heads.
    groups: int = 1  #: Groups of heads that share B and C.
    chunk: int = 256  #: Positions that a scan takes at a time.
    conv: Convolution = Convolution()  #: The convolution.
    bias: bool = False  #: Biases of the input and output projections.
    norm: bool = True  #: Gated RMSNorm before the output projection.
    dtype: str = ""  #: Number format of the kept state, the cache's when empty.

    def __post_init__(self) -> None:
        if self.inner % self.heads or self.heads % self.groups:
            raise ValueError(f"ssm_inner = {self.inner}, ssm_heads = {self.heads} and ssm_groups = {self.groups} clash")

    def __call__(self, run: Run, x: str) -> str:
        b, inner, heads = run.b, self.inner, self.heads
        shared, width = self.groups * self.state, inner // heads
        sizes = (("z", inner), ("xbc", inner + 2 * shared), ("dt", heads))
        both = run.linear(x, sum(size for _, size in sizes), "in_proj", self.bias)
        z, xbc, dt = (part(b, both, size, name) for name, size in sizes)
        xbc = b.op("silu", self.conv(run, xbc), name="xbc_silu")
        u, key, query = (part(b, xbc, w, n) for n, w in (("u", inner), ("b", shared), ("c", shared)))
        step = b.op("softplus", b.op("add", dt, b.weight("dt_bias", (heads,)), name="dt_biased"), name="step")
        inputs = [
            run.heads(u, heads, width, "u_heads"),
            run.heads(key, self.groups, self.state, "b_groups"),
            run.heads(query, self.groups, self.state, "c_groups"),
            step, _decay(run, (heads,)), b.weight("d", (heads,)),
        ]  # fmt: skip
        y = _chunked(run, "ssd_scan", inputs, (run.batch, heads, width, self.state), self.chunk, self.dtype)
        y = b.op("view", y, name="merged", shape=(run.batch, run.new, inner))
        y = b.op("mul", y, b.op("silu", z, name="z_silu"), name="gated")
        if self.norm:
            y = norm(b, y, "rmsnorm", "norm_gated")
        return run.linear(y, run.width, "out_proj", self.bias)


@dataclass(frozen=True)
class Delta:
    """The gated delta rule as Qwen3-Next runs it: convolution of q, k and v, normed q and k, scan, gated norm."""

    keys: int  #: Key heads.
    values: int  #: Value heads.
    key_width: int  #: Width of a key head.
    value_width: int  #: Width of a value head.
    conv: Convolution = Convolution(bias=False)  #: The convolution.
    dtype: str = ""  #: Number format of the kept state, the cache's when empty.

    def __post_init__(self) -> None:
        if self.values % self.keys:
            raise ValueError(f"delta_values = {self.values} is not a multiple of delta_keys = {self.keys}")

    def __call__(self, run: Run, x: str) -> str:
        b, keys, values = run.b, self.keys * self.key_width, self.values * self.value_width
        both = run.linear(x, 2 * keys + 2 * values, "in_qkvz")
        qkv, z = part(b, both, 2 * keys + values, "qkv"), part(b, both, values, "z")
        gates = run.linear(x, 2 * self.values, "in_ba")
        strength = b.op("sigmoid", part(b, gates, self.values, "b"), name="strength")
        shifted = b.op("add", part(b, gates, self.values, "a"), b.weight("dt_bias", (self.values,)), name="dt")
        decay = b.op("mul", b.op("softplus", shifted), _decay(run, (self.values,)), name="decay")
        q, k, v = self.heads(run, qkv)
        y = self.scan(run, q, k, v, decay, strength)
        return self.output(run, y, z, "silu")

    def heads(self, run: Run, qkv: str) -> tuple[str, str, str]:
        """Return queries, keys and values by head, convolved, queries and keys of unit length."""
        b, keys = run.b, self.keys * self.key_width
        sizes = (("q", keys), ("k", keys), ("v", self.values * self.value_width))
        qkv = b.op("silu", self.conv(run, qkv), name="qkv_silu")
        q, k, v = (part(b, qkv, width, name) for name, width in sizes)
        q, k = self.unit(run, q, "q"), self.unit(run, k, "k")
        return q, k, run.heads(v, self.values, self.value_width, "v_heads")

    def unit(self, run: Run, x: str, name: str) -> str:
        """Return heads of unit length, each as often as value heads share it."""
        heads = run.b.op("rmsnorm", run.heads(x, self.keys, self.key_width, f"{name}_heads"), name=f"{name}_unit")
        if self.keys == self.values:
            return heads
        lead, share = (run.batch, run.new, self.keys), self.values // self.keys
        alone = run.b.op("view", heads, name=f"{name}_alone", shape=(*lead, 1, self.key_width))
        shared = run.b.op("expand", alone, name=f"{name}_shared", shape=(*lead, share, self.key_width))
        copied = run.b.op("rearrange", shared, name=f"{name}_repeated", shape=(*lead, share, self.key_width))
        return run.b.op("view", copied, name=f"{name}_each", shape=(*lead[:2], self.values, self.key_width))

    def scan(self, run: Run, *inputs: str) -> str:
        """Return the normed output of the scan."""
        shape = (run.batch, self.values, self.key_width, self.value_width)
        return norm(run.b, _chunked(run, "delta_scan", list(inputs), shape, 64, self.dtype), "rmsnorm", "norm_gated")

    def output(self, run: Run, y: str, z: str, activation: str) -> str:
        """Gate the heads and project them back."""
        b = run.b
        z = run.heads(z, self.values, self.value_width, "z_heads")
        y = b.op("mul", y, b.op(activation, z, name=f"z_{activation}"), name="gated")
        y = b.op("view", y, name="merged", shape=(run.batch, run.new, self.values * self.value_width))
        return run.linear(y, run.width, "out_proj")


@dataclass(frozen=True)
class KimiDelta(Delta):
    """The delta rule with a decay per channel as Kimi Linear runs it."""

    rank: int = 0  #: Rank of the projections to the decays and the output gate, 0 for full ones.

    def __post_init__(self) -> None:
        if self.keys != self.values:
            raise ValueError(f"a layer of kind kda has as many key as value heads, given {self.keys} and {self.values}")

    def __call__(self, run: Run, x: str) -> str:
        b, keys, values = run.b, self.keys * self.key_width, self.values * self.value_width
        q, k, v = self.heads(run, run.linear(x, 2 * keys + values, "qkv"))
        shifted = b.op("add", self.low_rank(run, x, keys, "forget"), b.weight("dt_bias", (keys,)), name="dt")
        steps = run.heads(b.op("softplus", shifted), self.keys, self.key_width, "steps")
        decay = b.op("mul", steps, _decay(run, (self.keys, 1)), name="decay")
        strength = b.op("sigmoid", run.linear(x, self.values, "strength_proj"), name="strength")
        y = self.scan(run, q, k, v, decay, strength)
        return self.output(run, y, self.low_rank(run, x, values, "gate"), "sigmoid")

    def low_rank(self, run: Run, x: str, out: Size, name: str) -> str:
        """Add one projection, or two around a rank."""
        return run.linear(run.linear(x, self.rank, f"{name}_a") if self.rank else x, out, f"{name}_b")


@dataclass(frozen=True)
class ShortConvolution:
    """LFM2's mixer: two gates around a short convolution."""

    conv: Convolution
    bias: bool = False

    def __call__(self, run: Run, x: str) -> str:
        b = run.b
        both = run.linear(x, 3 * run.width, "in_proj", self.bias)
        first, second, u = (part(b, both, run.width, name) for name in ("b", "c", "u"))
        y = self.conv(run, b.op("mul", first, u, name="gated_in"))
        return run.linear(b.op("mul", second, y, name="gated_out"), run.width, "out_proj", self.bias)


@dataclass(frozen=True)
class LightningAttention:
    """Linear attention with a decay per head, norm and output gate, as MiniMax-01 runs it."""

    heads: int
    width: int
    chunk: int = 256
    dtype: str = ""

    def __call__(self, run: Run, x: str) -> str:
        b, columns = run.b, self.heads * self.width
        qkv = b.op("silu", run.linear(x, 3 * columns, "qkv"), name="qkv_silu")
        q, k, v = (run.heads(part(b, qkv, columns, n), self.heads, self.width, f"{n}_heads") for n in "qkv")
        shape = (run.batch, self.heads, self.width, self.width)
        y = _chunked(run, "ssd_scan", [v, k, q], shape, self.chunk, self.dtype)
        y = norm(b, b.op("view", y, name="merged", shape=(run.batch, run.new, columns)), "rmsnorm", "norm_out")
        gate = b.op("sigmoid", run.linear(x, columns, "output_gate"), name="gate_sigmoid")
        return run.linear(b.op("mul", gate, y, name="gated"), run.width, "out_proj")


@dataclass(frozen=True)
class MatrixLSTM:
    """xLSTM's matrix memory: linear attention with gates per head, normed heads, output gate.

    The normaliser is one row more of the state; the largest gate so far, one number per head, is left out.
    """

    heads: int
    key_width: int
    value_width: int
    chunk: int = 256
    dtype: str = ""

    def __call__(self, run: Run, x: str) -> str:
        b, heads = run.b, self.heads
        keys, values = heads * self.key_width, heads * self.value_width
        both = run.linear(x, 2 * keys + 2 * values, "qkvo")
        gate = b.op("sigmoid", part(b, both, values, "o"), name="o_sigmoid")
        q, k = (run.heads(part(b, both, keys, n), heads, self.key_width, f"{n}_heads") for n in "qk")
        v = run.heads(part(b, both, values, "v"), heads, self.value_width, "v_heads")
        steps = b.op("softcap", run.linear(x, 2 * heads, "gates", True), name="gates_capped")
        shape = (run.batch, heads, self.value_width + 1, self.key_width)
        y = _chunked(run, "ssd_scan", [v, k, q, steps], shape, self.chunk, self.dtype)
        y = b.op("view", b.op("layernorm", y, name="norm_heads"), name="merged", shape=(run.batch, run.new, values))
        y = b.op("mul", y, b.weight("norm_heads.weight", (values,)), name="norm_scaled")
        return run.linear(b.op("mul", gate, y, name="gated"), run.width, "out_proj")


@dataclass(frozen=True)
class GatedRecurrence:
    """Griffin's recurrent block as RecurrentGemma runs it: a gate beside a convolution and a gated recurrence.

    Gates are matrices of one block per head.
    """

    inner: int
    heads: int
    conv: Convolution = Convolution()
    dtype: str = ""

    def __call__(self, run: Run, x: str) -> str:
        b, inner, heads = run.b, self.inner, self.heads
        gate = b.op("gelu_tanh", run.linear(x, inner, "linear_y", True), name="y_gelu")
        u = self.conv(run, run.linear(x, inner, "linear_x", True))
        block = inner // heads
        by_head = b.op("view", u, name="by_head", shape=(heads, run.batch * run.new, block))
        gates = []
        for name in ("input_gate", "recurrent_gate"):
            logits = b.op("bmm", by_head, b.weight(f"{name}.weight", (heads, block, block)), name=name)
            biased = b.op("add", logits, b.weight(f"{name}.bias", (heads, 1, block)), name=f"{name}_biased")
            joined = b.op("view", biased, name=f"{name}_joined", shape=(run.batch, run.new, inner))
            gates.append(b.op("sigmoid", joined, name=f"{name}_sigmoid"))
        inputs = [u, *gates, b.weight("recurrent", (inner,))]
        y = _scan(run, "linear_recurrence", inputs, (run.batch, inner), self.dtype)
        return run.linear(b.op("mul", y, gate, name="gated"), run.width, "linear_out", True)


def _scan(run: Run, op: str, inputs: list[str], shape: tuple[Size, ...], dtype: str, **attrs: Any) -> str:
    """Add a scan as one kernel, which reads the state of the step before (in decode) and leaves its own."""
    b = run.b
    if not run.keeps:
        return b.op(op, *inputs, name="scan", **attrs)
    state = b.cache("state", shape, dtype or None)
    with b.kernel("scan_kernel"):
        y = b.op(op, *inputs, *([state] if run.decodes else []), name="scan", **attrs)
        run.caches.append(b.op("state_update", state, y, name="state_update"))
    return y


def _chunked(run: Run, op: str, inputs: list[str], shape: tuple[Size, ...], chunk: int, dtype: str) -> str:
    """Add a scan that takes some positions at a time, or in decode the one that there is."""
    attrs: dict[str, Any] = {"recurrent": True} if run.decodes else {"chunk": chunk}
    return _scan(run, op, inputs, shape, dtype, **attrs)


def _decay(run: Run, shape: tuple[Size, ...]) -> str:
    """Return ``-exp(A_log)``, computed from the weight in every run."""
    b = run.b
    return b.op("neg", b.op("exp", b.weight("a_log", shape), name="a_exp"), name="a")
