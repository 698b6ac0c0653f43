"""Quantised programs: what is stored, multiplied and converted, to the bit and by hand."""

from __future__ import annotations

import csv
import json
import tomllib
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

import roofline as rl
from roofline.cost import kernel_time
from roofline.counting.counts import kernels
from roofline.counting.memory import memory
from roofline.passes.formats.quantize import formats_by_name
from roofline.passes.formats.scales import activation_format, cache_format, weight_format

GIB = 2**30
K, N = 4096, 14336


def gemm(k: int = K, n: int = N, rows: int = 1, dtype: str = "bf16") -> rl.Graph:
    b = rl.ops.Builder("gemm", dtype)
    return b.graph([b.op("linear", b.input("x", (rows, k)), b.weight("w", (n, k)), name="product")])


def decode(layers: int = 2, name: str = "llama-3-8b") -> rl.Graph:
    return rl.model(name, phase="decode", layers=layers)


def stored_bits(graph: rl.Graph) -> Fraction:
    return Fraction(memory(graph, {}).weights) * 8 / graph.parameters


def ops(graph: rl.Graph) -> dict[str, int]:
    found: dict[str, int] = {}
    for node in graph.nodes:
        found[node.op] = found.get(node.op, 0) + 1
    return found


# --- what is stored -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("word", "bits"), [
    ("int8", 8 + Fraction(16, K)), ("fp8", 8 + Fraction(32, K)), ("int4", Fraction(17, 4)),
    ("int4-g128", Fraction(17, 4)), ("int4-g32", 5), ("int4-g128-sym", Fraction(33, 8)),
    ("int4-g128-z4", 4 + Fraction(20, 128)), ("int4-g256", 4 + Fraction(32, 256)),
    ("int3-g128-z3", 3 + Fraction(19, 128)),
    ("nf4", Fraction(9, 2)), ("nf4-dq", 4 + Fraction(8, 64) + Fraction(32, 64 * 256)), ("mxfp4", Fraction(17, 4)),
    ("fp4", Fraction(17, 4)), ("nvfp4", Fraction(9, 2)), ("mxfp8", Fraction(33, 4)), ("q4_0", Fraction(9, 2)),
    ("q6_k", Fraction(105, 16)),
])  # fmt: skip
def test_weights_take_the_bits_of_their_format(word: str, bits: Fraction) -> None:
    graph = rl.passes.quantize(gemm(), weights=word)
    assert stored_bits(graph) == bits
    before, after = rl.count(gemm()), rl.count(graph)
    assert Fraction(before.bytes) - Fraction(after.bytes) == K * N * (16 - bits) / 8, "the kernel reads narrow bytes"
    assert after.flops == before.flops
    assert after.launches == 1


def test_dequantisation_counts_scale_and_zero() -> None:
    for word, each in (("int4-g128", 2), ("int4-g128-sym", 1), ("int4-g128-z4", 2), ("nf4", 1), ("int8", 1)):
        assert rl.count(rl.passes.quantize(gemm(), weights=word)).vector_flops == each * K * N, word


def test_products_stay_in_the_activations_format() -> None:
    for dtype in ("bf16", "fp16", "fp32"):
        (kernel,) = kernels(rl.passes.quantize(gemm(dtype=dtype), weights="int4-g128"))
        assert set(kernel.flops) == {dtype}
        assert kernel.stored[1] == "int4-g128"


def test_a_kernel_of_its_own_writes_wide_weights() -> None:
    apart = rl.count(rl.passes.quantize(gemm(), weights="int8", dequantize="separate"))
    inside = rl.count(rl.passes.quantize(gemm(), weights="int8"))
    assert apart.launches == 2
    assert apart.bytes == inside.bytes + 2 * (2 * K * N), "written once and read once more, in 16 bits"
    assert apart.vector_flops == inside.vector_flops
    both = rl.passes.quantize(gemm(), weights="int8", dequantize="separate")
    assert memory(both, {}).activations == 2 * K * N + 2 * N, "while the matmul runs, the wide copy is there"
    assert any("separate kernels" in note for note in both.info.notes)


