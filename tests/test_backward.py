"""The backward of programs: FLOPs, kernels, what is kept, what is computed again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import roofline as rl
from roofline.passes.training.saved import saved_tensors

FAMILIES = {
    "gpt2": {"B": 2, "S": 64},
    "llama-3.2-1b": {"B": 2, "S": 64},
    "mixtral-8x7b": {"B": 2, "S": 64},
    "gemma-2-2b": {"B": 2, "S": 64},
    "deepseek-v2-lite": {"B": 2, "S": 64},
    "bert-base-uncased": {"B": 2, "S": 64},
    "vit-b-16": {"B": 2},
    "resnet18": {"B": 2},
    "convnext-tiny": {"B": 2},
    "mobilenet-v2": {"B": 2},
    "vgg11": {"B": 2},
    "unet": {"B": 1},
}
WITH_ATTENTION = {name for name, sizes in FAMILIES.items() if "S" in sizes} | {"vit-b-16"}


def linear(b: rl.ops.Builder, x: str, out: int, name: str, bias: bool = False) -> str:
    weights = [b.weight(f"{name}.w", (out, b.shape(x)[-1]))]
    return b.op("linear", x, *weights, *([b.weight(f"{name}.b", (out,))] if bias else []), name=name)


def one(op: str, *shapes: tuple[Any, ...], **attrs: Any) -> rl.Graph:
    """An operator on activations, so that all its inputs want a gradient."""
    b = rl.ops.Builder(op, "fp32")
    made = []
    for at, shape in enumerate(shapes):
        x, w = b.input(f"x{at}", shape), b.weight(f"w{at}", shape)
        made.append(b.op("mul", x, w, name=f"in{at}"))
    return b.graph([b.op(op, *made, name="y", **attrs)])


def test_a_linear_layer_runs_two_products_and_sums_its_bias() -> None:
    b = rl.ops.Builder("layer", "bf16")
    x = b.op("relu", linear(b, b.input("x", (8, 16)), 32, "one"), name="act")
    step = rl.passes.backward(b.graph([linear(b, x, 64, "two", bias=True)]))
    made = [(node.op, node.name, step.tensors[node.outputs[0]].shape) for node in step.nodes[3:]
            if node.op not in ("view", "permute")]  # fmt: skip
    assert made == [
        ("matmul", "two.grad_x", (8, 32)),
        ("matmul", "two.grad_w", (64, 32)),
        ("reduce", "two.grad_b", (64,)),
        ("elementwise", "act.grad", (8, 32)),
        ("matmul", "one.grad_w", (32, 16)),
    ]
    assert dict(step.info.training.gradients) == {"one.w": "one.grad_w", "two.w": "two.grad_w", "two.b": "two.grad_b"}
    assert set(step.outputs) == {"two", "one.grad_w", "two.grad_w", "two.grad_b"}


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("phase", ["forward", "train"])
def test_every_weight_gets_a_gradient_of_its_shape(name: str, phase: str) -> None:
    graph = rl.model(name, phase=phase)
    step = rl.passes.backward(graph)
    read = {tensor for node in graph.nodes for tensor in node.inputs}
    weights = {n: t for n, t in graph.tensors.items() if t.kind == "weight" and n in read}
    found = {weight: step.tensors[gradient] for weight, gradient in step.info.training.gradients}
    # A bias that only shifts the choice of experts, and learned scalars of the router, see no gradient.
    assert weights.keys() - found.keys() == {n for n in weights if n.endswith("score_bias")}
    for name_, gradient in found.items():
        assert (gradient.shape, gradient.dtype) == (weights[name_].shape, weights[name_].dtype)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_forward_is_left_as_it_is(name: str) -> None:
    graph = rl.model(name, phase="train")
    step = rl.passes.backward(graph)
    assert step.nodes[: len(graph.nodes)] == graph.nodes
    assert step.outputs[: len(graph.outputs)] == graph.outputs


@pytest.mark.parametrize("name", FAMILIES)
def test_flops_are_three_times_the_forward_less_what_leads_nowhere(name: str) -> None:
    """With written-out attention: two products for one, but none to images, tables of cosines and the like."""
    graph = rl.model(name, phase="forward", **({"attention": "naive"} if name in WITH_ATTENTION else {}))
    step, sizes = rl.passes.backward(graph), FAMILIES[name]
    total, forward = rl.count(step, **sizes).flops, rl.count(graph, **sizes).flops
    wanted = {n for n in graph.tensors if any(n == w for w, _ in step.info.training.gradients)}
    for node in graph.nodes:
        wanted.update(node.outputs if wanted.intersection(node.inputs) else ())
    first = _dead_products(graph, wanted, sizes)
    assert total == 3 * forward - first


def _dead_products(graph: rl.Graph, wanted: set[str], sizes: dict[str, int]) -> int:
    """FLOPs of contractions whose first operand needs no gradient."""
    total = 0
    for node in graph.nodes:
        if node.op in ("linear", "conv2d") and node.inputs[0] not in wanted:
            names = (*node.inputs, *node.outputs)
            given = {n: replace(graph.tensors[n], kind="input" if n in node.inputs else "activation") for n in names}
            total += rl.count(rl.Graph("one", given, (node,), node.outputs), **sizes).flops
    return total


def test_fused_attention_is_one_kernel_of_five_products() -> None:
    """Dao et al. 2022, arXiv 2205.14135, algorithm 4: the scores once more, then four gradients."""
    graph = rl.passes.drop_mask(rl.model("gpt2", phase="forward", layers=1))
    step = rl.passes.backward(graph)
    kernel = [node for node in step.nodes if node.label == "layers.0.attn.sdpa.grad"]
    products = [node.op for node in kernel if rl.ops.OPS[node.op].kind == "attention"]
    assert sorted(products) == ["attention_keys_grad"] * 2 + ["attention_scores"] * 2 + ["attention_values"]
    counted = {row.kernel.name: row for row in rl.count(step, B=1, S=128).rows}
    assert counted["layers.0.attn.sdpa.grad"].flops == 2.5 * counted["layers.0.attn.sdpa"].flops


def test_parts_that_make_up_a_tensor_are_joined_once() -> None:
    step = rl.passes.backward(rl.model("gpt2", phase="forward", layers=1))
    joined = [node for node in step.nodes if node.op == "cat"]
    assert len(joined) == 1
    assert step.tensors[joined[0].outputs[0]].shape[-1] == 3 * 768


def test_a_part_alone_is_placed_among_zeros() -> None:
    b = rl.ops.Builder("part", "fp32")
    y = b.op("slice", linear(b, b.input("x", (4, 8)), 8, "l"), name="part", shape=(4, 2))
    step = rl.passes.backward(b.graph([y]))
    assert [node.op for node in step.nodes if node.op in ("fill", "put", "cat")] == ["fill", "put"]


def test_readers_of_one_tensor_add_their_gradients() -> None:
    b = rl.ops.Builder("two readers", "fp32")
    x = linear(b, b.input("x", (4, 8)), 8, "l")
    y = b.op("add", b.op("silu", x, name="a"), b.op("tanh", x, name="b"), name="y")
    step = rl.passes.backward(b.graph([y]))
    total = next(node for node in step.nodes if node.name == "l.grad_total")
    assert total.op == "add"
    assert set(total.inputs) == {"a.grad", "b.grad"}


def test_a_broadcast_operand_gets_the_sum_over_its_copies() -> None:
    b = rl.ops.Builder("broadcast", "fp32")
    step = rl.passes.backward(
        b.graph([b.op("mul", b.input("x", (rl.ops.symbol("B"), 4, 8)), b.weight("w", (4, 1)), name="y")])
    )
    assert step.tensors[dict(step.info.training.gradients)["w"]].shape == (4, 1)
    assert {"reduce", "mul"} <= {node.op for node in step.nodes}


def test_gradients_return_in_the_format_of_what_they_are_of() -> None:
    b = rl.ops.Builder("mixed", "fp32")
    x = b.op("cast", linear(b, b.input("x", (4, 8)), 8, "l"), name="half", dtype="bf16")
    step = rl.passes.backward(b.graph([b.op("square", x, name="y", dtype="bf16")]))
    assert step.tensors["y.grad"].dtype == "bf16"
    assert step.tensors[dict(step.info.training.gradients)["l.w"]].dtype == "fp32"
    assert any(node.op == "cast" and step.tensors[node.outputs[0]].dtype == "fp32" for node in step.nodes[3:])


def test_gradients_in_a_format_of_their_own() -> None:
    step = rl.passes.backward(rl.model("gpt2", phase="forward", layers=1, dtype="bf16"), gradients="fp32")
    assert {step.tensors[name].dtype for _, name in step.info.training.gradients} == {"fp32"}
    assert step.tensors["layers.0.mlp.up.grad_x"].dtype == "bf16"


def test_sparse_weights_are_trained_dense() -> None:
    plain = rl.model("gpt2", phase="train", layers=1)
    sparse, dense = (rl.passes.backward(graph) for graph in (rl.passes.prune(plain, sparsity="2:4"), plain))
    assert len(sparse.info.training.gradients) == len(dense.info.training.gradients)
    assert rl.count(sparse, B=1, S=64).flops == rl.count(dense, B=1, S=64).flops
    assert not any("2:4" in sparse.tensors[gradient].dtype for _, gradient in sparse.info.training.gradients)


def test_weights_that_are_only_stored_stay_as_they_are() -> None:
    """As in QLoRA (Dettmers et al. 2023): gradients pass through narrow weights and are not of them."""
    step = rl.passes.backward(rl.passes.quantize(rl.model("gpt2", phase="train", layers=2), weights="nf4"))
    assert any("nf4 is a storage format" in note for note in step.info.notes)
    trained = {weight for weight, _ in step.info.training.gradients}
    assert "layers.0.attn.norm.weight" in trained
    assert "layers.0.mlp.up.weight" not in trained


def test_views_of_weights_keep_their_format_whatever_the_gradients() -> None:
    step = rl.passes.backward(rl.model("mixtral-8x7b", phase="train", layers=1), gradients="fp32")
    products = [row for row in rl.count(step, B=1, S=128).rows if row.kernel.main.op.startswith("expert_linear")]
    assert len(products) == 6
    assert {dtype for row in products for dtype in row.flops_by} == {"bf16"}


def test_a_loss_starts_from_one_and_other_outputs_from_what_is_handed_in() -> None:
    train = rl.passes.backward(rl.model("gpt2", phase="train", layers=1))
    assert not [t for t in train.tensors.values() if t.kind == "input" and "grad" in t.name]
    forward = rl.passes.backward(rl.model("gpt2", phase="forward", layers=1))
    given = [t for t in forward.tensors.values() if t.kind == "input" and "grad" in t.name]
    assert [t.shape for t in given] == [forward.tensors["head"].shape]


def test_inputs_get_a_gradient_when_asked() -> None:
    b = rl.ops.Builder("stage", "bf16")
    graph = b.graph([linear(b, b.input("x", (8, 16)), 16, "l")])
    assert rl.count(rl.passes.backward(graph)).flops == 2 * rl.count(graph).flops
    assert rl.count(rl.passes.backward(graph, wrt=["x"])).flops == 3 * rl.count(graph).flops


def test_what_is_fused_to_a_product_leaves_it_in_the_backward() -> None:
    b = rl.ops.Builder("epilogue", "bf16")
    x = linear(b, b.input("x", (8, 16)), 16, "first")
    with b.kernel("fused"):
        y = b.op("gelu", linear(b, x, 32, "up"), name="act")
    step = rl.passes.backward(b.graph([y]))
    labels = {node.name: node.label for node in step.nodes}
    assert labels["act.grad"] == "act.grad"
    assert labels["up.grad_x"] != labels["up.grad_w"]
    assert labels["up.again"] == "up.again"  # what the kernel kept to itself


def test_a_loop_runs_its_backward_as_often() -> None:
    b = rl.ops.Builder("loop", "bf16")
    with b.repeat(5):
        y = linear(b, b.input("x", (8, 16)), 16, "step")
    graph = b.graph([y])
    step = rl.passes.backward(graph, wrt=["x"])
    assert {node.count for node in step.nodes if node.op == "matmul"} == {5}
    assert rl.count(step).flops == 3 * rl.count(graph).flops


SAMPLES: dict[str, Callable[[], rl.Graph]] = {
    "conv1d": lambda: one("conv1d", (2, 4, 16), (8, 4, 3), padding=1),
    "conv3d": lambda: one("conv3d", (2, 4, 8, 8, 8), (8, 4, 3, 3, 3), padding=1),
    "conv2d": lambda: one("conv2d", (2, 4, 8, 8), (8, 2, 3, 3), (8,), padding=1, groups=2),
    "conv_transpose2d": lambda: one("conv_transpose2d", (2, 4, 8, 8), (4, 8, 2, 2), (8,), stride=2),
    "bmm": lambda: one("bmm", (2, 4, 8), (2, 8, 3)),
    "matmul": lambda: one("matmul", (2, 4, 8), (8, 3)),
    "expert_linear": lambda: one("expert_linear", (16, 8), (4, 12, 8), (4, 12), top_k=2),
    "cross_entropy": lambda: _with_labels(),
    "layernorm": lambda: one("layernorm", (4, 8), (8,), (8,)),
    "groupnorm": lambda: one("groupnorm", (2, 8, 4, 4), (8,), (8,)),
    "batchnorm_train": lambda: one("batchnorm_train", (2, 8, 4, 4), (8,), (8,)),
    "softmax": lambda: one("softmax", (4, 8)),
    "div": lambda: one("div", (4, 8), (8,)),
    "sub": lambda: one("sub", (4, 8), (4, 8)),
    "pow": lambda: one("pow", (4, 8)),
    "elementwise": lambda: one("elementwise", (4, 8), (4, 8), flops=3),
    "maximum": lambda: one("maximum", (4, 8), (4, 8)),
    "mean": lambda: one("mean", (4, 8)),
    "sum": lambda: one("sum", (4, 8)),
    "reduce": lambda: one("reduce", (4, 8, 2), axes=(0, 2)),
    "cat": lambda: one("cat", (4, 8), (4, 2), axis=-1),
    "expand": lambda: one("expand", (4, 1), shape=(4, 8)),
    "upsample2d": lambda: one("upsample2d", (2, 4, 8, 8), scale=2),
    "maxpool2d": lambda: one("maxpool2d", (2, 4, 8, 8), r=2),
    "avgpool2d": lambda: one("avgpool2d", (2, 4, 8, 8), r=2),
    "put": lambda: one("put", (4, 8), (2, 8)),
    "scatter_add": lambda: one("scatter_add", (16, 8), t=4),
    "rearrange": lambda: one("rearrange", (4, 8), shape=(6, 8)),
    "transpose_copy": lambda: one("transpose_copy", (4, 8)),
    "permute": lambda: one("permute", (4, 8, 2), axes=(2, 0, 1)),
    "scan": lambda: one("scan", (4, 8)),
    "topk": lambda: one("topk", (4, 8), k=2),
    "resample": lambda: one("resample", (2, 4, 8, 8), shape=(2, 4, 16, 16)),
    "all_gather": lambda: one("all_gather", (64,), devices=4),
    "reduce_scatter": lambda: one("reduce_scatter", (64,), devices=4),
    "all_reduce": lambda: one("all_reduce", (64,), devices=4),
    "alltoall": lambda: one("alltoall", (64,), devices=4),
    "parallel_input": lambda: one("parallel_input", (4, 8), devices=4),
    **{name: lambda name=name: one(name, (4, 8)) for name in ("relu", "gelu", "silu", "tanh", "exp", "cast", "neg")},
}  # fmt: skip


def _with_labels() -> rl.Graph:
    b = rl.ops.Builder("loss", "fp32")
    x = b.op("mul", b.input("x", (4, 8)), b.weight("w", (4, 8)), name="logits")
    return b.graph([b.op("cross_entropy", x, b.input("labels", (4,), "int64"), name="y")])


@pytest.mark.parametrize("op", SAMPLES)
def test_an_operators_gradients_have_the_shapes_of_its_inputs(op: str) -> None:
    graph = SAMPLES[op]()
    step = rl.passes.backward(graph)
    for weight, gradient in step.info.training.gradients:
        assert step.tensors[gradient].shape == graph.tensors[weight].shape
    assert len(step.info.training.gradients) == sum(t.kind == "weight" for t in graph.tensors.values())


@pytest.mark.parametrize(("op", "other"), [("all_gather", "reduce_scatter"), ("reduce_scatter", "all_gather"),
                                           ("parallel_input", "all_reduce"), ("alltoall", "alltoall")])  # fmt: skip
def test_collectives_go_the_other_way(op: str, other: str) -> None:
    graph = SAMPLES[op]()
    back = [
        node for node in rl.passes.backward(graph).nodes[len(graph.nodes) :] if rl.ops.OPS[node.op].kind == "network"
    ]
    assert [(node.op, dict(node.attrs)["devices"]) for node in back] == [(other, 4)]


def test_an_all_reduce_hands_its_gradient_on() -> None:
    graph = SAMPLES["all_reduce"]()
    assert not [n for n in rl.passes.backward(graph).nodes[len(graph.nodes) :] if rl.ops.OPS[n.op].kind == "network"]


@pytest.mark.parametrize(("op", "shapes", "times"), [
    ("causal_conv", ((2, 16, 8), (8, 4), (8,)), 2),
    ("selective_scan", ((2, 16, 8), (2, 16, 8), (8, 4), (2, 16, 4), (2, 16, 4), (8,)), 3),
    ("ssd_scan", ((2, 64, 4, 8), (2, 64, 2, 16), (2, 64, 2, 16), (2, 64, 4)), 3),
    ("delta_scan", ((2, 64, 4, 8), (2, 64, 4, 8), (2, 64, 4, 16), (2, 64, 4)), 3),
    ("linear_recurrence", ((2, 16, 8), (2, 16, 8), (2, 16, 8), (8,)), 3),
])  # fmt: skip
def test_a_mixers_backward_is_one_kernel(op: str, shapes: tuple[tuple[int, ...], ...], times: int) -> None:
    """It reads what the forward read and the gradient, writes all gradients, and runs a scan once more."""
    graph = one(op, *shapes)
    step = rl.passes.backward(graph)
    rows = {row.kernel.name: row for row in rl.count(step).rows}
    forward, back = rows["y"], rows["y.grad"]
    assert (back.flops, back.vector) == (times * forward.flops, times * forward.vector)
    assert back.read == forward.read + forward.write
    assert back.write == forward.read
    assert {w for w, _ in step.info.training.gradients} == {f"w{at}" for at in range(len(shapes))}


# --- against PyTorch -------------------------------------------------------------------------------------------------

CONFIG = {"hidden": 64, "layers": 3, "heads": 4, "vocab": 257}


def _torch_flops(name: str) -> tuple[int, rl.Graph]:
    """What FlopCounterMode counts of a step, attention written out, and the same program here."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    eager: dict[str, Any] = {"attn_implementation": "eager", "vocab_size": 257, "bos_token_id": 1, "eos_token_id": 2}
    ids = torch.randint(100, (2, 32))
    labels = ids
    if name == "gpt2":
        config = transformers.GPT2Config(n_embd=64, n_layer=3, n_head=4, n_positions=64, **eager)
        net = transformers.GPT2LMHeadModel(config)
        graph = rl.model("gpt2", phase="train", positions=64, attention="naive", **CONFIG)
    elif name == "llama-3-8b":
        config = transformers.LlamaConfig(
            hidden_size=64, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, intermediate_size=112,
            **eager,
        )  # fmt: skip
        net = transformers.LlamaForCausalLM(config)
        graph = rl.model(name, phase="train", kv_heads=2, intermediate=112, attention="naive", **CONFIG)
    else:
        config = transformers.BertConfig(hidden_size=64, num_hidden_layers=3, num_attention_heads=4,
                                         intermediate_size=256, **eager)  # fmt: skip
        net, labels = transformers.BertForSequenceClassification(config), torch.tensor([0, 1])
        graph = rl.model(name, phase="train", attention="naive", head="pooled", intermediate=256, **CONFIG)
    with FlopCounterMode(display=False) as counter:
        net(input_ids=ids, labels=labels).loss.backward()
    return counter.get_total_flops(), graph


