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