def test_experts_dequantise_those_that_are_read() -> None:
    plain, at = rl.model("mixtral-8x7b", phase="decode", layers=1), {"B": 1, "C": 128}
    narrow = rl.passes.quantize(plain, weights="int4-g128")
    read = {r.kernel.main.name: r.read for r in rl.count(narrow, **at).rows if r.kernel.main.op == "expert_linear"}
    wide = {r.kernel.main.name: r.read for r in rl.count(plain, **at).rows if r.kernel.main.op == "expert_linear"}
    assert len(read) == 2
    for name, bytes_read in read.items():
        x = 2 * 2 * (14336 if "down" in name else 4096)  # two routed rows of 16 bits
        assert bytes_read - x == pytest.approx((wide[name] - x) * 4.25 / 16)
    weights = sum(8 * m * h for m, h in ((2 * 14336, 4096), (4096, 14336)))
    assert rl.count(narrow, **at).vector_flops - rl.count(plain, **at).vector_flops == pytest.approx(
        2 * (weights * 2 / 8 + (6144 + 4096) * 4096)
    )


def test_tables_are_looked_up_in_narrow_rows() -> None:
    graph = rl.passes.quantize(decode(), weights="int8", keep=())
    assert graph.tensors["embed.weight"].dtype == "int8-g4096-sym"
    row = next(r for r in rl.count(graph, B=3, C=64).rows if r.kernel.main.op == "embedding")
    assert row.read == 3 * (4096 + 2) + 3 * 8
    assert row.write == 3 * 4096 * 2
    assert row.vector == 3 * 4096


def test_what_stays_by_default() -> None:
    narrow = rl.passes.quantize(decode(), weights="int8")
    wide = {name for name, t in narrow.tensors.items() if t.kind == "weight" and t.dtype == "bf16"}
    norms = {name for name in wide if "norm" in name}
    assert wide - norms == {"embed.weight", "head.weight"}
    routers = rl.passes.quantize(rl.model("mixtral-8x7b", phase="decode", layers=1), weights="int8")
    assert {t.dtype for name, t in routers.tensors.items() if "router" in name and t.kind == "weight"} == {"bf16"}
    gpt = rl.passes.quantize(rl.model("gpt2", layers=1, dtype="bf16"), weights="int8", keep=())
    assert {t.dtype for n, t in gpt.tensors.items() if n.endswith("bias")} == {"bf16"}, "vectors stay always"


def test_a_tied_table_is_one() -> None:
    tied = rl.model("gpt2", phase="decode", layers=1, dtype="bf16")
    assert rl.passes.quantize(tied, weights="int8").tensors["embed.weight"].dtype == "bf16"
    head = rl.passes.quantize(tied, weights={"*": "int4-g32", "head": "int8"})
    assert head.tensors["embed.weight"].dtype == "int8-g768-sym"
    assert sum(node.op == "dequantize" and node.inputs == ("embed.weight",) for node in head.nodes) == 2


def test_exceptions_by_layer() -> None:
    graph = rl.passes.quantize(
        decode(), weights={"*": "int4-g128", "*.down*": "int8", "layers.0.attn.*": None, "head": "fp8"}
    )
    found = {name: t.dtype for name, t in graph.tensors.items() if t.kind == "weight" and "norm" not in name}
    assert found["layers.1.mlp.down.weight"] == "int8-g14336-sym"
    assert found["layers.0.attn.qkv.weight"] == "bf16"
    assert found["layers.1.attn.qkv.weight"] == "int4-g128"
    assert found["head.weight"] == "fp8-g4096-sym-s32", "named, so not kept"
    assert found["embed.weight"] == "bf16"
    kept = rl.passes.quantize(decode(), weights="int8", keep=["layers.1.*", "head", "embed*"])
    assert kept.tensors["layers.1.mlp.down.weight"].dtype == "bf16"


def test_convolutions_have_a_scale_a_filter() -> None:
    graph = rl.passes.quantize(rl.model("resnet50"), weights="int8")
    assert graph.tensors["conv1.weight"].dtype == "int8-g147-sym"
    assert graph.tensors["head.weight"].dtype == "fp32"
    whole = rl.passes.quantize(rl.model("resnet50"), weights="int8", keep=())
    before, after = (memory(g, {"B": 1}).weights for g in (rl.model("resnet50"), whole))
    assert 3.9 < before / after < 4


def test_narrow_weights_stay_as_they_are() -> None:
    once = rl.passes.quantize(decode(), weights="int4-g128")
    again = rl.passes.quantize(once, weights="int8")
    assert again is once
    mixed = rl.passes.quantize(rl.model("gpt-oss-20b", phase="decode"), weights="int8")
    assert any("already" in note for note in mixed.info.notes)