@pytest.mark.parametrize("name", ["gpt2", "llama-3-8b", "bert-base-uncased"])
def test_flops_are_those_that_pytorch_counts(name: str) -> None:
    counted, graph = _torch_flops(name)
    assert rl.count(rl.passes.backward(graph), B=2, S=32).flops == counted


# --- activations: Korthikanti et al. 2022, arXiv 2205.05198, equations 1 to 6 and table 3 ----------------------------

#: Name, hidden h, heads a, micro-batch b; s = 2048 and tensor parallel t = 8 everywhere.
MEGATRON = [("megatron-22b", 6144, 64, 4), ("megatron-530b", 20480, 128, 1), ("megatron-1t", 25600, 160, 1),
            ("gpt-3-175b", 12288, 96, 1)]  # fmt: skip
S, T = 2048, 8


def _layer(name: str, recompute: str, b: int, **overrides: Any) -> float:
    graph = rl.model(name, phase="train", layers=2, attention="naive", **overrides)
    return float(rl.passes.saved(rl.passes.backward(graph, recompute=recompute), B=b, S=S)["layers.1"])


@pytest.mark.parametrize(("name", "h", "a", "b"), MEGATRON)
def test_activations_of_a_gpt_layer(name: str, h: int, a: int, b: int) -> None:
    sbh = S * b * h
    assert _layer(name, "none", b) == pytest.approx(sbh * (34 + 5 * a * S / h), rel=1e-12)
    assert _layer(name, "selective", b) == 34 * sbh
    assert _layer(name, "full", b) == 2 * sbh


