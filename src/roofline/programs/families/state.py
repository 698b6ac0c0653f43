"""Mixers that keep a state of fixed size: Mamba, Mamba-2, the gated delta rule, short convolutions, recurrences.

Formulas: Mamba arXiv 2312.00752, Mamba-2 arXiv 2405.21060, gated delta rule arXiv 2412.06464, Griffin arXiv 2402.19427,
lightning attention arXiv 2401.04658, Kimi delta attention arXiv 2510.26692, xLSTM arXiv 2503.13427; layers as
transformers runs them. The state of a sequence, that of the convolution and that of the scan, is a cache whose size
does not depend on the context.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from roofline.ir.sizes import Size
from roofline.programs.families import blocks
from roofline.programs.families.attention import Run

#: Constant of the real-gated recurrence: gates are matrices of one block a head.
LRU_GATES = ("input_gate", "recurrent_gate")


def _linear(run: Run, x: str, out: Size, name: str, bias: bool = False) -> str:
    return blocks.linear(run.b, x, out, name, bias, run.c.linear_dtype)


def _scan(run: Run, op: str, inputs: list[str], shape: tuple[Size, ...], caches: list[str], dtype: str = "",
          **attrs: Any) -> str:  # fmt: skip
    """A scan as one kernel, which reads the state of the step before (in decode) and leaves its own."""
    b = run.b
    if not run.caches:
        return b.op(op, *inputs, name="scan", **attrs)
    state = b.cache("state", shape, dtype or None)
    with b.kernel("scan_kernel"):
        y = b.op(op, *inputs, *([state] if run.phase == "decode" else []), name="scan", **attrs)
        caches.append(b.op("state_update", state, y, name="state_update"))
    return y


def _convolve(run: Run, x: str, caches: list[str], bias: bool) -> str:
    """The causal depthwise convolution, which keeps its last inputs."""
    b, c = run.b, run.c
    channels = b.shape(x)[-1]
    inputs = [x, b.weight("conv.weight", (channels, c.ssm_conv))]
    if bias:
        inputs.append(b.weight("conv.bias", (channels,)))
    kept = c.ssm_conv - (c.ssm_conv_kept == "kernel-1")
    if not run.caches or not kept:
        return b.op("causal_conv", *inputs, name="conv")
    cache = b.cache("conv_state", (run.batch, channels, kept))
    with b.kernel("conv_kernel"):
        y = b.op("causal_conv", *inputs, *([cache] if run.phase == "decode" else []), name="conv")
        caches.append(b.op("state_update", cache, y, name="conv_update"))
    return y


def _decay(run: Run, shape: tuple[Size, ...]) -> str:
    """``-exp(A_log)``, computed from the weight in every run."""
    b = run.b
    return b.op("neg", b.op("exp", b.weight("a_log", shape), name="a_exp"), name="a")


def _heads(run: Run, x: str, heads: int, width: int, name: str) -> str:
    return run.b.op("view", x, name=name, shape=(run.batch, run.new, heads, width))


def mamba(run: Run, x: str, caches: list[str]) -> str:
    """Mamba: projection, convolution, selective scan with steps, B and C of each position, gate."""
    b, c = run.b, run.c
    both = _linear(run, x, 2 * c.ssm_inner, "in_proj", c.ssm_bias)
    u, z = blocks.part(b, both, c.ssm_inner, "u"), blocks.part(b, both, c.ssm_inner, "z")
    u = b.op("silu", _convolve(run, u, caches, c.ssm_conv_bias), name="u_silu")
    chosen = _linear(run, u, c.ssm_rank + 2 * c.ssm_state, "x_proj")
    parts = [blocks.part(b, chosen, w, n) for n, w in (("dt", c.ssm_rank), ("b", c.ssm_state), ("c", c.ssm_state))]
    if c.ssm_inner_norms != "none":
        scaled = c.ssm_inner_norms == "scaled"
        parts = [blocks.norm(b, p, "rmsnorm", f"{n}_norm", scale=scaled) for n, p in zip(("dt", "b", "c"), parts,
                                                                                       strict=True)]  # fmt: skip
    step = b.op("softplus", _linear(run, parts[0], c.ssm_inner, "dt_proj", True), name="step")
    inputs = [u, step, _decay(run, (c.ssm_inner, c.ssm_state)), *parts[1:], b.weight("d", (c.ssm_inner,))]
    y = _scan(run, "selective_scan", inputs, (run.batch, c.ssm_inner, c.ssm_state), caches, c.ssm_dtype)
    y = b.op("mul", y, b.op("silu", z, name="z_silu"), name="gated")
    return _linear(run, y, c.hidden, "out_proj", c.ssm_bias)


def mamba2(run: Run, x: str, caches: list[str]) -> str:
    """Mamba-2: one projection for gate, input, B, C and steps; convolution; scan by heads; gated norm."""
    b, c = run.b, run.c
    inner, shared, width = c.ssm_inner, c.ssm_groups * c.ssm_state, c.ssm_inner // c.ssm_heads
    sizes = (("z", inner), ("xbc", inner + 2 * shared), ("dt", c.ssm_heads))
    both = _linear(run, x, sum(size for _, size in sizes), "in_proj", c.ssm_bias)
    z, xbc, dt = (blocks.part(b, both, size, name) for name, size in sizes)
    xbc = b.op("silu", _convolve(run, xbc, caches, c.ssm_conv_bias), name="xbc_silu")
    u, key, query = (blocks.part(b, xbc, w, n) for n, w in (("u", inner), ("b", shared), ("c", shared)))
    step = b.op("softplus", b.op("add", dt, b.weight("dt_bias", (c.ssm_heads,)), name="dt_biased"), name="step")
    inputs = [
        _heads(run, u, c.ssm_heads, width, "u_heads"),
        _heads(run, key, c.ssm_groups, c.ssm_state, "b_groups"),
        _heads(run, query, c.ssm_groups, c.ssm_state, "c_groups"),
        step, _decay(run, (c.ssm_heads,)), b.weight("d", (c.ssm_heads,)),
    ]  # fmt: skip
    state = (run.batch, c.ssm_heads, width, c.ssm_state)
    y = _scan(run, "ssd_scan", inputs, state, caches, c.ssm_dtype, **_pace(run, c.ssm_chunk))
    y = b.op("view", y, name="merged", shape=(run.batch, run.new, inner))
    y = b.op("mul", y, b.op("silu", z, name="z_silu"), name="gated")
    if c.ssm_norm:
        y = blocks.norm(b, y, "rmsnorm", "norm_gated")
    return _linear(run, y, c.hidden, "out_proj", c.ssm_bias)


def _pace(run: Run, chunk: int) -> dict[str, Any]:
    return {"recurrent": True} if run.phase == "decode" else {"chunk": chunk}


def delta(run: Run, x: str, caches: list[str]) -> str:
    """The gated delta rule as Qwen3-Next runs it: convolution of q, k and v, normed q and k, scan, gated norm."""
    b, c = run.b, run.c
    keys, values = c.delta_keys * c.delta_key_dim, c.delta_values * c.delta_value_dim
    both = _linear(run, x, 2 * keys + 2 * values, "in_qkvz")
    qkv, z = blocks.part(b, both, 2 * keys + values, "qkv"), blocks.part(b, both, values, "z")
    gates = _linear(run, x, 2 * c.delta_values, "in_ba")
    strength = b.op("sigmoid", blocks.part(b, gates, c.delta_values, "b"), name="strength")
    shifted = b.op("add", blocks.part(b, gates, c.delta_values, "a"), b.weight("dt_bias", (c.delta_values,)), name="dt")
    decay = b.op("mul", b.op("softplus", shifted), _decay(run, (c.delta_values,)), name="decay")
    qkv = b.op("silu", _convolve(run, qkv, caches, False), name="qkv_silu")
    q, k, v = (blocks.part(b, qkv, w, n) for n, w in (("q", keys), ("k", keys), ("v", values)))
    q, k = (_delta_keys(run, part, name) for part, name in ((q, "q"), (k, "k")))
    v = _heads(run, v, c.delta_values, c.delta_value_dim, "v_heads")
    shape = (run.batch, c.delta_values, c.delta_key_dim, c.delta_value_dim)
    y = _scan(run, "delta_scan", [q, k, v, decay, strength], shape, caches, c.ssm_dtype, **_pace(run, 64))
    y = blocks.norm(b, y, "rmsnorm", "norm_gated")
    z = _heads(run, z, c.delta_values, c.delta_value_dim, "z_heads")
    y = b.op("mul", y, b.op("silu", z, name="z_silu"), name="gated")
    return _linear(run, b.op("view", y, name="merged", shape=(run.batch, run.new, values)), c.hidden, "out_proj")


def kimi_delta(run: Run, x: str, caches: list[str]) -> str:
    """The delta rule with a decay a channel as Kimi Linear runs it; decays and output gate may be of low rank."""
    b, c = run.b, run.c
    keys, values = c.delta_keys * c.delta_key_dim, c.delta_values * c.delta_value_dim
    qkv = b.op("silu", _convolve(run, _linear(run, x, 2 * keys + values, "qkv"), caches, False), name="qkv_silu")
    q, k, v = (blocks.part(b, qkv, w, n) for n, w in (("q", keys), ("k", keys), ("v", values)))
    q, k = (_delta_keys(run, part, name) for part, name in ((q, "q"), (k, "k")))
    v = _heads(run, v, c.delta_values, c.delta_value_dim, "v_heads")
    shifted = b.op("add", _low_rank(run, x, keys, "forget"), b.weight("dt_bias", (keys,)), name="dt")
    steps = _heads(run, b.op("softplus", shifted), c.delta_keys, c.delta_key_dim, "steps")
    decay = b.op("mul", steps, _decay(run, (c.delta_keys, 1)), name="decay")
    strength = b.op("sigmoid", _linear(run, x, c.delta_values, "strength_proj"), name="strength")
    shape = (run.batch, c.delta_values, c.delta_key_dim, c.delta_value_dim)
    y = _scan(run, "delta_scan", [q, k, v, decay, strength], shape, caches, c.ssm_dtype, **_pace(run, 64))
    y = blocks.norm(b, y, "rmsnorm", "norm_gated")
    z = _heads(run, _low_rank(run, x, values, "gate"), c.delta_values, c.delta_value_dim, "z_heads")
    y = b.op("mul", y, b.op("sigmoid", z, name="z_sigmoid"), name="gated")
    return _linear(run, b.op("view", y, name="merged", shape=(run.batch, run.new, values)), c.hidden, "out_proj")


def _low_rank(run: Run, x: str, out: Size, name: str) -> str:
    """One projection, or two around a rank."""
    if run.c.delta_rank:
        x = _linear(run, x, run.c.delta_rank, f"{name}_a")
    return _linear(run, x, out, f"{name}_b")


def _delta_keys(run: Run, x: str, name: str) -> str:
    """Heads of unit length, each as often as value heads share it."""
    b, c = run.b, run.c
    heads = b.op("rmsnorm", _heads(run, x, c.delta_keys, c.delta_key_dim, f"{name}_heads"), name=f"{name}_unit")
    if c.delta_keys == c.delta_values:
        return heads
    shape = (run.batch, run.new, c.delta_values, c.delta_key_dim)
    return b.op("rearrange", heads, name=f"{name}_repeated", shape=shape)


def short_convolution(run: Run, x: str, caches: list[str]) -> str:
    """LFM2's mixer: two gates around a short convolution."""
    b, c = run.b, run.c
    both = _linear(run, x, 3 * c.hidden, "in_proj", c.ssm_bias)
    first, second, u = (blocks.part(b, both, c.hidden, name) for name in ("b", "c", "u"))
    y = _convolve(run, b.op("mul", first, u, name="gated_in"), caches, c.ssm_bias)
    return _linear(run, b.op("mul", second, y, name="gated_out"), c.hidden, "out_proj", c.ssm_bias)