def test_checkpoints_that_are_narrow_already_are_widened_on_request() -> None:
    said = rl.passes.cast(gemm(), weights="int4-g128")
    assert rl.count(rl.passes.dequantize(said)).bytes == rl.count(said).bytes
    assert [rl.count(rl.passes.dequantize(said, way)).vector_flops for way in ("fused", "separate")] == [2 * K * N] * 2
    assert rl.count(rl.passes.dequantize(said, "separate")).launches == 2
    plain = gemm()
    assert rl.passes.dequantize(plain) is plain
    eight = rl.passes.cast(gemm(), weights="int8", activations="int8", compute="int8")
    assert rl.passes.dequantize(eight) is eight, "multiplied as it is stored"
    experts = rl.passes.dequantize(rl.model("gpt-oss-20b", phase="decode", layers=1))
    assert sum(node.op == "dequantize" for node in experts.nodes) == 2
    with pytest.raises(rl.errors.UsageError, match="allowed: fused, separate"):
        rl.passes.dequantize(said, "tinygemm")  # type: ignore[arg-type]


# --- products in narrow formats -----------------------------------------------------------------------------


def test_activations_are_quantised_once_for_all_that_read_them() -> None:
    b = rl.ops.Builder("two", "bf16")
    x = b.input("x", (16, 256))
    y, z = (b.op("linear", x, b.weight(f"w{n}", (n, 256)), name=f"p{n}") for n in (64, 128))
    graph = rl.passes.quantize(b.graph([y, z]), activations="fp8")
    assert ops(graph) == {"quantize_rows": 1, "linear": 2}
    assert graph.tensors["x.quantize"].dtype == "fp8-g256-sym-s32"
    rows = {r.kernel.name: r for r in rl.count(graph).rows}
    assert rows["x.quantize"].read == 16 * 256 * 2
    assert rows["x.quantize"].write == 16 * (256 + 4), "a byte an element and four a row"
    assert rows["p64"].flops_by == {"fp8": 2 * 16 * 256 * 64}
    assert rows["p64"].write == 16 * 64 * 2, "results are wide"
    assert rows["p64"].read == 16 * (256 + 4) + 64 * (256 + 4)


def test_static_scales_are_elementwise_and_fuse_into_what_comes_before() -> None:
    static = rl.passes.quantize(decode(1), activations="fp8", scales="static")
    assert ops(static)["quantize"] == 4
    assert "quantize_rows" not in ops(static)
    labels = {node.name: node.label for node in rl.passes.fuse(static).nodes}
    assert labels["layers.0.attn.norm.quantize"] == labels["layers.0.attn.norm"]


def test_attention_keeps_its_format() -> None:
    formats = {k.main.op: set(k.flops) for k in kernels(rl.passes.quantize(decode(), activations="int8")) if k.flops}
    assert formats["attention_scores"] == {"bf16"}
    heads = next(k for k in kernels(rl.passes.quantize(decode(), activations="int8")) if k.name == "head")
    assert set(heads.flops) == {"bf16"}


def test_narrower_weights_are_widened_to_the_activations_format() -> None:
    graph = rl.passes.quantize(gemm(), weights="int4-g128", activations="int8")
    (product,) = (k for k in kernels(graph) if k.flops)
    assert set(product.flops) == {"int8"}
    assert product.stored[1] == "int4-g128"
    assert stored_bits(graph) == Fraction(17, 4)
    as_they_are = rl.passes.quantize(gemm(), weights="nvfp4", activations="nvfp4")
    assert "dequantize" not in ops(as_they_are), "the units take blocks and scales"


@pytest.mark.parametrize("word", ["int8", "fp8", "mxfp8", "mxfp4", "nvfp4"])
def test_no_units_no_promise(word: str) -> None:
    graph = rl.passes.quantize(gemm(rows=4096), activations=word)
    unit = {"int8": "int8", "fp8": "fp8", "mxfp8": "fp8"}.get(word, "fp4")
    old = rl.chip("v100-sxm-16gb")
    assert unit not in old.matrix
    assert unit not in old.fallback
    with pytest.raises(rl.errors.MissingFigure, match="v100"):
        rl.estimate(graph, old)


# --- caches -------------------------------------------------------------------------------------------------