@pytest.mark.parametrize(("name", "h", "a", "b"), MEGATRON)
def test_activations_of_a_tensor_parallel_rank(name: str, h: int, a: int, b: int) -> None:
    """The rank's share of the heads and of the inner size: ``s b h (10 + 24/t + 5as/(ht))``, equation 2."""
    rank = {"heads": a // T, "head_dim": h // a, "intermediate": 4 * h // T}
    sbh = S * b * h
    assert _layer(name, "none", b, **rank) == pytest.approx(sbh * (10 + 24 / T + 5 * a * S / (h * T)), rel=1e-12)
    assert _layer(name, "selective", b, **rank) == pytest.approx(sbh * (10 + 24 / T), rel=1e-12)


def test_what_is_kept_outside_of_the_layers() -> None:
    """Section 4.3: the mask of the embeddings' dropout, the last norm's input, the head's, and the logits in fp32."""
    graph = rl.model("megatron-22b", phase="train", layers=1)
    rest = rl.passes.saved(rl.passes.backward(graph), B=4, S=S)[""]
    sbh = S * 4 * 6144
    assert rest == pytest.approx(sbh * 5 + 4 * S * 4 * 51200, rel=1e-12)


@pytest.mark.parametrize(("name", "h", "layers", "v"), [("megatron-22b", 6144, 48, 51200),
                                                        ("megatron-530b", 20480, 105, 51200),
                                                        ("megatron-1t", 25600, 128, 51200),
                                                        ("gpt-3-175b", 12288, 96, 51200)])  # fmt: skip
def test_model_flops_of_megatron(name: str, h: int, layers: int, v: int) -> None:
    """Equation 7: ``72 B L s h^2 (1 + s/6h + v/12hL)``."""
    step = rl.passes.backward(rl.model(name, phase="train", attention="naive", vocab=v))
    expected = 72 * 4 * layers * S * h**2 * (1 + S / (6 * h) + v / (12 * h * layers))
    assert rl.count(step, B=4, S=S).flops == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("layers", "h", "heads"), [(24, 2304, 24), (30, 3072, 32), (36, 4096, 32), (40, 6144, 48)])
