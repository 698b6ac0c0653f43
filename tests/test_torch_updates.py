"""A captured training step: gradients and what an optimizer keeps are in their own parts of memory."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

import roofline as rl

torch = pytest.importorskip("torch")
nn = torch.nn

#: 16 x 32 + 32 and 32 x 16 + 16 parameters.
PARAMETERS = 16 * 32 + 32 + 32 * 16 + 16
X = torch.empty(4, 16)


def net() -> Any:
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))


def step_of(
    module: Any, optimizer: Any, after: Callable[[], None] = lambda: None, **zero: bool
) -> Callable[[Any], Any]:
    def step(x: torch.Tensor) -> torch.Tensor:
        loss = module(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(**zero)
        after()
        return loss

    return step


def memory_of(step: Any, x: Any = X, **options: Any) -> dict[str, float]:
    graph = rl.from_torch(step, x, **options)
    return rl.estimate(graph, "h100-sxm", **({"B": 4} if "B" in graph.symbols else {})).memory.parts()


#: Optimizers and the numbers that they keep for a parameter: Adam's two moments (Kingma and Ba 2014), AMSGrad's third,
#: one of SGD with momentum, RMSprop and Adagrad. Each of the four tensors has a step count beside them, but for SGD's.
KEPT: list[tuple[str, dict[str, Any], int, int]] = [
    ("SGD", {}, 0, 0), ("SGD", {"momentum": 0.9}, 1, 0), ("AdamW", {}, 2, 4), ("AdamW", {"foreach": False}, 2, 4),
    ("AdamW", {"fused": True}, 2, 4), ("Adam", {"amsgrad": True}, 3, 4), ("RMSprop", {}, 1, 4), ("Adagrad", {}, 1, 4),
]  # fmt: skip


@pytest.mark.parametrize("zero", [{}, {"set_to_none": False}])
@pytest.mark.parametrize(("kind", "options", "kept", "counts"), KEPT)
def test_states_and_gradients_are_no_activations(
    kind: str, options: dict[str, Any], kept: int, counts: int, zero: dict[str, bool]
) -> None:
    module = net()
    optimizer = getattr(torch.optim, kind)(module.parameters(), 0.1, **options)
    held = {key: dict(value) for key, value in optimizer.state.items()}
    parts = memory_of(step_of(module, optimizer, **zero))
    assert parts["optimizer"] == 4 * (kept * PARAMETERS + counts)
    assert parts["gradients"] == 4 * PARAMETERS
    assert parts["weights"] == pytest.approx(4 * PARAMETERS, abs=16)
    assert optimizer.state == held, "the first step of all makes states, and a capture leaves none"


def test_a_fused_optimizer_moves_each_tensor_once() -> None:
    module = net()
    graph = rl.from_torch(step_of(module, torch.optim.AdamW(module.parameters(), fused=True)), X)
    row = next(row for row in rl.count(graph).rows if row.kernel.name.startswith("fused_adamw"))
    assert float(row.bytes) == pytest.approx(4 * 7 * PARAMETERS, abs=64)  # four in, three out; four step counts


def test_lists_of_tensors_are_one_kernel() -> None:
    module, other = net(), net()
    together = rl.from_torch(step_of(module, torch.optim.SGD(module.parameters(), 0.1)), X)
    apart = rl.from_torch(step_of(other, torch.optim.SGD(other.parameters(), 0.1, foreach=False)), X)
    assert rl.count(apart).launches - rl.count(together).launches == 3  # four tensors in one call


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_step_in_16_bits_with_a_symbolic_batch(device: str) -> None:
    module = net().bfloat16().to(device)
    optimizer = torch.optim.AdamW(module.parameters())
    x = torch.empty(4, 16, dtype=torch.bfloat16, device=device)
    parts = memory_of(step_of(module, optimizer), x, dynamic={"B": 0})
    assert (parts["gradients"], parts["optimizer"]) == (2 * PARAMETERS, 4 * PARAMETERS + 16)


def test_an_average_of_the_weights_is_written_where_it_lies() -> None:
    module = net()
    average = copy.deepcopy(module).requires_grad_(False)
    optimizer = torch.optim.AdamW(module.parameters(), fused=True)

    @torch.no_grad()
    def after() -> None:
        for kept, now in zip(average.parameters(), module.parameters(), strict=True):
            kept.lerp_(now, 0.01)

    with_average, without = memory_of(step_of(module, optimizer, after)), memory_of(step_of(module, optimizer))
    assert with_average["weights"] - without["weights"] == 4 * PARAMETERS
    assert with_average["activations"] == without["activations"]


def test_accumulated_and_clipped_gradients_are_stored_once() -> None:
    module = net()
    optimizer = torch.optim.AdamW(module.parameters())

    def step(x: torch.Tensor) -> None:
        for _ in range(3):
            module(x).square().mean().backward()
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    parts = memory_of(step)
    assert (parts["gradients"], parts["optimizer"]) == (4 * PARAMETERS, 8 * PARAMETERS + 16)


def test_a_gradient_scaler() -> None:
    """Its unscaling is one kernel over all gradients, which stay where they are; steps are taken as finite."""
    module = net()
    optimizer = torch.optim.AdamW(module.parameters(), fused=False)

    def step(x: torch.Tensor) -> None:
        scaler = torch.amp.GradScaler("cuda")
        with torch.autocast("cuda", dtype=torch.float16):
            loss = module(x).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    graph = rl.from_torch(step, X)
    assert rl.estimate(graph, "h100-sxm").memory.parts()["gradients"] == 4 * PARAMETERS
    unscale = next(r for r in rl.count(graph).rows if r.kernel.name.startswith("amp_foreach"))
    assert float(unscale.bytes) == pytest.approx(2 * 4 * PARAMETERS, abs=16)


def test_a_backward_alone_has_gradients() -> None:
    graph = rl.from_torch(net(), X, backward=True)
    assert [weight for weight, _ in graph.info.training.gradients] == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert rl.estimate(graph, "h100-sxm").memory.parts()["gradients"] == 4 * PARAMETERS
    assert graph.info.phase == "train"
    assert graph.nodes[graph.backward_start].scope.startswith("backward")
    step = rl.passes.optimizer(graph, "adamw")
    assert rl.estimate(step, "h100-sxm").memory.parts()["optimizer"] == 8 * PARAMETERS
    with pytest.raises(rl.errors.UsageError, match="has a backward already"):
        rl.passes.backward(graph)
