"""Recorded calls beside PyTorch: the shapes of results, and whole programs as torch.profiler writes them."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from traces_by_hand import chrome

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import roofline as rl  # noqa: E402
from roofline.frontends.torch.record import format_name  # noqa: E402
from roofline.frontends.torch.recorded import formulas, recorded  # noqa: E402
from roofline.traces.events import Signature  # noqa: E402
from roofline.traces.linking import launches  # noqa: E402

TYPES = {
    "float32": "float", "float64": "double", "float16": "c10::Half", "bfloat16": "c10::BFloat16", "int64": "long int",
    "int32": "int", "int8": "signed char", "uint8": "unsigned char", "bool": "bool",
}  # fmt: skip


#: c10::ScalarType.
NUMBERS = {torch.uint8: 0, torch.int8: 1, torch.int32: 3, torch.int64: 4, torch.float16: 5, torch.float32: 6,
           torch.float64: 7, torch.bool: 11, torch.bfloat16: 15}  # fmt: skip


def _entry(value: Any) -> tuple[Any, str, Any, str]:
    """Shape, type, strides and text of an argument, as PyTorch's profiler notes them."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), TYPES[str(value.dtype).removeprefix("torch.")], value.stride(), ""
    if isinstance(value, list | tuple) and value and all(isinstance(each, torch.Tensor) for each in value):
        return tuple(tuple(each.shape) for each in value), "TensorList", tuple(each.stride() for each in value), ""
    if isinstance(value, list | tuple) and not any(each is None or isinstance(each, torch.Tensor) for each in value):
        return (), "ScalarList", (), str(list(value))
    if isinstance(value, bool | int | float):
        return (), "Scalar", (), str(value)
    if isinstance(value, torch.dtype):
        return (), "Scalar", (), str(NUMBERS[value])
    return (), "", (), ""


