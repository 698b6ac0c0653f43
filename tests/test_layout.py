"""How elementwise kernels of a captured PyTorch program get at their elements, by sizes and strides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import roofline as rl  # noqa: E402

#: Kernel names of PyTorch 2.11 on an H100 (torch.profiler) say which way it takes: ``vectorized_elementwise_kernel``,
#: ``unrolled_elementwise_kernel`` (cast), ``elementwise_kernel`` (strided; with ``gpu_kernel_impl`` mixed).
WAYS: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]], tuple[str, int, int]]] = {
    "one shape": (lambda x, y: x + y, [(8, 64), (8, 64)], ("vector", 1, 0)),
    "a number": (lambda x: x * 2, [(8, 64)], ("vector", 1, 0)),
    "permuted alike": (lambda x, y: x.mT + y.mT, [(8, 64), (8, 64)], ("vector", 1, 0)),
    "permuted": (lambda x: x.mT.relu(), [(8, 64)], ("vector", 1, 0)),
    "permuted apart": (lambda x, y: x.mT + y, [(32, 64), (64, 32)], ("strided", 2, 64)),
    "a row": (lambda x, y: x + y, [(8, 64), (64,)], ("strided", 2, 0)),
    "a column": (lambda x, y: x * y, [(8, 64), (8, 1)], ("strided", 2, 0)),
    "a tensor of one number": (lambda x, y: x * y, [(8, 64), ()], ("strided", 1, 0)),
    "whole rows": (lambda x: x[2:6].relu(), [(8, 64)], ("vector", 1, 0)),
    "parts of rows": (lambda x: x[:, :32].relu(), [(8, 64)], ("strided", 2, 0)),
    "heads inside": (lambda x, y: x.transpose(1, 2) * y, [(2, 8, 4, 64), (8, 64)], ("strided", 4, 0)),
    "a wider format": (lambda x: x.float(), [(8, 64)], ("cast", 1, 0)),
    "two formats": (lambda x, y: x + y.float(), [(8, 64), (8, 64)], ("cast", 1, 0)),
    "two formats, a column": (lambda x, y: x * y.float(), [(8, 64), (8, 1)], ("mixed", 2, 0)),
    "a narrower format": (lambda x: x.float().bfloat16(), [(8, 64)], ("vector", 1, 0)),
    "in order": (lambda x: x.mT.contiguous(), [(8, 64)], ("strided", 2, 8)),
    "heads in order": (lambda x: x.transpose(1, 2).reshape(2, 8, -1), [(2, 4, 8, 64)], ("strided", 4, 0)),
    "into a part": (lambda x, y: x[:, :32].copy_(y), [(8, 64), (8, 32)], ("strided", 2, 0)),
    "in place": (lambda x, y: x.add_(y), [(8, 64), (64,)], ("strided", 2, 0)),
}  # fmt: skip


def accesses(run: Callable[..., Any], *shapes: tuple[int, ...], **options: Any) -> list[Any]:
    tensors = [torch.empty(shape, dtype=torch.bfloat16) for shape in shapes]
    nodes = rl.from_torch(run, *tensors, **options).nodes
    return [dict(node.attrs)["access"] for node in nodes if "access" in dict(node.attrs)]


@pytest.mark.parametrize("name", WAYS)
def test_which_kernel_pytorch_takes(name: str) -> None:
    run, shapes, access = WAYS[name]
    assert accesses(run, *shapes)[-1] == access


def test_symbolic_sizes_have_the_strides_of_the_capture() -> None:
    run = lambda x, y: x.transpose(1, 2) * y  # noqa: E731
    assert accesses(run, (2, 8, 4, 64), (8, 64), dynamic={"B": {"x": 0}}) == [("strided", 4, 0)]


def test_numbers_that_the_host_holds_launch_nothing_and_do_not_stride() -> None:
    def run(x: Any) -> Any:
        return x / torch.sqrt(torch.tensor(64.0, dtype=torch.bfloat16) * 2)

    graph = rl.from_torch(run, torch.empty(8, 64, dtype=torch.bfloat16))
    assert [dict(node.attrs)["access"] for node in graph.nodes] == [("vector", 1, 0)]


BF16, FP32, INT64 = torch.bfloat16, torch.float32, torch.int64


def turned(x: Any, y: Any) -> Any:
    return x.mT + y


#: Microseconds of one kernel on an H100 in eager PyTorch 2.11 (torch.profiler, means within whole programs), too large
#: to lie in the cache. "cat of parts" is the sum of two, of 32 and 8 heads.
MEASURED: dict[str, tuple[Callable[..., Any], list[tuple[tuple[int, ...], Any]], float]] = {
    "relu": (lambda x: x.relu(), [((128, 256, 56, 56), BF16)], 136.5),
    "add": (lambda x, y: x + y, [((64, 56, 56, 384), BF16)] * 2, 150.0),
    "mul by rows, fp32": (lambda x, y: x * y, [((8, 1024, 2048), FP32), ((8, 1024, 1), FP32)], 60.0),
    "mul by columns": (lambda x, y: x * y, [((8, 1024, 2048), BF16), ((2048,), BF16)], 49.8),
    "rotary mul": (lambda x, y: x.transpose(1, 2) * y, [((8, 1024, 32, 64), BF16), ((1024, 64), BF16)], 55.0),
    "rotary add": (lambda x, y: x.transpose(1, 2) + y, [((8, 1024, 32, 64), BF16), ((8, 32, 1024, 64), BF16)], 64.9),
    "half of rows": (lambda x: torch.nn.functional.silu(x[..., :8192]), [((4, 2048, 16384), BF16)], 199.8),
    "widening": (lambda x: x.float(), [((8, 1024, 2048), BF16)], 57.0),
    "turned add": (turned, [((64, 768, 256), BF16), ((64, 256, 768), BF16)], 89.3),
    "turned copy": (lambda x: x.mT.contiguous(), [((64, 768, 256), BF16)], 93.4),
    "image to channels last": (lambda x: x.permute(0, 2, 3, 1).contiguous(), [((64, 96, 56, 56), BF16)], 90.6),
    "heads in order": (lambda x: x.transpose(1, 2).contiguous(), [((4, 2048, 32, 96), BF16)], 78.0),
    "cat of rows": (lambda x, y: torch.cat((x, y), 1), [((50_000, 256), BF16)] * 2, 34.0),
    "cat of parts": (lambda x: torch.cat((x[..., 32:], x[..., :32]), -1), [((8, 40, 1024, 64), BF16)], 100.6),
    "rows by index": (lambda x, at: x[at], [((50_000, 256), BF16), ((400_000,), INT64)], 242.1),
    "wide rows by index": (lambda x, at: x[at], [((4096, 2048), BF16), ((32_768,), INT64)], 92.4),
    "adds to rows": (lambda x, at, y: x.index_add_(0, at, y),
                     [((50_000, 256), BF16), ((400_000,), INT64), ((400_000, 256), BF16)], 863.0),
    "roll": (lambda x: x.roll(3, 1), [((32, 56, 56, 96), BF16)], 44.7),
    "mean over images": (lambda x: x.mean((2, 3)), [((128, 2048, 7, 7), BF16)], 11.8),
}  # fmt: skip


def alone(run: Callable[..., Any], *operands: Any) -> rl.Estimate:
    graph = rl.from_torch(run, *operands)
    return rl.estimate(graph, "h100-sxm", mode="graph")


@pytest.mark.parametrize("name", MEASURED)
def test_the_time_of_a_kernel(name: str) -> None:
    run, operands, measured = MEASURED[name]
    tensors = [torch.empty(shape, dtype=dtype, device="meta") for shape, dtype in operands]
    if name == "mean over images":
        tensors = [tensors[0].to(memory_format=torch.channels_last)]
    estimate = alone(run, *tensors)
    assert estimate.launches == 1
    assert estimate.device_time * 1e6 == pytest.approx(measured, rel=0.2)


#: Kernels that one call launches (torch.profiler).
LAUNCHES: dict[str, tuple[Callable[..., Any], int]] = {
    "a norm": (lambda x: torch.nn.functional.layer_norm(x, (96,)), 1),
    "a norm of what is turned": (lambda x: torch.nn.functional.layer_norm(x.mT, (64,)), 2),
    "softmax of what is turned": (lambda x: x.mT.softmax(-1), 2),
    "masked": (lambda x: x.masked_fill(x > 0, 0), 3),
    "masked in place": (lambda x: x.masked_fill_(x > 0, 0), 2),
    "one roll": (lambda x: x.roll(3, 1), 1),
    "two rolls": (lambda x: x.roll((3, 3), (0, 1)), 2),
    "zeros, where bags start, and sums of rows": (
        lambda x: torch.nn.functional.embedding_bag(torch.zeros(8, 4, dtype=INT64, device="meta"), x[0]),
        3,
    ),
    "a border": (lambda x: torch.nn.functional.pad(x, (0, 1)), 2),
    "no border": (lambda x: torch.nn.functional.pad(x, (0, 0)), 1),
}


@pytest.mark.parametrize("name", LAUNCHES)
def test_kernels_of_a_call(name: str) -> None:
    run, launches = LAUNCHES[name]
    assert alone(run, torch.empty(8, 64, 96, dtype=BF16, device="meta")).launches == launches