def linear_attention(run: Run, x: str, caches: list[str]) -> str:
    """Lightning attention as MiniMax-01 runs it: linear attention with a decay a head, norm, output gate."""
    b, c = run.b, run.c
    width = c.heads * c.width
    qkv = b.op("silu", _linear(run, x, 3 * width, "qkv"), name="qkv_silu")
    q, k, v = (_heads(run, blocks.part(b, qkv, width, n), c.heads, c.width, f"{n}_heads") for n in "qkv")
    shape = (run.batch, c.heads, c.width, c.width)
    y = _scan(run, "ssd_scan", [v, k, q], shape, caches, c.ssm_dtype, **_pace(run, c.ssm_chunk))
    y = blocks.norm(b, b.op("view", y, name="merged", shape=(run.batch, run.new, width)), "rmsnorm", "norm_out")
    gate = b.op("sigmoid", _linear(run, x, width, "output_gate"), name="gate_sigmoid")
    return _linear(run, b.op("mul", gate, y, name="gated"), c.hidden, "out_proj")


def mlstm(run: Run, x: str, caches: list[str]) -> str:
    """xLSTM's matrix memory: linear attention with gates a head, normed heads, output gate.

    The normaliser is one row more of the state; the largest gate so far, one number a head, is left out.
    """
    b, c = run.b, run.c
    heads, keys, values = c.delta_keys, c.delta_keys * c.delta_key_dim, c.delta_keys * c.delta_value_dim
    both = _linear(run, x, 2 * keys + 2 * values, "qkvo")
    gate = b.op("sigmoid", blocks.part(b, both, values, "o"), name="o_sigmoid")
    q, k = (_heads(run, blocks.part(b, both, keys, n), heads, c.delta_key_dim, f"{n}_heads") for n in "qk")
    v = _heads(run, blocks.part(b, both, values, "v"), heads, c.delta_value_dim, "v_heads")
    steps = b.op("softcap", _linear(run, x, 2 * heads, "gates", True), name="gates_capped")
    shape = (run.batch, heads, c.delta_value_dim + 1, c.delta_key_dim)
    y = _scan(run, "ssd_scan", [v, k, q, steps], shape, caches, c.ssm_dtype, **_pace(run, c.ssm_chunk))
    y = b.op("view", b.op("layernorm", y, name="norm_heads"), name="merged", shape=(run.batch, run.new, values))
    y = b.op("mul", y, b.weight("norm_heads.weight", (values,)), name="norm_scaled")
    return _linear(run, b.op("mul", gate, y, name="gated"), c.hidden, "out_proj")