def test_flops_with_full_recomputation(layers: int, h: int, heads: int) -> None:
    """Narayanan et al. 2021, arXiv 2104.04473, equation 3: ``96 B s l h^2 (1 + s/6h + V/16lh)``."""
    graph = rl.model("megatron-22b", phase="train", layers=layers, hidden=h, heads=heads)
    expected = 96 * 512 * S * layers * h**2 * (1 + S / (6 * h) + 51200 / (16 * layers * h))
    assert rl.count(rl.passes.backward(graph, recompute="full"), B=512, S=S).flops == pytest.approx(expected, rel=1e-12)


def test_selective_recomputation_runs_the_attention_core_once_more() -> None:
    """Two products of ``2 B s^2 h`` a layer; equation 9 of the paper has three times that."""
    graph = rl.model("megatron-22b", phase="train", layers=2)
    none, selective = (rl.count(rl.passes.backward(graph, recompute=r), B=1, S=S).flops for r in ("none", "selective"))
    assert selective - none == 2 * 4 * S**2 * 6144


def test_palm_flops_a_token() -> None:
    """Chowdhery et al. 2022, appendix B: ``6N + 12 L H Q T`` of a decoder with shared keys."""
    sizes = {"hidden": 18432, "layers": 118, "heads": 48, "kv_heads": 1, "head_dim": 256, "intermediate": 73728,
             "vocab": 256000}  # fmt: skip
    graph = rl.model("llama-3-8b", phase="train", attention="naive", block="parallel", tied=True, **sizes)
    assert graph.parameters == pytest.approx(540.35e9, rel=1e-3)
    flops = rl.count(rl.passes.backward(graph), B=1, S=2048).flops / 2048
    assert flops == pytest.approx(6 * 540.35e9 + 12 * 118 * 48 * 256 * 2048, rel=1e-3)


