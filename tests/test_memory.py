"""Memory by hand: what is stored, and what is alive at once."""

from __future__ import annotations

import numpy as np
import pytest

import roofline as rl
from roofline.counting.memory import RESERVE, WORKSPACE, fits, footprint_text, memory
from roofline.ir.graph import Lifetimes

B = rl.ops.symbol("B")
N = 1024
VECTOR = 4 * N


def activations(b: rl.ops.Builder, *outputs: str) -> float:
    return memory(b.graph(list(outputs)), {}).activations


def start() -> tuple[rl.ops.Builder, str]:
    b = rl.ops.Builder("g", "fp32")
    return b, b.input("x", (N,))


def test_a_chain_holds_two_vectors_at_a_time() -> None:
    b, x = start()
    for _ in range(6):
        x = b.op("relu", x)
    assert activations(b, x) == 2 * VECTOR  # what is read and what is written; the input is the caller's


def test_a_residual_stays_alive_until_it_is_added() -> None:
    b, x = start()
    kept = b.op("relu", x)
    y = b.op("exp", b.op("tanh", kept))
    y = b.op("add", kept, y)
    assert activations(b, y) == 3 * VECTOR  # kept, and the two ends of the step beside it


def test_a_residual_of_the_input_costs_nothing_more() -> None:
    b, x = start()
    y = b.op("add", x, b.op("exp", b.op("tanh", x)))
    assert activations(b, y) == 2 * VECTOR


def test_a_view_keeps_its_base_alive() -> None:
    b, x = start()
    base = b.op("relu", x)
    view = b.op("slice", base, shape=(1,), name="first")
    y = x
    for _ in range(3):
        y = b.op("exp", y)
    y = b.op("mul", y, view)
    assert activations(b, y) == 3 * VECTOR  # the whole base, not the one element seen