def recurrent(run: Run, x: str, caches: list[str]) -> str:
    """Griffin's recurrent block as RecurrentGemma runs it: a gate beside a convolution and a gated recurrence."""
    b, c = run.b, run.c
    gate = b.op("gelu_tanh", _linear(run, x, c.ssm_inner, "linear_y", True), name="y_gelu")
    u = _convolve(run, _linear(run, x, c.ssm_inner, "linear_x", True), caches, True)
    block = c.ssm_inner // c.heads
    by_head = b.op("view", u, name="by_head", shape=(c.heads, run.batch * run.new, block))
    gates = []
    for name in LRU_GATES:
        product = b.op("bmm", by_head, b.weight(f"{name}.weight", (c.heads, block, block)), name=name)
        biased = b.op("add", product, b.weight(f"{name}.bias", (c.heads, 1, block)), name=f"{name}_biased")
        joined = b.op("view", biased, name=f"{name}_joined", shape=(run.batch, run.new, c.ssm_inner))
        gates.append(b.op("sigmoid", joined, name=f"{name}_sigmoid"))
    decay = b.weight("recurrent", (c.ssm_inner,))
    y = _scan(run, "linear_recurrence", [u, *gates, decay], (run.batch, c.ssm_inner), caches, c.ssm_dtype)
    return _linear(run, b.op("mul", y, gate, name="gated"), c.hidden, "linear_out", True)


#: Each kind of mixer with a state.
MIXERS: dict[str, Callable[[Run, str, list[str]], str]] = {
    "mamba": mamba,
    "mamba2": mamba2,
    "delta": delta,
    "kda": kimi_delta,
    "mlstm": mlstm,
    "conv": short_convolution,
    "linear": linear_attention,
    "recurrent": recurrent,
}
