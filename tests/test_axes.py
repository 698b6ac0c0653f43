"""Axes: what has its size for the same reason, held against models built with the other sizes."""

from __future__ import annotations

import pytest

import roofline as rl
from roofline.passes.parallel.axes import Atom, Axes


def same_program(one: rl.Graph, other: rl.Graph) -> None:
    """Equal in every tensor and node."""
    assert dict(one.tensors) == dict(other.tensors)
    assert one.nodes == other.nodes


def atoms_at(axes: Axes, ending: str, axis: int, which: int = 0) -> list[Atom]:
    """One atom of an axis of all tensors whose names end so."""
    found = [axes.atoms(name, axis)[which] for name in axes.graph.tensors if name.endswith(ending)]
    assert found
    return list(dict.fromkeys(found))


@pytest.mark.parametrize("phase", ["forward", "prefill", "decode"])
def test_heads_and_inner_sizes_are_what_the_model_would_have_been(phase: str) -> None:
    axes = Axes(rl.model("llama-3-8b", phase, layers=3))
    new = dict.fromkeys(atoms_at(axes, "attn.k_heads", 1), 6) | dict.fromkeys(
        atoms_at(axes, "mlp.down.weight", 1), 9000
    )
    want = rl.model("llama-3-8b", phase, layers=3, heads=24, kv_heads=6, head_dim=128, intermediate=9000)
    same_program(axes.resize(new), want)


@pytest.mark.parametrize(
    ("name", "ending", "axis", "sizes"),
    [
        ("llama-3-8b", "embed", 2, {"hidden": 2048, "head_dim": 128}),
        ("gpt2", "embed", 2, {"hidden": 384, "head_dim": 64, "intermediate": 3072}),
        ("opt-1.3b", "attn.q_heads", 1, {"heads": 8, "head_dim": 64}),
        ("gemma-2-2b", "mlp.down.weight", 1, {"intermediate": 1000}),
        ("mixtral-8x7b", "moe.down.weight", 2, {"expert_intermediate": 1000}),
        ("deepseek-v3", "moe.shared.down.weight", 1, {"shared_intermediate": 256}),
        ("deepseek-v3", "attn.q_heads", 1, {"heads": 12}),
        ("deepseek-v3", "attn.kv_latent", 2, {"kv_lora": 128}),
        ("gemma-2-2b", "embed.weight", 0, {"vocab": 1000}),
        ("gpt2", "embed.weight", 0, {"vocab": 1000}),
    ],
)
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_one_size_of_a_decoder(name: str, ending: str, axis: int, sizes: dict[str, int], phase: str) -> None:
    layers = {"layers": 4 if name == "deepseek-v3" else 2}
    axes = Axes(rl.model(name, phase, **layers))
    wanted = next(iter(sizes.values()))
    found = axes.resize(dict.fromkeys(atoms_at(axes, ending, axis), wanted))
    same_program(found, rl.model(name, phase, **layers, **sizes))


