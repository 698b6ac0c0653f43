"""Memory of captured programs: a tensor lives until the program's last reference to it goes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import roofline as rl  # noqa: E402
from roofline.analysis.timeline import memory_over_time  # noqa: E402
from roofline.counting.memory import TrainingMemory, memory  # noqa: E402
from roofline.ir.graph import Lifetimes  # noqa: E402

N = 1024
VECTOR = 4 * N
X = torch.empty(N, device="meta")


def activations(program: Callable[..., Any], *args: Any, **options: Any) -> float:
    return float(memory(rl.from_torch(program, *args, **options), {}).activations)


def nested(x: Any) -> Any:
    return torch.tanh(torch.exp(torch.relu(x)))


def named(x: Any) -> Any:
    a = torch.relu(x)
    b = torch.exp(a)
    return torch.tanh(b)


def renamed(x: Any) -> Any:
    x = torch.relu(x)
    x = torch.exp(x)
    return torch.tanh(x)


def deleted(x: Any) -> Any:
    a = torch.relu(x)
    b = torch.exp(a)
    del a
    return torch.tanh(b)


@pytest.mark.parametrize(("program", "vectors"), [(nested, 2), (named, 3), (renamed, 2), (deleted, 2)])
def test_a_variable_keeps_its_tensor_until_it_has_another(program: Any, vectors: int) -> None:
    assert activations(program, X) == vectors * VECTOR


def test_a_part_keeps_the_whole() -> None:
    def program(x: Any) -> Any:
        first, _ = torch.relu(x).chunk(2)
        y = torch.exp(x)
        return y, first

    assert activations(program, X) == 2 * VECTOR


def test_what_is_written_in_place_takes_nothing() -> None:
    def program(x: Any) -> Any:
        y = torch.exp(x)
        y.relu_()
        y[: N // 2] += 1
        return y

    assert activations(program, X) == VECTOR


def test_a_cache_of_the_program_is_kept_to_its_end() -> None:
    class Net(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            self.seen = torch.relu(x)
            for _ in range(3):
                x = torch.exp(x)
            return x

    assert activations(Net(), X) == 3 * VECTOR


def test_indices_that_nobody_reads_are_allocated() -> None:
    image = torch.empty(1, 8, 32, 32, device="meta")
    pooled = 8 * 16 * 16
    assert activations(lambda x: torch.nn.functional.max_pool2d(x, 2), image) == pooled * (4 + 8)  # and of int64


def test_a_backward_holds_what_it_reads() -> None:
    w = torch.empty(N, requires_grad=True)

    def program(x: Any) -> Any:
        (w * x).exp().tanh().sum().backward()

    # Results of exp and tanh are read by their backward, that of the product by nobody: it is gone. Those two and the
    # gradient of tanh's argument are there at once; once more with exp's, when tanh's is gone. The sums take little.
    need = memory(rl.from_torch(program, torch.empty(N)), {})
    assert isinstance(need, TrainingMemory)
    assert need.activations + need.gradients == pytest.approx(3 * VECTOR, abs=16)
    assert need.gradients == VECTOR  # is there at the end, with the gradient of the product alone


def test_symbols_and_numbers_agree() -> None:
    def program(x: Any) -> Any:
        y = torch.nn.functional.max_pool2d(torch.relu(x), 2)
        z = torch.exp(y)
        return z + 1

    shape = (4, 3, 16, 16)
    symbolic = rl.from_torch(program, torch.empty(shape, device="meta"), dynamic={"B": 0})
    fixed = rl.from_torch(program, torch.empty(shape, device="meta"))
    assert memory(symbolic, {"B": 4}) == memory(symbolic.bind(B=4), {}) == memory(fixed, {})


def test_what_a_pass_changes_goes_by_its_last_use() -> None:
    graph = rl.from_torch(named, X)
    assert memory(rl.passes.fuse(graph), {}).activations == VECTOR  # one kernel, and its result
    assert memory(graph.with_info(lifetimes=Lifetimes()), {}).activations == 2 * VECTOR
    assert memory(rl.passes.fuse(graph, "eager"), {}).activations == 3 * VECTOR


def test_recorded_on_data_as_without() -> None:
    x = torch.zeros(N)
    assert activations(named, x, method="run") == activations(named, X) == 3 * VECTOR


@pytest.mark.parametrize("name", ["block-lm", "dit-b2", "dlrm-small", "unet-bn-32", "vae-decoder", "tcn", "vocoder"])
def test_peaks_of_measured_programs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """``activation_bytes`` of measured rows, within what blocks are rounded by."""
    folder = Path(__file__).parents[1] / "measurements/h100-sxm/zoo"
    monkeypatch.syspath_prepend(folder.parents[2] / "benchmarks")
    zoo = pytest.importorskip("zoo")
    own = zoo.modules(folder)
    rows = [row for row in zoo.rows_of(folder, "models.csv") if row["model"] == name and row["mode"] == "eager"]
    assert rows
    for row in rows[-2:]:
        measured = float(row["activation_bytes"])
        found = float(rl.estimate(zoo.capture(row, own), "h100-sxm").memory.activations)
        assert abs(found - measured) <= max(0.002 * measured, 2**20), (name, row["inputs"], found / measured)


def test_copies_of_layouts_are_there_while_a_convolution_runs() -> None:
    """``ConvBackend::Cudnn`` on images whose channels come first: copies of image, weights and result."""
    conv = torch.nn.Conv2d(64, 128, 3, padding=1, dtype=torch.bfloat16, device="meta")
    image = torch.empty(4, 64, 32, 32, dtype=torch.bfloat16, device="meta")
    first, last = (
        rl.estimate(rl.from_torch(conv.to(memory_format=order), image.to(memory_format=order)), "h100-sxm").memory
        for order in (torch.contiguous_format, torch.channels_last)
    )
    read, weights, result = 2 * 4 * 64 * 32 * 32, 2 * 128 * 64 * 9, 2 * 4 * 128 * 32 * 32
    assert last.activations == result
    assert first.activations == result + read + weights + result


def test_memory_of_a_sweep_is_that_of_its_points() -> None:
    conv = torch.nn.Conv2d(64, 128, 3, dtype=torch.bfloat16, device="meta")
    image = torch.empty(4, 64, 32, 32, dtype=torch.bfloat16, device="meta")
    graph = rl.from_torch(conv, image, dynamic={"B": 0})
    sweep = rl.estimate(graph, ["h100-sxm", "mi300x"], batch=[1, 8]).memory.activations
    for at, chip in enumerate(("h100-sxm", "mi300x")):
        for column, batch in enumerate((1, 8)):
            assert sweep[at, column] == rl.estimate(graph, chip, batch=batch).memory.activations
    assert sweep[0, 1] > sweep[1, 1]  # cuDNN's copies


def test_a_largest_batch_counts_what_operators_take() -> None:
    conv = torch.nn.Conv2d(64, 128, 3, padding=1, dtype=torch.bfloat16, device="meta")
    image = torch.empty(4, 64, 32, 32, dtype=torch.bfloat16, device="meta")
    graph = rl.from_torch(conv, image, dynamic={"B": 0})
    most = rl.best_batch(graph, "h100-sxm", memory_limit="4 GB").largest
    needs = [rl.estimate(graph, "h100-sxm", batch=batch).memory.total for batch in (most, most + 1)]
    assert needs[0] <= 4e9 < needs[1]


@pytest.mark.parametrize(
    ("kind", "sizes", "dtype", "measured"),
    # Peaks of one call without gradients, less what was there before: H200, PyTorch 2.11, cuDNN 9.19.
    [
        ("LSTM", (512, 512, 1, 32, 200), "bfloat16", 69869568),
        ("LSTM", (512, 512, 2, 64, 128), "bfloat16", 103317504),
        ("LSTM", (256, 512, 1, 64, 128), "float32", 133956608),
        ("GRU", (512, 512, 1, 32, 200), "float32", 106889728),
        ("GRU", (256, 512, 1, 64, 128), "bfloat16", 63904768),
        ("RNN", (512, 512, 1, 32, 200), "bfloat16", 44105728),
    ],
)
def test_what_recurrent_layers_take(kind: str, sizes: tuple[int, ...], dtype: str, measured: int) -> None:
    width, hidden, layers, batch, steps = sizes
    options = {"device": "meta", "dtype": getattr(torch, dtype)}
    net = getattr(torch.nn, kind)(width, hidden, layers, batch_first=True, **options).eval()
    assert activations(net, torch.empty(batch, steps, width, **options)) == pytest.approx(measured, rel=0.03)


def test_memory_over_time_of_a_captured_step_counts_gradients_once() -> None:
    """Of a program that was seen running, gradients come and go with the backward."""
    net = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))

    def train(x: Any) -> Any:
        loss = net(x).sum()
        loss.backward()
        return loss

    graph = rl.from_torch(train, torch.zeros(32, 64))
    est = rl.estimate(graph, "h100-sxm", mode="graph")
    over = memory_over_time(est)
    assert sum(over.always.values()) + max(over.live) == pytest.approx(float(est.memory.total))
    assert min(over.always.values()) >= 0
