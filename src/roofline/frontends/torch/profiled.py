"""Operators that only profilers name, in words of those that have rules; and rules for the few that have no words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from roofline.frontends import emit
from roofline.frontends.call import with_options
from roofline.frontends.torch import forms
from roofline.frontends.torch.program import Value
from roofline.frontends.torch.rules.recurrent import CELL_FLOPS
from roofline.frontends.torch.walk import Call, Result, Row, rows
from roofline.ir.errors import ShapeError
from roofline.ir.sizes import quotient


@dataclass(frozen=True)
class Alias:
    """An operator in words of another one.

    Attributes:
        rule: Name of the operator that has a rule.
        args: Names of that operator's arguments and what they are called here.
        fixed: Arguments that have one value.
        heads_inside: Arguments (by the rule's names) stored ``(batch, length, heads, width)``; rules want heads first.
    """

    rule: str
    args: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    heads_inside: tuple[str, ...] = ()


_FLASH = "_scaled_dot_product_flash_attention"
_QKV = ("query", "key", "value")
_SELF = {"input": "self"}


def _backward(grad: str, mask: str, causal: str = "is_causal", turned: bool = False) -> Alias:
    args = {"grad": grad, "q": "query", "k": "key", "v": "value", "mask": mask, "causal": causal}
    return Alias("sdpa_backward", args, {}, ("grad", "q", "k", "v") if turned else ())


ALIASES: dict[str, Alias] = {
    # Attention. The masks of the memory-efficient kernels are numbers, 0 for none.
    "scaled_dot_product_attention": Alias(_FLASH),
    "_scaled_dot_product_attention_math": Alias(_FLASH),
    "_cudnn_attention_forward": Alias(_FLASH),
    "_flash_attention_forward": Alias(_FLASH, heads_inside=_QKV),
    "_efficient_attention_forward": Alias(
        _FLASH, {"is_causal": "custom_mask_type", "attn_bias": "bias"}, heads_inside=_QKV
    ),
    "_scaled_dot_product_flash_attention_backward": _backward("grad_out", ""),
    "_scaled_dot_product_flash_attention_for_cpu_backward": _backward("grad_out", "attn_mask"),
    "_scaled_dot_product_cudnn_attention_backward": _backward("grad_out", "attn_bias"),
    "_scaled_dot_product_efficient_attention_backward": _backward("grad_out_", "attn_bias"),
    "_cudnn_attention_backward": _backward("grad_out", "attn_bias"),
    "_flash_attention_backward": _backward("grad_out", "", turned=True),
    "_efficient_attention_backward": _backward("grad_out_", "bias", "custom_mask_type", turned=True),
    # Convolutions.
    **dict.fromkeys(("cudnn_convolution", "mkldnn_convolution", "miopen_convolution", "miopen_depthwise_convolution",
                     "_conv_depthwise2d", "conv_depthwise3d", "cudnn_convolution_relu", "miopen_convolution_relu"),
                    Alias("convolution", _SELF)),
    **dict.fromkeys(("_slow_conv2d_forward", "slow_conv3d_forward", "thnn_conv2d", "slow_conv3d", "slow_conv_dilated2d",
                     "slow_conv_dilated3d"), Alias("convolution", _SELF, {"groups": 1})),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), Alias("convolution")),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
                    Alias("convolution", fixed={"transposed": True})),
    **dict.fromkeys(("cudnn_convolution_transpose", "miopen_convolution_transpose", "slow_conv_transpose2d",
                     "slow_conv_transpose3d"), Alias("convolution", _SELF, {"transposed": True})),
    "_convolution_pointwise": Alias("convolution", {"input": "X", "weight": "W", "bias": "B"}),
    # Matmuls.
    "mkldnn_linear": Alias("linear", _SELF),
    "_linear_pointwise": Alias("linear", {"input": "X", "weight": "W", "bias": "B"}),
    "_addmm_activation": Alias("addmm"),
    "addmv": Alias("mv", {"self": "mat"}),
    "_grouped_mm": Alias("grouped_mm", {"rows": "self", "matrices": "mat2"}),
    # Norms.
    "layer_norm": Alias("native_layer_norm"),
    "group_norm": Alias("native_group_norm", {"group": "num_groups"}),
    **dict.fromkeys(("batch_norm", "_batch_norm_impl_index", "miopen_batch_norm"), Alias("native_batch_norm")),
    "miopen_batch_norm_backward": Alias("cudnn_batch_norm_backward"),
    "_batch_norm_impl_index_backward": Alias("cudnn_batch_norm_backward"),
    "rms_norm": Alias("_fused_rms_norm"),
    "_fused_rms_norm_backward": Alias("rms_norm_backward", {"grad": "grad_out", "x": "input"}),
    # Moves and others.
    "contiguous": Alias("clone"),
    "item": Alias("_local_scalar_dense"),
    "_fused_dropout": Alias("native_dropout", _SELF),
}  # fmt: skip


def settled(alias: Alias, args: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments under the names that the rule knows."""
    named = {**args, **{name: args.get(theirs) for name, theirs in alias.args.items()}, **alias.fixed}
    if alias.rule == "convolution":
        return _convolution(named)
    if alias.rule == "rms_norm_backward":
        named["axes"] = len(named["normalized_shape"])
    return named


def _convolution(args: dict[str, Any]) -> dict[str, Any]:
    """Fill in what some leave out since it follows from the shapes."""
    image, weight = args.get("input"), args.get("weight")
    if not isinstance(image, Value) or not isinstance(weight, Value):
        raise ShapeError("a convolution needs image and weight")
    ones = (1,) * (len(image.shape) - 2)
    filled = {"stride": ones, "dilation": ones, "padding": (0,) * len(ones)}
    if args.get("groups") is None:
        args["groups"] = quotient(image.shape[1], weight.shape[1])
    return {**filled, **args}


# --- rules ------------------------------------------------------------------------------------------------------------

#: Operations per element of ``_foreach_*``, by what follows.
_FOREACH = {"addcmul": 3, "addcdiv": 3, "lerp": 3, "copy": 0, "zero": 0, "norm": 2, "max": 0, "clamp_min": 0,
            "clamp_max": 0, "maximum": 0, "minimum": 0, "neg": 0, "sign": 0, "abs": 0}  # fmt: skip

#: Operations per element of a fused optimizer step, by PyTorch's kernels without weight decay: Adam averages twice (3
#: and 4), corrects (2), takes a root (1), adds epsilon, divides, scales and subtracts (4).
_OPTIMIZERS = {"_fused_adam": 14, "_fused_adamw": 16, "_fused_sgd": 4, "_fused_adagrad": 6}

#: What a fused optimizer writes besides the parameters.
_STATES = ("exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs", "momentum_buffer_list", "state_sums")


def _columns(call: Call) -> list[tuple[Value, ...]]:
    """Return the lists of a call that have a tensor for each of the first."""
    lists = [value for value in call.args.values() if _is_list(value)]
    return [each for each in lists if len(each) == len(lists[0]) and _shapes(each) == _shapes(lists[0])]


def _is_list(value: Any) -> bool:
    return isinstance(value, tuple) and bool(value) and all(isinstance(each, Value) for each in value)


def _shapes(values: tuple[Value, ...]) -> list[tuple[Any, ...]]:
    return [value.shape for value in values]


def _foreach(call: Call) -> Result:
    """One kernel over lists of tensors, element by element."""
    name = call.name.removeprefix("foreach_")
    columns = _columns(call)
    if name in ("copy", "zero") and len(columns) > (name == "copy"):
        columns = columns[1:]  # what is overwritten is not read
    with call.b.kernel(call.name):
        for values in zip(*columns, strict=True):
            operands = [call.walk.tensor(value) for value in values]
            if name == "norm":
                emit.reduce(call.b, "norm", operands[0], name=name, dtype=values[0].dtype)
            else:
                call.b.op("elementwise", *operands, name=name, dtype=values[0].dtype, flops=_FOREACH.get(name, 1))
        if not columns:
            for value in next(each for each in call.args.values() if _is_list(each)):
                call.b.op("fill", name=name, shape=value.shape, dtype=value.dtype)
    return None


def _optimizer(call: Call) -> Result:
    """Parameters, gradients and states in, parameters and states out, in one kernel."""
    states = [key for key in _STATES if _is_list(call.args.get(key))]
    with call.b.kernel(call.name):
        for values in zip(*_columns(call), strict=True):
            operands = [call.walk.tensor(value) for value in values]
            flops = _OPTIMIZERS[call.what.removesuffix("_")]
            call.b.op("elementwise", *operands, name="parameter", dtype=values[0].dtype, flops=flops)
            for state in states:
                call.b.op("elementwise", operands[0], name=state, dtype=values[0].dtype, flops=0)
    return None


#: PyTorch's numbers for the kinds of recurrent layers; cuDNN and oneDNN share them.
_CELLS = {0: "rnn_relu", 1: "rnn_tanh", 2: "lstm", 3: "gru"}


def _layers(call: Call) -> list[list[str]]:
    """Return the weights of each layer and direction: of the input, of the state."""
    single = [key for key in ("weight0", "weight1", "weight2") if call.value(key) is not None][:2]
    if single:  # oneDNN counts from 0 forwards and from 1 backwards
        return [[call.tensor(key) for key in single]]
    weights = [value for value in call.get("weight", ()) if isinstance(value, Value) and len(value.shape) == 2]
    names = [call.walk.tensor(value) for value in weights]
    return [names[at : at + 2] for at in range(0, len(names), 2)]


def _recurrent(call: Call) -> Result:
    """All steps of all layers; each direction of a bidirectional one is a layer here, of half the width."""
    b, kind = call.b, _CELLS[call.get("mode")]
    x, directions = call.tensor("input"), 2 if call.get("bidirectional") and call.value("weight0") is None else 1
    if call.get("batch_first") and call.value("weight0") is None:
        steps = b.shape(x)[1]
        x = b.op("permute", x, name="by_step", axes=(1, 0, 2))
    steps, batch, _ = b.shape(x)
    pairs = _layers(call)
    for at in range(0, len(pairs), directions):
        outs = [_layer(call, kind, x, *pair, steps=steps, batch=batch) for pair in pairs[at : at + directions]]
        x = outs[0] if len(outs) == 1 else b.op("cat", *outs, name="both", axis=2)
    return x


def _layer(call: Call, kind: str, x: str, inward: str, hidden: str, *, steps: Any, batch: Any) -> str:
    b, width = call.b, call.b.shape(hidden)[1]
    projected = b.op("linear", x, inward, name="projected")
    state = b.op("slice", projected, name="state", shape=(batch, width))
    hidden_part = b.op("linear", state, hidden, name="hidden", count=steps, recurrent=True)
    return b.op("recurrent_cell", projected, hidden_part, state, name="cell", count=steps, flops=CELL_FLOPS[kind])


def _bag(call: Call) -> Result:
    """Rows of a table by index, summed up bag by bag in the same kernel."""
    table, bags = call.tensor("weight"), call.shape("offsets")
    with call.b.kernel(call.name):
        rows = call.op("embedding", table, call.tensor("indices"), name="rows")
        return call.op("rearrange", rows, shape=(*bags, call.b.shape(table)[1]))


def _recurrent_backward(call: Call) -> Result:
    """Back through the gates and the state's matmul step by step; then matmuls for the input and both weights."""
    b, dtype = call.b, call.out.dtype
    sizes: tuple[Any, ...] = call.shape("input")
    first, second, _ = sizes
    steps, batch = (second, first) if call.get("batch_first") and call.value("weight1") is None else (first, second)
    for inward, hidden in _layers(call):
        (gates, fan_in), width = b.shape(inward), b.shape(hidden)[1]
        grads, inputs, states = (
            b.source(name, (steps * batch, size), "buffer", dtype)
            for name, size in (("gates", gates), ("inputs", fan_in), ("states", width))
        )
        flops = 2 * CELL_FLOPS[_CELLS[call.get("mode")]]
        b.op("elementwise", states, name="grad_gates", dtype=dtype, flops=flops)
        step = b.op("slice", grads, name="step", shape=(batch, gates))
        b.op("matmul", step, hidden, name="grad_state", dtype=dtype, count=steps)
        b.op("matmul", grads, inward, name="grad_input", dtype=dtype)
        rows = b.op("permute", grads, name="turned", axes=(1, 0))
        for name in (inputs, states):
            b.op("matmul", rows, name, name="grad_weight", dtype=dtype)
    return None


@with_options
def _cell(call: Call, kind: str, state_key: str) -> Result:
    """The gates of one step: both projections are summed, then each element of the state is worked out."""
    state = call.tensor(state_key)
    with call.b.kernel(call.name):
        gates = call.op("elementwise", call.tensor("input_gates"), call.tensor("hidden_gates"), name="gates")
        one = call.b.op("slice", gates, name="gate", shape=call.b.shape(state))
        return call.op("elementwise", one, state, flops=CELL_FLOPS[kind])


EXTRA: dict[str, Row] = {
    **rows(_OPTIMIZERS, _optimizer, forms.by_rule),
    **rows("_local_scalar_dense", lambda call: call.op("copy", call.tensor())),
    **rows("_embedding_bag _embedding_bag_forward_only", _bag, forms.by_rule),
    **rows("_cudnn_rnn mkldnn_rnn_layer", _recurrent, forms.by_rule),
    **rows("_cudnn_rnn_backward mkldnn_rnn_layer_backward", _recurrent_backward, forms.by_rule),
    **rows("_thnn_fused_lstm_cell", _cell("lstm", "cx"), forms.by_rule),
    **rows("_thnn_fused_gru_cell", _cell("gru", "hx"), forms.by_rule),
}


def extra(name: str) -> Row | None:
    """Return what is known of an operator that only profilers name."""
    bare = name.removesuffix("_")
    return Row(_foreach, forms.by_rule) if bare.startswith("_foreach_") else EXTRA.get(bare)