def test_a_cache_is_read_narrow_widened_and_written_narrow() -> None:
    plain, at = decode(1), {"B": 4, "C": 1000}
    for word, each in (("fp8", 1), ("int8", 1 + 2 / 128), ("int4", 0.5 + 4 / 128)):
        graph = rl.passes.quantize(plain, cache=word)
        assert memory(graph, at).kv_cache == pytest.approx(2 * 4 * 8 * 1000 * 128 * each)
        saved = rl.count(plain, **at).bytes - rl.count(graph, **at).bytes
        assert float(saved) == pytest.approx(2 * 4 * 8 * (1000 + 1) * 128 * (2 - each)), "read whole, written once"
        assert rl.count(graph, **at).flops == rl.count(plain, **at).flops
        assert rl.count(graph, **at).launches == rl.count(plain, **at).launches
    widened = 2 * 4 * 8 * 1000 * 128  # keys and values, each once
    written = 2 * 4 * 8 * (128 + 1)  # a product an element, a division a token and head
    more = rl.count(rl.passes.quantize(plain, cache="int4"), **at).vector_flops - rl.count(plain, **at).vector_flops
    assert more == 2 * widened + written


def test_prefill_writes_a_narrow_cache_and_attends_to_wide_keys() -> None:
    plain = rl.model("llama-3-8b", phase="prefill", layers=1)
    graph = rl.passes.quantize(plain, cache="fp8")
    attention = next(k for k in kernels(graph) if k.kind == "attention")
    assert attention.stored[:2] == ("bf16", "bf16")
    at = {"B": 1, "S": 512}
    assert memory(plain, at).kv_cache == 2 * memory(graph, at).kv_cache


def test_other_kept_state_is_no_cache() -> None:
    kept = rl.ops.Builder("recurrent", "bf16")
    state = kept.op("state_update", kept.cache("state", (4, 64)), kept.input("x", (4, 64)))
    with pytest.raises(rl.errors.UsageError, match="no KV cache"):
        rl.passes.quantize(kept.graph([state]), cache="int8")


# --- errors -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("options", "says"), [
    ({}, "give weights, activations or cache"),
    ({"weights": "int4-g100-sym"}, "groups of 100 do not divide rows of 4096; nearest that fits: int4-g128-sym"),
    ({"weights": "int4-g8192-z4"}, "longer than a row of 4096; nearest that fits: int4-g4096-z4"),
    ({"weights": "fp16"}, "weights='fp16': allowed: int8"),
    ({"activations": "int4"}, "activations='int4': allowed: int8, fp8"),
    ({"cache": "bf16"}, "no KV cache"),
    ({"weights": "int8", "activations": "fp8"}, "cannot meet activations in fp8"),
    ({"weights": "int8", "dequantize": "fuse"}, "'fuse'; allowed: fused, separate, tinygemm; did you mean fused"),
    ({"weights": "int8", "dequantize": "tinygemm"}, "tinygemm takes int4-g32, int4-g64"),
    ({"weights": "int8", "scales": "row"}, "allowed: dynamic, static"),
    ({"weights": {"prodct": "int8"}}, "no matrix matches 'prodct'; did you mean product"),
    ({"weights": "int8", "keep": ["produkt"]}, "keep: no matrix matches 'produkt'; did you mean product"),
    ({"weights": "int8", "keep": ["product"]}, "every matrix is excluded"),
])  # fmt: skip
def test_bad_input_gets_one_line(options: dict[str, Any], says: str) -> None:
    with pytest.raises(rl.errors.UsageError) as caught:
        rl.passes.quantize(gemm(), **options)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unknown_formats() -> None:
    with pytest.raises(rl.errors.UnknownDType, match="int9"):
        rl.passes.quantize(gemm(), weights="int9")
    with pytest.raises(rl.errors.UsageError, match="no matmul with a weight"):
        rl.passes.quantize(rl.workload([{"op": "softmax", "rows": 8, "cols": 8}]), weights="int8")
    with pytest.raises(rl.errors.UsageError, match="cache='fp16': allowed"):
        rl.passes.quantize(decode(1), cache="fp16")
    with pytest.raises(rl.errors.UsageError, match="q4_0"):
        weight_format("q4_k", 32 * 9)


def test_the_formats_that_a_program_has_are_no_change() -> None:
    graph = decode(1)
    assert rl.passes.quantize(graph, weights="bf16", cache="bf16") is graph


def test_formats_as_text() -> None:
    table = formats_by_name(" int4-g128 , *.down* = int8 ,layers.0.*=none")
    graph = rl.passes.quantize(decode(), weights=table)
    assert graph.tensors["layers.1.mlp.down.weight"].dtype == "int8-g14336-sym"
    assert graph.tensors["layers.0.mlp.down.weight"].dtype == "bf16"
    assert formats_by_name("*.down*=int8") == {"*.down*": "int8"}
    for text in ("int8,=int4", "int8,down", "int8,", "int8,down="):
        with pytest.raises(rl.errors.UsageError, match="is not PATTERN=FORMAT"):
            formats_by_name(text)