# --- computing again -------------------------------------------------------------------------------------------------


def test_operators_that_are_named_are_computed_again_for_whoever_reads_them() -> None:
    graph = rl.model("llama-3.2-1b", phase="train", layers=1, attention="naive")
    step = rl.passes.backward(graph, recompute=["silu", "mul"])
    again = {node.op for node in step.nodes if node.name.endswith(".again")}
    assert again == {"silu", "mul"}
    kept = saved_tensors(step)
    assert not [name for name in kept if name.endswith((".silu", ".gated"))]


def test_selective_changes_nothing_where_attention_is_one_kernel_and_says_so() -> None:
    graph = rl.model("gpt2", phase="train", layers=1)
    step = rl.passes.backward(graph, recompute="selective")
    assert rl.count(step, B=1, S=64).flops == rl.count(rl.passes.backward(graph), B=1, S=64).flops
    assert "one kernel" in step.info.notes[-1]


# --- errors ----------------------------------------------------------------------------------------------------------


def test_an_operator_without_a_backward_is_named() -> None:
    graph = one("triangular_solve", (4, 4), (4, 2))
    with pytest.raises(rl.errors.UsageError, match="y: no backward is known for 'triangular_solve'"):
        rl.passes.backward(graph)


@pytest.mark.parametrize(
    ("graph", "options", "message"),
    [
        (lambda: rl.model("gpt2", phase="decode"), {}, "has a cache"),
        (lambda: rl.model("gpt2", phase="train", layers=1), {"recompute": "half"}, "allowed: none, selective, full"),
        (lambda: rl.model("gpt2", phase="train", layers=1), {"recompute": ["silly"]}, "no such operator"),
        (lambda: rl.model("resnet18", phase="train"), {"recompute": "selective"}, "needs attention"),
        (lambda: one("relu", (4, 8)), {"recompute": "full"}, "needs layers"),
        (lambda: rl.model("gpt2", phase="train", layers=1), {"wrt": ["idz"]}, "is no input"),
        (lambda: rl.passes.backward(one("relu", (4, 8))), {}, "has a backward already"),
        (lambda: rl.ops.Builder("empty", "fp32").graph([]), {}, "no output depends on a weight"),
    ],
)
def test_what_cannot_be_is_refused(graph: Callable[[], rl.Graph], options: dict[str, Any], message: str) -> None:
    with pytest.raises(rl.errors.UsageError, match=message):
        rl.passes.backward(graph(), **options)


