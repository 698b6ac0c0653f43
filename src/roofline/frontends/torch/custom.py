"""Operators that PyTorch would take apart while it is traced on a CPU, kept whole.

On a CPU, scaled-dot-product attention with a mask, RMS norm, dropout and recurrent layers fall into pieces that no
accelerator runs. While a program is captured, these functions are redirected to operators of our own, which have the
same results (so that programs that look at values still take the right way) and a backward of the kind that libraries
run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any
from unittest import mock

import torch
from torch.nn import functional

#: The kinds of recurrent layers.
KINDS = ("lstm", "gru", "rnn_tanh", "rnn_relu")

#: What autocast does to the operands of a matmul, while a program is captured.
AUTOCAST: list[Callable[..., tuple[Any, ...]]] = []


@cache
def operators() -> Any:
    """Register the operators once and return their namespace."""
    _attention()
    _rms_norm()
    _recurrent()
    _grouped_mm()
    return torch.ops.roofline


def _operator(
    name: str, schema: str, run: Callable[..., Any], shape: Callable[..., Any], *learnt: str,
    returns: str = "Tensor", also: dict[str, Callable[[Any], Any]] | None = None,
) -> None:  # fmt: skip
    """Register an operator, and its backward as another one.

    Args:
        name: Of the operator; its backward is called ``name_backward`` and takes the gradient first.
        schema: Its parameters.
        run: What it computes; the backward differentiates the first result.
        shape: Its results without data.
        learnt: Parameters that have gradients.
        returns: Types of its results.
        also: Parameters whose gradient follows from that of the first one.
    """
    names = [parameter.split()[-1] for parameter in schema.split(", ")]
    places = [names.index(parameter) for parameter in learnt]

    def backward_run(grad: Any, *args: Any) -> Any:
        present = [at for at in places if args[at] is not None]

        def first(*leaves: Any) -> Any:
            values = dict(enumerate(args)) | dict(zip(present, leaves, strict=True))
            out = run(*values.values())
            return out[0] if isinstance(out, tuple) else out

        grads = dict(zip(present, _differentiated(first, tuple(args[at] for at in present), grad), strict=True))
        return tuple(grads.get(at, grad.new_empty(0)) for at in places)

    def backward_shape(grad: Any, *args: Any) -> Any:
        return tuple(grad.new_empty(0) if args[at] is None else torch.empty_like(args[at]) for at in places)

    def save(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*(each if isinstance(each, torch.Tensor) else None for each in inputs))
        ctx.plain = [None if isinstance(each, torch.Tensor) else each for each in inputs]

    def backward(ctx: Any, grad: Any, *_: Any) -> Any:
        args = [value if tensor is None else tensor for tensor, value in zip(ctx.saved_tensors, ctx.plain, strict=True)]
        grads = getattr(torch.ops.roofline, f"{name}_backward")(grad, *args)
        every = dict(zip(places, grads, strict=True))
        for parameter, follow in (also or {}).items():
            at = names.index(parameter)
            every[at] = follow(grads[0]) if args[at] is not None else None
        return tuple(every.get(at) if value is not None else None for at, value in enumerate(args))

    _define(name, f"({schema}) -> {returns}", run, shape)
    results = ", ".join("Tensor" for _ in learnt)
    _define(f"{name}_backward", f"(Tensor grad, {schema}) -> ({results})", backward_run, backward_shape)
    torch.library.register_autograd(f"roofline::{name}", backward, setup_context=save)


def _define(name: str, schema: str, run: Callable[..., Any], shape: Callable[..., Any]) -> None:
    torch.library.define(f"roofline::{name}", schema)
    torch.library.impl(f"roofline::{name}", "CompositeExplicitAutograd")(run)
    torch.library.register_fake(f"roofline::{name}")(shape)


def _differentiated(function: Callable[..., Any], at: tuple[Any, ...], grad: Any) -> tuple[Any, ...]:
    """Return gradients by PyTorch itself, which inside an operator records none unless it is told to."""
    key, guard = torch._C.DispatchKey, torch._C._SetExcludeDispatchKeyGuard
    with guard(key.AutogradFunctionality, False), guard(key.ADInplaceOrView, False), torch.enable_grad():
        leaves = [each.detach().requires_grad_() for each in at]
        return tuple(torch.autograd.grad(function(*leaves), leaves, grad.detach()))


def _attention() -> None:
    def run(q: Any, k: Any, v: Any, mask: Any, causal: bool, scale: float | None, *_: Any) -> Any:
        gqa = q.dim() == 4 and q.shape[-3] != k.shape[-3]
        plain = torch._C._nn.scaled_dot_product_attention  # its name in torch.nn.functional may be redirected
        return plain(q, k, v, mask, 0.0, causal, scale=scale, enable_gqa=gqa)

    def shape(q: Any, k: Any, v: Any, mask: Any, causal: bool, scale: float | None, dropout: float, how: str) -> Any:
        """Return a result that lies as the kernel leaves it, so that joining its heads moves no more than it does.

        Plain matmuls leave heads first, the memory efficient kernel, which runs in fp32, positions
        (``_efficient_attention_forward``), and the others what lies as the queries do (``empty_like`` of
        ``mha_fwd``, ``alloc_with_matching_layout`` of cuDNN's; aten/src/ATen/native).
        """
        sizes, wide = (*q.shape[:-1], v.shape[-1]), q.dtype == torch.float32
        if q.dim() != 4 or UNFUSED in how.split():
            return q.new_empty(sizes)
        steps = [_number(step) for step in q.stride()]
        order = [0, 2, 1, 3] if wide else sorted(range(4), key=lambda at: -steps[at])
        return q.new_empty([sizes[at] for at in order]).permute([order.index(at) for at in range(4)])

    schema = "Tensor q, Tensor k, Tensor v, Tensor? mask, bool causal, float? scale, float dropout, str how"
    _operator("sdpa", schema, run, shape, "q", "k", "v")


#: The word for operands that no fused kernel of attention takes as they lie.
UNFUSED = "unfused"


def _how(q: Any, k: Any, v: Any, mask: Any) -> str:
    """Return, in words, what decides which kernels PyTorch runs for attention beyond shapes and formats.

    No fused kernel takes other ranks than four or a last axis with steps (check_tensor_shapes and
    check_last_dim_stride_equals_1_dense of aten/src/ATen/native/transformers/sdp_utils_cpp.h). An operand is ``apart``
    where something lies between its batch and its heads, so that a batched matmul takes a copy of it; gradients are
    ``kept`` where its result has them.
    """
    operands = {"q": q, "k": k, "v": v}
    steps = [_number(tensor.stride(-1)) for tensor in (*operands.values(), *([] if mask is None else [mask]))]
    words = [UNFUSED] if q.dim() != 4 or any(step != 1 for step in steps) else []
    words += [name for name, tensor in operands.items() if _apart(tensor)]
    learns = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in operands.values())
    return " ".join([*words, *(["kept"] if learns else [])])


def _apart(tensor: Any) -> bool:
    sizes, steps = ([_number(each) for each in axes] for axes in (tensor.shape, tensor.stride()))
    between = any(steps[-3] < step < steps[0] for size, step in zip(sizes[-2:], steps[-2:], strict=True) if size > 1)
    return len(sizes) == 4 and min(sizes[0], sizes[1]) > 1 and between


def _number(size: Any) -> int:
    """Return a size or a step; a symbolic one by its hint."""
    return size if isinstance(size, int) else int(size.node.hint)


def _rms_norm() -> None:
    def run(x: Any, weight: Any, axes: int) -> Any:
        return torch.nn.functional.rms_norm(x, x.shape[-axes:], weight)

    _operator("rms_norm", "Tensor x, Tensor? weight, int axes", run,
              lambda x, weight, axes: torch.empty_like(x), "x", "weight")  # fmt: skip


def _grouped_mm() -> None:
    def run(rows: Any, matrices: Any, ends: Any) -> Any:
        stops = [int(end) for end in ends]
        spans = zip([0, *stops[:-1]], stops, matrices, strict=True)
        return torch.cat([rows[start:stop] @ matrix for start, stop, matrix in spans])

    _operator("grouped_mm", "Tensor rows, Tensor matrices, Tensor ends", run,
              lambda rows, matrices, ends: rows.new_empty((rows.shape[0], matrices.shape[-1])),
              "rows", "matrices")  # fmt: skip


# --- recurrent layers: the steps of one layer in one direction, on inputs that are projected already ------------------


def _step(kind: str, projected: Any, hidden: Any, h: Any, c: Any) -> tuple[Any, Any]:
    """Return the next state and cell from both projections of all gates."""
    if kind == "gru":
        r, z, n = projected.chunk(3, -1)
        hr, hz, hn = hidden.chunk(3, -1)
        update = torch.sigmoid(z + hz)
        return update * h + (1 - update) * torch.tanh(n + torch.sigmoid(r + hr) * hn), c
    gates = projected + hidden
    if kind == "lstm":
        i, f, g, o = gates.chunk(4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c
    return (torch.relu(gates) if kind == "rnn_relu" else torch.tanh(gates)), c


def _recurrent() -> None:
    def run(projected: Any, h: Any, c: Any, weight: Any, bias: Any, kind: str) -> Any:
        rows, last, cell = [], h, c
        for each in projected.unbind(0):
            last, cell = _step(kind, each, torch.nn.functional.linear(last, weight, bias), last, cell)
            rows.append(last)
        return torch.stack(rows), last.clone(), cell.clone()

    def shape(projected: Any, h: Any, c: Any, weight: Any, bias: Any, kind: str) -> Any:
        rows = projected.new_empty((*projected.shape[:-1], h.shape[-1]))
        return rows, torch.empty_like(h), torch.empty_like(c)

    schema = "Tensor projected, Tensor h, Tensor c, Tensor weight, Tensor? bias, str kind"
    _operator("recurrent", schema, run, shape, "projected", "weight",
              returns="(Tensor, Tensor, Tensor)", also={"bias": lambda grad: grad.sum((0, 1))})  # fmt: skip


# --- what the user calls, in these words ------------------------------------------------------------------------------


def sdpa(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: Any = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """``torch.nn.functional.scaled_dot_product_attention`` as one operator, batches broadcast to a common one.

    With a bias that learns PyTorch takes it apart itself, for the gradient of the bias.
    """
    if attn_mask is not None and attn_mask.requires_grad and torch.is_grad_enabled():
        return torch._C._nn.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    if not query.shape[:-3] == key.shape[:-3] == value.shape[:-3]:
        batch = torch.broadcast_shapes(*(tensor.shape[:-3] for tensor in (query, key, value)))
        query, key, value = (tensor.expand(*batch, *tensor.shape[-3:]) for tensor in (query, key, value))
    how = _how(query, key, value, attn_mask)
    return operators().sdpa(query, key, value, attn_mask, is_causal, scale, float(dropout_p), how)


def multi_head_attention(*args: Any, **kwargs: Any) -> Any:
    """``multi_head_attention_forward``, which looks up its functions by itself, past a mode that has redirected it."""
    with mock.patch.multiple(functional, scaled_dot_product_attention=sdpa, linear=linear, dropout=dropout):
        return functional.multi_head_attention_forward(*args, **kwargs)


def linear(input: Any, weight: Any, bias: Any = None) -> Any:
    """``torch.nn.functional.linear`` on rows; some versions of PyTorch lose symbolic sizes where they fold them."""
    if input.dim() < 3 or weight.dim() != 2:
        return torch._C._nn.linear(input, weight, bias)
    for cast in AUTOCAST[-1:]:  # a weight is cast as it is stored, and once
        input, weight, bias = cast(input, weight, bias)
    rows = input.reshape(-1, input.shape[-1])
    fused = bias is not None and input.is_contiguous()  # as in at::linear of aten/src/ATen/native/Linear.cpp
    out = torch.addmm(bias, rows, weight.t()) if fused else rows @ weight.t()
    shape = (*input.shape[:-1], weight.shape[0])
    if fused or bias is None:
        return out.reshape(shape)
    return torch.ops.aten._unsafe_view(out, shape).add_(bias)  # no view to autograd, as in _matmul_impl


def dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    """``torch.nn.functional.dropout`` as the one operator that it is on an accelerator."""
    if not training or inplace or not 0 < p < 1:
        return (torch.dropout_ if inplace else torch.dropout)(input, p, training)
    return torch.native_dropout(input, p, True)[0]


def rms_norm(input: Any, normalized_shape: Any, weight: Any = None, eps: Any = None) -> Any:
    """``torch.rms_norm`` as one operator."""
    return operators().rms_norm(input, weight, len(normalized_shape))


def recurrent(kind: str) -> Callable[..., Any]:
    """``torch.lstm`` and its kin on padded batches: a projection of all steps, then the steps, for each layer."""

    def run(
        x: Any, state: Any, params: Any, has_biases: bool, num_layers: int, dropout: float, train: bool,
        bidirectional: bool, batch_first: bool,
    ) -> Any:  # fmt: skip
        each, ways = (4 if has_biases else 2), (2 if bidirectional else 1)
        projects = not isinstance(params, bool) and len(params) != each * ways * num_layers
        if x.dim() != 3 or projects:  # a packed sequence has other arguments; these two stay as they are
            return getattr(torch, kind)(
                x, state, params, has_biases, num_layers, dropout, train, bidirectional, batch_first
            )
        states = state if kind == "lstm" else (state, state)
        first = x = x.transpose(0, 1).contiguous() if batch_first else x
        room = _room(x, [weight for at, weight in enumerate(params) if at % each < 2], ways)
        last: list[Any] = []
        for layer in range(num_layers):
            outs = []
            for way in range(ways):
                at = layer * ways + way
                w_in, w_h, *biases = params[at * each : (at + 1) * each]
                b_in, b_h = biases if biases else (None, None)
                rows = linear(x.flip(0) if way else x, w_in, b_in)
                y, h, c = operators().recurrent(rows, states[0][at], states[1][at], w_h, b_h, kind)
                outs.append(y.flip(0) if way else y)
                last.append((h, c))
                del rows
            x = torch.cat(outs, -1) if ways > 1 else outs[0]
        ends = [torch.stack(part) for part in zip(*last, strict=True)]
        out = x.transpose(0, 1) if batch_first else x
        del room, first  # which were there all the time
        return (out, *ends) if kind == "lstm" else (out, ends[0])

    return run


#: What cuDNN sets aside for the matmuls of each layer and direction [byte], and the steps that it projects at once.
_ROOM, _STEPS = 2**23, 512


def _room(x: Any, weights: Sequence[Any], ways: int) -> Any:
    """Take what cuDNN's recurrent layers take besides what is computed here step by step.

    ``_cudnn_rnn`` (aten/src/ATen/native/cudnn/RNN.cpp) copies an input whose batch comes first, and weights in bf16:
    ``CUDNN_TENSOR_DTYPES`` of torch/backends/cudnn lacks it, so that ``flatten_parameters`` does nothing. cuDNN's
    workspace is not published; in 112 layers on an H200 (9.19) it is the gates and one more row of states for each step
    (three where there are two directions), the input, the weights and a constant. Peaks follow from that with a median
    error of 1.7 %; narrow layers in fp32 take two to three times as much.
    """
    steps, batch, width = x.shape
    if not isinstance(steps, int):
        return None
    hidden, at_once = weights[1].shape[1], min(steps, _STEPS)
    gates, layers = weights[1].shape[0] // hidden, len(weights) // 2 // ways
    row = at_once * ((gates + 2 * ways - 1) * ways * hidden + width)
    row -= steps * hidden * (gates + ways * (layers > 1))  # gates of a direction, and the layer below
    copies = sum(weight.numel() for weight in weights) * (1 + (x.dtype == torch.bfloat16))
    size = (max(row, 0) * batch + copies) * x.element_size() + _ROOM * layers * ways
    return torch.empty(size, dtype=torch.uint8, device=x.device)


def grouped_mm(mat_a: Any, mat_b: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None, **_: Any) -> Any:
    """``torch._grouped_mm`` of sorted rows and a matrix an expert, in any format."""
    if mat_a.dim() != 2 or mat_b.dim() != 3 or offs is None or bias is not None:
        return torch._grouped_mm(mat_a, mat_b, offs, bias, out_dtype)
    return operators().grouped_mm(mat_a, mat_b, offs)


@cache
def redirected() -> dict[Any, Callable[..., Any]]:
    """Return the functions of PyTorch and what is called in their place."""
    return {
        torch._C._nn.scaled_dot_product_attention: sdpa,
        torch._C._nn.linear: linear,
        torch.nn.functional.multi_head_attention_forward: multi_head_attention,
        torch.nn.functional.dropout: dropout,
        torch.rms_norm: rms_norm,
        torch.nn.functional.rms_norm: rms_norm,
        torch._grouped_mm: grouped_mm,
        **({torch.nn.functional.grouped_mm: grouped_mm} if hasattr(torch.nn.functional, "grouped_mm") else {}),
        **{getattr(torch, kind): recurrent(kind) for kind in KINDS},
        **redirected_aten(),
    }


@cache
def redirected_aten() -> dict[Any, Callable[..., Any]]:
    """Return the same for operators of an exported program."""
    aten = torch.ops.aten
    recurrent_ops = {getattr(aten, kind).input: recurrent(kind) for kind in KINDS}
    return {
        aten.scaled_dot_product_attention.default: sdpa,
        aten.linear.default: linear,
        aten.rms_norm.default: rms_norm,
        aten._grouped_mm.default: grouped_mm,
        **recurrent_ops,
    }