def test_notes_say_who_has_such_kernels() -> None:
    said = {way: rl.passes.quantize(gemm(), weights="int4", dequantize=way).info.notes[-1]
            for way in ("fused", "separate", "tinygemm")}  # fmt: skip
    assert "serving stacks" in said["fused"]
    assert "slower than 16 bits" in said["separate"]
    assert "a few rows" in said["tinygemm"]


def test_words_of_formats() -> None:
    assert [weight_format("int4", row) for row in (14336, 1856, 96, 100)] == [
        "int4-g128", "int4-g64", "int4-g32", "int4-g100-z16"]  # fmt: skip
    assert activation_format("nvfp4", 4096, "dynamic") == "nvfp4"
    assert cache_format("int4", 96, "dynamic") == "int4-g96-z16"
    assert cache_format("int8", 128, "static") == "int8"


# --- history, published figures -----------------------------------------------------------------------------


def test_history() -> None:
    graph = rl.passes.quantize(decode(), weights="int8", cache="fp8")
    (step,) = graph.history
    assert repr(step) == "quantize(weights='int8', cache='fp8')"
    assert step.notes == graph.info.notes


GOLDEN = {
    case["id"]: case
    for case in tomllib.loads((Path(__file__).parent / "golden/values.toml").read_text(encoding="utf-8"))["case"]
}


def wanted(case: str) -> dict[str, dict[str, Any]]:
    return {value["name"]: value for value in GOLDEN[case]["values"]}