def test_a_forward_program_keeps_nothing() -> None:
    with pytest.raises(rl.errors.UsageError, match="has no backward"):
        rl.passes.saved(rl.model("gpt2", phase="train", layers=1), B=1, S=8)


# --- derived beside captured -----------------------------------------------------------------------------------------


def _modules() -> dict[str, Callable[[], tuple[Any, ...]]]:
    torch = pytest.importorskip("torch")
    from torch_programs import Block, ResNet50

    nn = torch.nn
    return {
        "block": lambda: (Block(128, 4, 2, 256), torch.randn(2, 64, 128), *(torch.randn(64, 32) for _ in "cs")),
        "mlp": lambda: (nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64), nn.LayerNorm(64)),
                        torch.randn(32, 64)),
        "resnet50": lambda: (ResNet50(), torch.randn(2, 3, 64, 64)),
        "encoder": lambda: (nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), torch.randn(2, 16, 64)),
    }  # fmt: skip


@pytest.mark.parametrize("name", ["block", "mlp", "resnet50", "encoder"])
def test_a_captured_forward_has_the_backward_that_is_captured(name: str) -> None:
    """Autograd's own backward, recorded: the same FLOPs, nearly the same kernels and traffic."""
    module, *inputs = _modules()[name]()
    module.train()
    derived = rl.count(rl.passes.backward(rl.from_torch(module, *inputs)))
    captured = rl.count(rl.from_torch(module, *inputs, backward=True))
    assert derived.flops == captured.flops
    assert derived.launches == pytest.approx(captured.launches, rel=0.03)
    assert derived.bytes == pytest.approx(captured.bytes, rel=0.04)