def test_a_view_takes_no_memory_itself() -> None:
    b, x = start()
    y = b.op("view", b.op("relu", x), shape=(N // 2, 2))
    assert activations(b, y) == VECTOR


def test_what_stays_inside_a_kernel_takes_nothing() -> None:
    b, x = start()
    with b.kernel("fused"):
        y = b.op("exp", b.op("tanh", b.op("relu", x)))
    assert activations(b, y) == VECTOR


def test_a_kernel_frees_nothing_before_it_ends() -> None:
    b, x = start()
    first = b.op("relu", x)
    with b.kernel("fused"):
        second = b.op("exp", first)
        third = b.op("tanh", second)
    y = b.op("add", second, third)
    # In the kernel: first is read, second and third are written; first goes when the kernel ends.
    assert activations(b, y) == 3 * VECTOR


def test_outputs_live_to_the_end() -> None:
    b, x = start()
    kept = b.op("relu", x)
    y = x
    for _ in range(3):
        y = b.op("exp", y)
    assert activations(b, y) == 2 * VECTOR
    assert activations(b, kept, y) == 3 * VECTOR


def test_scores_of_unfused_attention_are_alive_and_of_fused_not() -> None:
    def graph(kind: str) -> rl.Graph:
        return rl.model("gpt2", phase="forward", layers=1, attention=kind, dtype="bf16")

    naive, flash = (memory(graph(kind), {"B": 1, "S": 4096}).activations for kind in ("naive", "sdpa"))
    assert naive - flash > 2 * 12 * 4096 * 4096  # at least one matrix of scores, 12 heads in 2 bytes


def test_an_in_place_cache_is_not_copied() -> None:
    b = rl.ops.Builder("g", "bf16")
    cache, new = b.cache("k", (4, 8, 1000, 128)), b.input("new", (4, 8, 1, 128))
    need = memory(b.graph([b.op("cache_update", cache, new)]), {})
    assert (need.kv_cache, need.activations) == (2 * 4 * 8 * 1000 * 128, 0)


def test_the_cache_of_llama_by_hand_and_once() -> None:
    need = memory(rl.model("llama-3-8b", phase="decode"), {"B": 16, "C": 2048})
    # 32 layers, keys and values, 8 key-value heads (not 32 query heads) of 128, 2 bytes.
    assert need.kv_cache == 16 * 2048 * (32 * 2 * 8 * 128 * 2) == 4 * 2**30
    assert need.activations < 0.01 * need.kv_cache, "the cache is not an activation besides"


def test_weights_hold_the_embedding_and_the_head() -> None:
    graph = rl.model("llama-3-8b", phase="decode")
    assert graph.parameters == 8_030_261_248  # the published count, embedding and head among them
    assert memory(graph, {"B": 1, "C": 1}).weights == 2 * 8_030_261_248


def test_a_tied_table_is_stored_once() -> None:
    graph = rl.model("gpt2", dtype="fp32")
    assert memory(graph, {"B": 1, "S": 1}).weights == 4 * 124_439_808


def test_a_sliding_window_caps_the_cache() -> None:
    graph = rl.model("mistral-7b", phase="decode", window=4096)
    at = [memory(graph, {"B": 1, "C": context}).kv_cache for context in (4096, 8192, 100_000)]
    assert at == [4096 * 32 * 2 * 8 * 128 * 2] * 3


def test_a_latent_cache_holds_one_latent_a_token() -> None:
    graph = rl.model("deepseek-v3", phase="decode", layers=4)
    need = memory(graph, {"B": 2, "C": 1000})
    assert need.kv_cache == pytest.approx(2 * 1000 * 4 * (512 + 64) * 2)


def test_parts_add_up_and_arrays_have_the_shape_of_their_sizes() -> None:
    graph = rl.model("gpt2", phase="decode", layers=2)
    need = memory(graph, {"B": np.arange(1.0, 5.0).reshape(-1, 1), "C": np.array([10.0, 100.0])})
    assert need.total.shape == (4, 2)
    assert (
        need.total[3, 1]
        == memory(graph, {"B": 4, "C": 100}).total
        == sum(memory(graph, {"B": 4, "C": 100}).parts().values())
    )
    assert list(need.parts()) == ["weights", "kv_cache", "inputs", "activations", "workspace", "reserve"]


def test_reserve_and_workspace_are_stated() -> None:
    b, x = start()
    need = memory(b.graph([b.op("relu", x)]), {})
    assert (need.reserve, need.workspace) == (RESERVE, WORKSPACE) == (2**30, 2**25)
    assert memory(b.graph(["relu"]), {}, reserve=0).total == 2 * VECTOR + WORKSPACE
    assert footprint_text(need).endswith("workspace 0.03, reserve 1.00 GiB")


def test_fit_is_against_the_capacity() -> None:
    chip = rl.chip("h100-sxm")
    graph = rl.model("llama-3-8b", phase="decode")
    assert fits(memory(graph, {"B": 1, "C": 2048}), chip)
    assert not fits(memory(graph, {"B": 1000, "C": 2048}), chip)


def layer(b: rl.ops.Builder, x: str) -> str:
    with b.scope("layer"):
        y = b.op("exp", x)
        with b.scope("inner"):
            y = b.op("tanh", b.op("relu", y))
        return b.op("sigmoid", y)


def test_what_a_module_is_given_lives_until_it_returns() -> None:
    b, x = start()
    graph = b.graph([layer(b, b.op("relu", x))])
    # While the inner module's last operator runs: what the layer and the inner one were given, and both ends of it.
    assert memory(graph, {}).activations == 4 * VECTOR


def test_what_a_compiler_plans_is_free_after_its_last_use() -> None:
    b, x = start()
    graph = b.graph([layer(b, b.op("relu", x))])
    planned = graph.with_info(lifetimes=Lifetimes(planned=True))
    assert memory(planned, {}).activations == 2 * VECTOR
    assert memory(rl.passes.fuse(graph), {}).activations == VECTOR
    assert memory(rl.passes.fuse(rl.passes.fuse(graph), "eager"), {}).activations == 4 * VECTOR


def test_a_module_that_is_called_twice_holds_what_each_call_is_given() -> None:
    b, x = start()
    y = layer(b, b.op("relu", x))
    y = b.op("exp", y)
    assert memory(b.graph([layer(b, y)]), {}).activations == 4 * VECTOR


@pytest.mark.parametrize("batch", [1, 4, 64, 256])
def test_peaks_of_measured_encoders(batch: int) -> None:
    """``activation_bytes`` of bert-large-uncased in measurements/h100-sxm/models.csv, at 512 and 128 tokens."""
    length = 128 if batch > 4 else 512
    hidden = 2 * batch * length * 1024
    # Both ends of the MLP's activation at four times the width; what the layer, its output and the encoder were given.
    found = rl.estimate("bert-large-uncased", "h100-sxm", dtype="bf16", batch=batch, seq=length).memory.activations
    assert found == 11 * hidden == {1: 11534336, 4: 46137344, 64: 184549376, 256: 738197504}[batch]