BITS: dict[str, dict[str, tuple[str, int]]] = {
    "gguf-block-bits": {name: (name.lower(), 4096) for name in
                        ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")},
    "groupwise-int4-bits": {
        "scale_only_fp16": ("int4-g128-sym", 4096), "scale_fp16_zero_int4": ("int4-g128-z4", 4096),
        "scale_and_zero_fp16": ("int4", 4096), "g32_scale_fp16": ("int4-g32-sym", 4096),
        "g32_scale_zero_16bit_gpt_fast": ("int4-g32", 4096), "int8_per_channel_k4096": ("int8", 4096),
        "int3_g128": ("int3-g128-z4", 4096)},
    "qlora-nf4-bits": {"nf4_block64_fp32": ("nf4", 4096), "nf4_double_quant": ("nf4-dq", 16384)},
    "microscaling-bits": {"mxfp4": ("mxfp4", 4096), "mxfp8": ("mxfp8", 4096), "nvfp4": ("nvfp4", 4096)},
}  # fmt: skip


@pytest.mark.parametrize(("case", "name"), [(case, name) for case, table in BITS.items() for name in table])
def test_published_bits_a_weight(case: str, name: str) -> None:
    word, row = BITS[case][name]
    value = wanted(case)[name]
    assert float(stored_bits(rl.passes.quantize(gemm(row, 4096), weights=word))) == pytest.approx(
        value["value"], rel=value["rtol"]
    )


#: Files of llama.cpp: norms in 32 bits, all matrices and the table in one format (llama.cpp, quantize README).
FILES = {"f16": 14.96, "q8_0": 7.95, "q6_k": 6.14}


@pytest.mark.parametrize("name", list(FILES))
def test_published_file_sizes(name: str) -> None:
    graph = rl.model("llama-3.1-8b", dtype="fp16")
    norms = [t for n, t in graph.tensors.items() if t.kind == "weight" and "norm" in n]
    graph = graph.with_tensors([type(t)(t.name, t.shape, "fp32", t.kind) for t in norms])
    graph = graph if name == "f16" else rl.passes.quantize(graph, weights=name, keep=())
    assert memory(graph, {"B": 1, "S": 1}).weights / GIB == pytest.approx(FILES[name], abs=0.005)


IDEAL = {"compute": 1, "memory": 1, "launch": 0, "low": 1, "high": 1}


@pytest.mark.parametrize(("name", "options"), [
    ("w16a16", None), ("w8a16", {"weights": "int8"}), ("w4a16", {"weights": "int4-g4096-sym"}),
    ("w8a8", {"activations": "int8", "scales": "static"}),
])  # fmt: skip
def test_published_critical_batch(name: str, options: dict[str, Any] | None) -> None:
    """Where compute meets memory, for products so wide that activations and scales do not show."""
    i, value = GOLDEN["critical-batch-under-quantization"]["inputs"], wanted("critical-batch-under-quantization")[name]
    chip = rl.Chip(name="source", matrix={"bf16": i["peak16"], "int8": i["peak8"]}, memory_bandwidth=i["bw"],
                   efficiency=IDEAL)  # fmt: skip
    b, wide = rl.ops.Builder("wide", "bf16"), 999_999_872
    graph = b.graph([b.op("linear", b.input("x", (rl.ops.symbol("B"), wide)), b.weight("w", (2**40, wide)))])
    if options is not None:
        words = {k: v.replace("4096", str(wide)) if k == "weights" else v for k, v in options.items()}
        graph = rl.passes.quantize(graph, **words)

    def gap(batch: int) -> float:
        est = rl.estimate(graph, chip, mode="graph", B=batch)
        time = next(t for row, t in zip(est.rows, est.times[0], strict=True) if row.flops_by)
        return float(time.memory - time.compute)

    one, two = gap(1), gap(2)
    assert 1 + one / (one - two) == pytest.approx(value["value"], rel=value["rtol"])


# --- time -----------------------------------------------------------------------------------------------------------

MEASURED = Path(__file__).parents[1] / "measurements" / "h100-sxm"
#: Microseconds of the four products of a layer of Llama-13B by rows, in Marlin's kernel on an A100 80 GB (bench.py of
#: IST-DASLab/marlin, as run in vllm-project/vllm pull request 2497, 24 January 2024), and the speed-up over fp16.
MARLIN = {1: (140, 3.12), 16: (140, 3.19), 32: (180, 2.28), 64: (290, 1.47), 128: (570, 1.01), 256: (1130, 0.74),
          512: (2270, 0.73), 2048: (9070, 0.60)}  # fmt: skip
LLAMA_13B = ((5120, 15360), (5120, 5120), (5120, 27648), (13824, 5120))


def cold(graph: rl.Graph, chip: str) -> float:
    return sum(
        r.kernel.count * float(kernel_time(r, rl.chip(chip), regime="cold").expected) for r in rl.count(graph).rows
    )


def rows_of(name: str) -> list[dict[str, str]]:
    with (MEASURED / name).open(encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def test_tinygemm_is_predicted_at_all_numbers_of_rows() -> None:
    errors = []
    for row in rows_of("quantized.csv"):
        if row["kernel"] == "tinygemm":
            s = json.loads(row["shape"])
            narrow = rl.passes.quantize(gemm(s["k"], s["n"], s["m"]), weights=row["weights"], dequantize="tinygemm")
            errors.append(abs(cold(narrow, "h100-sxm") * 1e6 / float(row["kernel_us"]) - 1))
    assert len(errors) == 54
    assert sum(errors) / len(errors) < 0.06
    assert max(errors) < 0.25


def test_products_of_8_bits_are_predicted() -> None:
    ran = {"scaled_mm": ("fp8", "static"), "scaled_mm_row": ("fp8", "dynamic"), "int_mm": ("int8", "static")}
    errors: dict[str, list[float]] = {}
    for row in rows_of("quantized.csv"):
        if row["kernel"] in ran:
            (word, scales), s = ran[row["kernel"]], json.loads(row["shape"])
            made = rl.passes.quantize(gemm(s["k"], s["n"], s["m"]), activations=word, scales=scales)
            found = next(r for r in rl.count(made).rows if r.flops_by)
            time = float(kernel_time(found, rl.chip("h100-sxm"), regime="cold").expected) * 1e6
            errors.setdefault(row["kernel"], []).append(abs(time / float(row["kernel_us"]) - 1))
    assert {kernel: len(found) for kernel, found in errors.items()} == {
        "scaled_mm": 30, "scaled_mm_row": 30, "int_mm": 15}  # fmt: skip
    assert sum(errors["scaled_mm"]) / 30 < 0.08
    assert sum(errors["scaled_mm_row"]) / 30 < 0.09
    assert sum(errors["int_mm"]) / 15 < 0.16


def test_conversions_around_products_are_predicted() -> None:
    errors: dict[str, list[float]] = {}
    for row in rows_of("quantized.csv"):
        s = json.loads(row["shape"])
        if row["op"] == "dequantize" and row["kernel"] == "compiled":
            apart = rl.passes.quantize(gemm(s["k"], s["n"]), weights=row["weights"], dequantize="separate")
            found = next(r for r in rl.count(apart).rows if r.kernel.main.op == "dequantize")
        elif row["kernel"] == "compiled" and row["op"].startswith("quantize"):
            scales = "static" if row["op"] == "quantize_static" else "dynamic"
            made = rl.passes.quantize(gemm(s["cols"], 64, s["rows"]), activations=row["weights"], scales=scales)
            found = next(r for r in rl.count(made).rows if r.kernel.main.op.startswith("quantize"))
        else:
            continue
        time = float(kernel_time(found, rl.chip("h100-sxm"), regime="cold").expected) * 1e6
        errors.setdefault(row["op"], []).append(abs(time / float(row["kernel_us"]) - 1))
    assert {op: len(found) for op, found in errors.items()} == {
        "dequantize": 15, "quantize_rows": 24, "quantize_static": 6}  # fmt: skip
    assert sum(errors["dequantize"]) / 15 < 0.15
    assert sum(errors["quantize_rows"]) / 24 < 0.35
    assert sum(errors["quantize_static"]) / 6 < 0.15


def test_marlin_gains_for_a_few_rows_and_loses_for_many() -> None:
    errors = []
    for rows, (micros, gain) in MARLIN.items():
        plain = sum(cold(gemm(k, n, rows, "fp16"), "a100-80gb-sxm") for k, n in LLAMA_13B)
        narrow = sum(
            cold(rl.passes.quantize(gemm(k, n, rows, "fp16"), weights="int4-g128"), "a100-80gb-sxm")
            for k, n in LLAMA_13B
        )
        errors.append(abs(narrow * 1e6 / micros - 1))
        assert (plain / narrow > 1.1) == (gain > 1.1), rows
    assert sum(errors) / len(errors) < 0.2
    assert max(errors) < 0.45


#: Microseconds of a block of experts of which all are read, by chip: experts, hidden width, inner width, picks, tokens,
#: format and the fastest kernel of a stack (tables ``moe`` of aiconfigurator-core 0.12.0, routing ``balanced``):
#: gpt-oss-120b by TensorRT-LLM 1.3.0rc20 and vLLM 0.24 (Triton's), Kimi-K2 on four and eight devices by SGLang 0.5.14.
BLOCKS = (
    ("h200-sxm", 128, 2880, 2880, 4, 128, "mxfp4", 618.8), ("h200-sxm", 128, 2880, 2880, 4, 256, "mxfp4", 666.8),
    ("h200-sxm", 384, 7168, 512, 8, 256, "int4-g32-sym", 766.2),
    ("b200-sxm", 384, 7168, 512, 8, 256, "int4-g32-sym", 649.7),
    ("h200-sxm", 384, 7168, 256, 8, 256, "int4-g32-sym", 452.4),
    ("b200-sxm", 384, 7168, 256, 8, 256, "int4-g32-sym", 363.0),
)  # fmt: skip


def experts_of(experts: int, hidden: int, inner: int, picks: int, tokens: int, word: str) -> rl.Graph:
    b = rl.ops.Builder("block", "bf16")
    x, y = b.input("x", (tokens * picks, hidden)), b.input("y", (tokens * picks, inner))
    up, down = b.weight("up", (experts, 2 * inner, hidden)), b.weight("down", (experts, hidden, inner))
    outs = [b.op("expert_linear", each, w, top_k=picks, name=f"{w}_out") for each, w in ((x, up), (y, down))]
    return rl.passes.quantize(b.graph(outs), weights=word)


@pytest.mark.parametrize("row", BLOCKS, ids=lambda row: f"{row[0]}-{row[1]}-{row[3]}-{row[5]}")
def test_experts_of_four_bits_beside_public_kernels(row: tuple[Any, ...]) -> None:
    chip, *block, micros = row
    rows = rl.count(experts_of(*block)).rows
    ours = sum(float(kernel_time(each, rl.chip(chip), regime="warm").expected) for each in rows)
    assert 0.75 < ours * 1e6 / micros < 1.2  # theirs sort tokens and add up as well


def test_experts_that_no_token_picks_take_no_time() -> None:
    few, all_read = (
        sum(float(kernel_time(each, rl.chip("h200-sxm"), regime="warm").expected) for each in rl.count(graph).rows)
        for graph in (experts_of(128, 2880, 2880, 4, tokens, "mxfp4") for tokens in (32, 256))
    )
    assert few / all_read == pytest.approx(1 - (1 - 4 / 128) ** 32, abs=0.05)


#: What was run for each format of the weights. Eager PyTorch quantises activations in seven kernels: not compared.
RAN: dict[str, dict[str, Any]] = {
    "bf16": {}, "int4-g128": {"weights": "int4-g128", "dequantize": "tinygemm"}, "fp8": {"activations": "fp8"},
    "int8": {"weights": "int8", "dequantize": "separate"},
}  # fmt: skip
STEPS = [row for row in rows_of("quantized_decode.csv") if (row["mode"], row["weights"]) != ("eager", "fp8")]


@pytest.mark.parametrize("row", STEPS, ids=lambda row: f"{row['mode']}-{row['weights']}-{row['batch']}")
def test_decode_steps_as_measured(row: dict[str, str]) -> None:
    graph = rl.model("llama-3-8b", phase="decode", layers=int(row["layers"]))
    graph = rl.passes.quantize(graph, **RAN[row["weights"]]) if RAN[row["weights"]] else graph
    graph = rl.passes.inductor(graph) if row["mode"] == "compiled" else graph
    est = rl.estimate(graph, "h100-sxm", mode="graph", B=int(row["batch"]), C=int(row["context"]))
    beside = sum(r["time_s"] for r in est.kernel_rows() if r["kernel"] in ("head", "embed", "norm"))
    assert (est.time - beside) * 1e6 == pytest.approx(float(row["wall_us"]), rel=0.15)


#: Microseconds of rows of fp8, scaled by row, times 1280 x 8192 on an MI300X (the fastest of ROCm/aiter pull 1094).
AITER = {1: 10.70, 32: 10.72, 64: 10.80, 128: 12.24, 192: 15.19}


@pytest.mark.parametrize("rows", AITER)
def test_row_scaled_fp8_of_few_rows_on_an_mi300x(rows: int) -> None:
    """ROCm's kernels have small tiles and split K; CUTLASS's for NVIDIA, which have neither, would take 30 us."""
    b = rl.ops.Builder("gemm", "bf16")
    graph = b.graph([b.op("linear", b.input("x", (rows, 8192)), b.weight("w", (1280, 8192)), name="product")])
    est = rl.estimate(rl.passes.quantize(graph, activations="fp8"), "mi300x", mode="graph", regime="cold")
    (seconds,) = (row["time_s"] for row in est.kernel_rows() if row["kernel"] == "product")
    assert seconds * 1e6 == pytest.approx(AITER[rows], rel=0.35)


@pytest.mark.parametrize("weights", ["int4-g128", "int8", "q8_0"])
def test_weights_that_are_only_stored_narrow_take_as_long_as_those_that_a_pass_dequantises(weights: str) -> None:
    stored = rl.model("llama-2-7b", phase="decode", layers=1, dtype="fp16", weights=weights)
    told = rl.passes.dequantize(stored)
    assert told is not stored
    for chip in ("rtx-4090", "a100-80gb-sxm", "mi300x"):
        ways = [rl.estimate(graph, chip, mode="compiled", B=1, C=128).time for graph in (stored, told)]
        assert ways[0] == pytest.approx(ways[1], rel=0.02), chip


def test_gpt_fast_gains_less_than_its_bytes() -> None:
    """Tokens a second of Llama-2-70B, one sequence, on an A100 80 GB (gpt-fast README): int8 19.13, int4-g32 25.25."""
    published = {value["name"]: value["value"] for value in GOLDEN["gptfast-llama2-70b-a100"]["values"]}
    graph = rl.model("llama-2-70b", phase="decode")
    for word, name in (("int8", "int8_1gpu"), ("int4-g32", "int4_1gpu")):
        narrow = rl.passes.quantize(graph, weights=word, keep=("*embed*",))
        rate = 1 / rl.estimate(narrow, "a100-80gb-sxm", mode="compiled", B=1, C=200).time
        assert rate == pytest.approx(published[name], rel=0.25)


@pytest.mark.parametrize("chip", ["v100-sxm-32gb", "t4"])
def test_no_speed_from_narrow_weights_where_16_bits_are_emulated(chip: str) -> None:
    plain = rl.model("llama-3-8b", phase="prefill", layers=1, dtype="bf16")
    times = [
        rl.estimate(graph, chip, mode="graph", B=2, S=1024).time
        for graph in (plain, rl.passes.quantize(plain, weights="int8"), rl.passes.quantize(plain, weights="int4-g128"))
    ]
    assert min(times[1:]) > 0.99 * times[0]


@pytest.mark.parametrize("word", ["tf32", "fp32", "int4", "fp4"])
def test_a_format_of_activations_is_refused_by_the_name_of_its_option(word: str) -> None:
    with pytest.raises(rl.errors.UsageError, match=f"activations='{word}'"):
        rl.passes.quantize(rl.model("gpt2", layers=1), activations=word)