class Calls(TorchDispatchMode):  # type: ignore[misc]
    """Notes every call and what it returned."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, Signature, list[Any]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | (kwargs or {})
        every = [given.get(a.name, a.default_value if a.has_default_value() else None) for a in func._schema.arguments]
        signature = Signature(*(tuple(column) for column in zip(*map(_entry, every), strict=True)))
        out = func(*args, **(kwargs or {}))
        outs = [each for each in (out if isinstance(out, list | tuple) else [out]) if isinstance(each, torch.Tensor)]
        self.found.append((func._schema.name, signature, [(tuple(each.shape), each.dtype) for each in outs]))
        return out


def _programs() -> dict[str, Callable[[], Any]]:
    """Small programs that between them call most operators that have rules."""
    a, b = torch.randn(64, 32), torch.randn(32, 48)
    at, images = torch.tensor([3, 1, 4]), torch.randn(2, 8, 12, 12)
    positive = a.abs() + 0.1
    return {
        "products": lambda: (a @ b, torch.addmm(b[0], a, b), a @ b[:, 0], a[0] @ b[:, 0], torch.baddbmm(
            torch.randn(2, 3, 5), torch.randn(2, 3, 4), torch.randn(2, 4, 5)), torch.bmm(a[None], b[None])),
        "arithmetic": lambda: (a + 1, a * a[0], a / 2, 1 - a, a.pow(2), a**a, a > 0, a.eq(a[0]), a.neg(), a.int() + 1,
                               a.int() / 2, a.to(torch.bfloat16) + a, a.half() * 2.0, a.bool() & a.bool()),
        "functions": lambda: (F.gelu(a), F.silu(a), F.relu(a), a.tanh(), a.exp(), positive.log(), positive.sqrt(),
                              F.softplus(a), F.leaky_relu(a), a.clamp(0, 1), F.glu(a), a.sigmoid(), torch.erf(a)),
        "choices": lambda: (torch.where(a > 0, a, 0.0), torch.where(a > 0, a, a[0]), a.masked_fill(a > 0, 1.0),
                            torch.maximum(a, a[0]), torch.lerp(a, a, 0.5), torch.addcmul(a, a, a)),
        "fills": lambda: (torch.zeros(3, 4), torch.ones_like(a), torch.full((2, 3), 1.0), torch.arange(7),
                          torch.arange(1, 7, 2), torch.arange(0.0, 1.0, 0.3), torch.eye(4), a.new_zeros(5),
                          torch.linspace(0, 1, 5), torch.rand(3), torch.randint(0, 9, (3,)), torch.randperm(5)),
        "in place": lambda: (a.clone().add_(1), a.clone().fill_(0), a.clone().zero_(), a.clone().normal_(),
                             a.clone().copy_(a[0]), a.clone().index_add_(0, at, a[:3]),
                             a.clone().masked_fill_(a > 0, 1), a.clone().scatter_(0, at[None], 1.0),
                             a.clone().mul_(a), a.clone().clamp_min_(0)),
        "reductions": lambda: (a.sum(), a.sum(0), a.mean((0, 1)), a.amax(1, keepdim=True), a.max(), a.max(1), a.var(),
                               a.std(0), a.argmax(1), a.any(), a.all(0), a.norm(), a.logsumexp(1), a.prod(),
                               a.int().sum(), torch.var_mean(a, 0), a.min(0), a.aminmax(), (a > 0).sum(1)),
        "scans": lambda: (a.cumsum(0), a.sort(), a.argsort(), a.topk(3), a.topk(3, 0), a.cumprod(1), a.cummax(0)),
        "norms": lambda: (a.softmax(0), a.log_softmax(-1), F.layer_norm(a, (32,)), F.group_norm(images, 4),
                          F.batch_norm(images, torch.zeros(8), torch.ones(8)), F.rms_norm(a, (32,)),
                          F.batch_norm(images, None, None, training=True)),
        "moves": lambda: (torch.cat([a, a], 1), torch.stack([a, a], 1), a.index_select(0, at), a.gather(0, at[None]),
                          F.embedding(at, a), a.t().contiguous(), a.repeat(2, 3), a.flip(0), a.tril(), a.roll(1, 0),
                          F.pad(a, (1, 2, 3, 4)), a.to(torch.bfloat16), a[:, None].expand(64, 5, 32).contiguous(),
                          torch.take(a, at), F.one_hot(at, 7)),
        "convolutions": lambda: (F.conv2d(images, torch.randn(4, 8, 3, 3), stride=2, padding=1), F.conv2d(
            images, torch.randn(8, 1, 3, 3), torch.randn(8), groups=8), F.conv_transpose2d(
            images, torch.randn(8, 4, 3, 3), stride=2, output_padding=1), F.conv1d(a[None], torch.randn(5, 64, 3)),
            F.conv3d(images[None], torch.randn(3, 2, 2, 3, 3))),
        "images": lambda: (F.max_pool2d(images, 3, 2, 1), F.avg_pool2d(images, 3, ceil_mode=True),
                           F.adaptive_avg_pool2d(images, 1), F.adaptive_avg_pool2d(images, 5),
                           F.interpolate(images, scale_factor=2), F.interpolate(images, (7, 7), mode="bilinear"),
                           F.grid_sample(images, torch.rand(2, 5, 5, 2), align_corners=False)),
        "losses": lambda: (F.mse_loss(a, a), F.mse_loss(a, a, reduction="none"), F.cross_entropy(
            a, torch.zeros(64, dtype=torch.long)), F.binary_cross_entropy_with_logits(a, a), F.smooth_l1_loss(a, a)),
    }  # fmt: skip


def _backward() -> dict[str, Callable[[], Any]]:
    x, images = torch.randn(64, 32, requires_grad=True), torch.randn(2, 8, 12, 12, requires_grad=True)
    w, q = torch.randn(8, 8, 3, 3, requires_grad=True), torch.randn(2, 4, 16, 8, requires_grad=True)
    table, ids = torch.randn(10, 4, requires_grad=True), torch.tensor([[1, 2], [3, 4]])
    weight = torch.ones(32, requires_grad=True)
    results = {
        "functions": lambda: F.gelu(x) + F.silu(x) + x.tanh() + F.relu(x) + x.softmax(-1) + x.log_softmax(0),
        "norm": lambda: F.layer_norm(x, (32,), weight, weight),
        "images": lambda: F.max_pool2d(F.conv2d(images, w, padding=1), 2),
        "channels": lambda: F.batch_norm(images, None, None, training=True) + F.group_norm(images, 2),
        "attention": lambda: F.scaled_dot_product_attention(q, q, q, is_causal=True),
        "table": lambda: F.embedding(ids, table),
        "loss": lambda: F.cross_entropy(x, torch.zeros(64, dtype=torch.long)),
        "parts": lambda: x[:, 3:9] * 2 + x[:, :6],
    }
    return {f"{name} backward": lambda run=run: run().sum().backward() for name, run in results.items()}


PROGRAMS = {**_programs(), **_backward()}

#: What has no formula: how much is chosen depends on values, or was not recorded.
WITHOUT = {"aten::index", "aten::nonzero", "aten::_local_scalar_dense"}


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_have_the_shapes_that_pytorch_gives_them(name: str) -> None:
    with Calls() as calls:
        PROGRAMS[name]()
    wrong = []
    for op, signature, outs in calls.found:
        graph = recorded(op, signature)
        if graph is None:
            wrong += [(op, "no formula", signature)] if op not in WITHOUT else []
        elif graph.nodes and outs:
            found = {(graph.tensors[out].shape, graph.tensors[out].dtype) for out in graph.outputs}
            shape, dtype = outs[0]
            if 0 not in shape and (shape, format_name(dtype)) not in found:
                wrong.append((op, found, outs))
    assert not wrong


# --- whole programs ---------------------------------------------------------------------------------------------------


class Residual(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(16, 16, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(16) for _ in range(2))
        self.head = nn.Linear(16, 10)

    def forward(self, x: Any) -> Any:
        y = self.norms[1](self.second(F.relu(self.norms[0](self.first(x)))))
        return self.head(F.adaptive_avg_pool2d(F.relu(x + y), 1).flatten(1))


def _training() -> Callable[[], Any]:
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    x, y = torch.randn(16, 32), torch.zeros(16, dtype=torch.long)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


@cache
def whole() -> dict[str, tuple[Callable[[], Any], int]]:
    """Return programs with the FLOP of their matmuls."""
    encoder = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.0)
    residual, images, lstm = Residual(), torch.randn(2, 16, 14, 14), nn.LSTM(16, 32, batch_first=True)
    q = torch.randn(2, 4, 32, 16)
    products = 2 * 2 * 10 * (64 * 192 + 64 * 64 + 2 * 64 * 128)
    return {
        "encoder": (lambda: encoder(torch.randn(2, 10, 64)), products + 2 * 2 * 2 * 10 * 10 * 64),
        "residual": (lambda: residual(images), 2 * (2 * 2 * 196 * 16 * 16 * 9 + 2 * 16 * 10)),
        "lstm": (lambda: lstm(torch.randn(4, 8, 16)), 2 * 4 * 8 * (16 * 128 + 32 * 128)),
        "attention": (lambda: F.scaled_dot_product_attention(q, q, q), 2 * 2 * 2 * 4 * 32 * 32 * 16),
        "training": (_training(), 2 * 16 * (2 * 32 * 64 + 3 * 64 * 10)),
    }


@pytest.mark.parametrize("name", ["encoder", "residual", "lstm", "attention", "training"])
def test_programs_are_covered_and_their_products_counted_once(name: str, tmp_path: Path) -> None:
    run, flops = whole()[name]
    run()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profiler:
        run()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    found = launches(chrome(json.loads((tmp_path / "trace.json").read_text())))
    graphs = formulas(found)
    missing = sum(each.duration for each, graph in zip(found, graphs, strict=True) if graph is None)
    assert missing < 0.02 * sum(each.duration for each in found)
    assert sum(rl.count(graph).flops for graph in graphs if graph is not None) == flops