@pytest.mark.parametrize("name", ["resnet50", "resnext50-32x4d", "wide-resnet50-2"])
def test_channels_of_a_residual_network_are_coupled_by_stage(name: str) -> None:
    """One atom for all that a stage adds up; halving every channel is the network of half the width."""
    axes = Axes(rl.model(name))
    for stage, blocks in ((1, 3), (2, 4), (3, 6), (4, 3)):
        sums = [axes.atoms(f"stage{stage}.{block}.residual", 1) for block in range(blocks)]
        assert len(set(sums)) == 1 == len(sums[0])
        assert axes.atoms(f"stage{stage}.0.downsample.weight", 0) == sums[0]
    # The innermost atom: of a grouped convolution the channels of a group, not the groups.
    kernels = [
        name for name, tensor in axes.graph.tensors.items() if tensor.kind == "weight" and len(tensor.shape) == 4
    ]
    halved = {axes.atoms(kernel, 0)[-1] for kernel in kernels}
    same_program(axes.resize({atom: int(str(atom.size)) // 2 for atom in halved}), rl.model(name, width=32))


def test_depthwise_channels_are_their_own_groups() -> None:
    axes = Axes(rl.model("mobilenet-v2"))
    (atom,) = axes.atoms("stage3.1.depthwise", 1)
    after = axes.resize({atom: 96})
    node = next(node for node in after.nodes if node.name == "stage3.1.depthwise")
    assert dict(node.attrs)["groups"] == 96
    assert after.tensors["stage3.1.depthwise.weight"].shape == (96, 1, 3, 3)
    assert after.tensors["stage3.1.expand.weight"].shape == (96, 32, 1, 1)
    assert after.tensors["stage3.1.project.weight"].shape == (32, 96, 1, 1)


@pytest.mark.parametrize("shipped", [name for name in rl.models() if "405b" not in name and "235b" not in name])
def test_every_shipped_model_is_explained(shipped: str) -> None:
    """Nothing is frozen but pixels, windows of kernels and the number of experts chosen."""
    axes = Axes(rl.model(shipped))
    frozen = {atom.frozen.split()[0] for name in axes.graph.tensors for span in axes.spans(name) for atom in span.atoms
              if atom.frozen and "symbolic" not in atom.frozen}  # fmt: skip
    assert frozen <= {"conv2d", "maxpool2d", "avgpool2d", "conv_transpose2d", "topk", "slice"} | {
        name for name in frozen if name.endswith(("crop", "join"))
    }
    assert all(span.at({}) == size for name, tensor in axes.graph.tensors.items()
               for span, size in zip(axes.spans(name), tensor.shape, strict=True))  # fmt: skip


def test_structure_of_a_fused_projection() -> None:
    axes = Axes(rl.model("llama-3-8b", layers=1))
    span = axes.spans("layers.0.attn.qkv.weight")[0]
    assert (span.kind, [part.size for part in span.parts]) == ("sum", [4096, 1024, 1024])
    query = span.parts[0]
    assert [part.size for part in query.parts] == [8, 4, 128]
    assert axes.atoms("layers.0.mlp.gate_up.weight", 0) == axes.atoms("layers.0.mlp.down.weight", 1)


def test_symbols_stay() -> None:
    axes = Axes(rl.model("gpt2", layers=1))
    (batch,) = axes.atoms("embed", 0)
    with pytest.raises(rl.errors.UsageError, match="B is symbolic"):
        axes.resize({batch: 4})


def test_an_operator_without_a_rule_freezes_and_says_where() -> None:
    b = rl.ops.Builder("odd", "fp32")
    x = b.op("linear", b.input("x", (rl.ops.symbol("B"), 64)), b.weight("w", (32, 64)), name="up")
    y = b.op("unknown", x, name="mystery", shape=(rl.ops.symbol("B"), 16), what="mystery")
    axes = Axes(b.graph([y]))
    (atom,) = axes.atoms("up", 1)
    with pytest.raises(rl.errors.UsageError, match="mystery"):
        axes.resize({atom: 16})
    (free,) = axes.atoms("x", 1)
    assert axes.resize({free: 8}).tensors["w"].shape == (32, 8)


def test_a_size_that_the_operators_contradict_names_node_and_axis() -> None:
    b = rl.ops.Builder("rest", "fp32")
    x = b.input("x", (4, 48))
    y = b.op("view", x, name="folded", shape=(8, 24))
    axes = Axes(b.graph([b.op("relu", y)]))
    sizes = {atom.size for atom in axes.atoms("x", 1)}
    assert sizes == {2, 24}
    with pytest.raises(rl.errors.UsageError, match="allowed: at least 1"):
        axes.resize({axes.atoms("x", 1)[-1]: 0})
    with pytest.raises(rl.errors.UsageError, match="another graph"):
        axes.resize({Atom(999, 24, "z[0]"): 12})


def test_indivisible_views_freeze() -> None:
    b = rl.ops.Builder("odd view", "fp32")
    x = b.input("x", (6, 10))
    axes = Axes(b.graph([b.op("view", x, name="refolded", shape=(4, 15))]))
    assert all("refolded" in atom.frozen for at in (0, 1) for atom in axes.atoms("x", at))


def test_nothing_to_resize_is_the_graph_itself() -> None:
    graph = rl.model("gpt2", layers=1)
    axes = Axes(graph)
    (atom,) = axes.atoms("embed", 2)
    assert axes.resize({atom: 768}) is graph


@pytest.mark.parametrize(
    ("name", "phase", "sizes"),
    [
        ("llama-3-8b", "prefill", {"B": 1, "S": 8}),
        ("llama-3-8b", "prefill", {"B": 32, "S": 32}),
        ("llama-3-8b", "prefill", {"B": 2, "S": 4096}),
        ("gpt2", "prefill", {"B": 1, "S": 768}),
        ("mixtral-8x7b", "prefill", {"B": 32, "S": 128}),
        ("deepseek-v3", "decode", {"B": 128, "C": 128}),
        ("deepseek-v3", "prefill", {"B": 1, "S": 128}),
        ("bert-base-uncased", "forward", {"B": 12, "S": 12}),
    ],
)
def test_a_length_that_happens_to_be_a_width_stays_a_length(name: str, phase: str, sizes: dict[str, int]) -> None:
    """Numbers for batch and length come after pruning or before it."""
    graph = rl.model(name, phase, layers=4)
    symbolic, bound = Axes(graph), Axes(graph.bind(**sizes))
    for ending, axis in (("attn.q_heads", 1), ("down.weight", -1), ("embed", 2)):
        after = [
            axes.resize({atom: int(str(atom.size)) // 2 for atom in atoms_at(axes, ending, axis)})
            for axes in (symbolic, bound)
        ]
        same_program(after[0].bind(**sizes), after[1])


def recorded(normed: bool) -> rl.Graph:
    """A program recorded to read a transposed operand, two axes joined, and what a softmax copies."""
    b = rl.ops.Builder("recorded", "bf16")
    hidden = b.op("linear", b.input("x", (64, 512)), b.weight("up", (2048, 512)), name="hidden")
    apart = b.op("add", hidden, hidden, name="apart", access=("strided", 2, 2048))
    joined = b.op("mul", apart, apart, name="joined", access=("mixed", 2, 64 * 2048))
    shares = b.op("softmax", joined, name="shares", copied=(("strided", 2, 2048), None)) if normed else joined
    return b.graph([b.op("linear", shares, b.weight("down", (512, 2048)), name="out")])


def test_what_a_kernel_reads_apart_has_the_size_that_is_left() -> None:
    axes = Axes(recorded(normed=True))
    small = {node.name: dict(node.attrs) for node in axes.resize({atoms_at(axes, "down", 1)[0]: 96}).nodes}
    assert small["apart"]["access"] == ("strided", 2, 96)
    assert small["joined"]["access"] == ("mixed", 2, 64 * 96)
    assert small["shares"]["copied"] == (("strided", 2, 96), None)
    halves = {node.name: dict(node.attrs) for node in rl.passes.shard(recorded(normed=False), tp=2).nodes}
    assert halves["apart"]["access"] == ("strided", 2, 1024)
