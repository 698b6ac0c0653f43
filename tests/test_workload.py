"""Workloads: every word of the measurement files builds, and what is wrong is named with its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from mutators import json_mutated, mutants, refused
from profiles import examples

import roofline as rl
from roofline.analysis.prediction import predict_rows
from roofline.programs.workload import MAX_CHAIN, MAX_SIZE, WORDS, load_workload

ATTENTION = {"batch": 2, "heads": 8, "kv_heads": 2, "q_len": 16, "kv_len": 64, "head_dim": 32, "causal": True}
ROWS = {"rows": 6, "cols": 10}
FLAT = {"n": 100}

#: Sizes for every word, with FLOPs (contractions) and bytes in bf16 by hand.
SAMPLES: dict[str, tuple[dict[str, Any], int, int]] = {
    **dict.fromkeys(("gemm", "linear", "matmul", "mm"), ({"m": 3, "n": 5, "k": 7}, 2 * 105, 2 * (21 + 35 + 15))),
    "bmm": ({"b": 2, "m": 3, "n": 5, "k": 7}, 2 * 210, 2 * 2 * (21 + 35 + 15)),
    **dict.fromkeys(("copy", "mul_scalar", "relu", "gelu", "silu", "exp", "sigmoid", "tanh"), (FLAT, 0, 400)),
    **dict.fromkeys(("add", "mul"), (FLAT, 0, 600)),
    "fill": (FLAT, 0, 200),
    "cast_fp32": (FLAT, 0, 200 + 400),
    "elementwise": ({"n": 100, "inputs": 2, "count": 3}, 0, 3 * 600),
    **dict.fromkeys(("softmax", "layernorm", "rmsnorm", "transpose_copy"), (ROWS, 0, 2 * 2 * 60)),
    **dict.fromkeys(("sum", "mean"), (ROWS, 0, 2 * 60 + 2 * 6)),
    "argmax": (ROWS, 0, 2 * 60 + 8 * 6),
    "bias_add": (ROWS, 0, 2 * (60 + 10 + 60)),
    # 16 queries at the end of 64 keys: 16 * 64 - 16 * 15 / 2 = 904 pairs a head; q, k, v in and y out.
    **dict.fromkeys(
        ("attention", "attention_sdpa"),
        (ATTENTION, 2 * (2 * 2 * 8 * 904 * 32), 2 * (2 * (2 * 8 * 16 * 32) + 2 * (2 * 2 * 64 * 32))),
    ),
    # Nothing is masked away: 16 * 64 pairs; scores go out and in at five kernels' edges (and the mask, one byte).
    "attention_naive": (
        ATTENTION, 2 * (2 * 2 * 8 * 1024 * 32),
        2 * (2 * (2 * 8 * 16 * 32) + 2 * (2 * 2 * 64 * 32)) + 2 * 10 * (2 * 8 * 1024) + 16 * 64,
    ),
    "conv2d": (
        {"n": 2, "c_in": 4, "h": 8, "w": 8, "c_out": 6, "r": 3, "s": 3, "stride": 2, "padding": 1, "groups": 2},
        2 * (2 * 6 * 4 * 4) * (2 * 9), 2 * (2 * 4 * 64 + 6 * 2 * 9 + 2 * 6 * 16),
    ),
    "batchnorm2d": ({"n": 2, "c": 3, "h": 4, "w": 5}, 0, 2 * 2 * 120 + 4 * 4 * 3),
    "maxpool2d": ({"n": 2, "c": 3, "h": 8, "w": 8, "r": 2, "stride": 2}, 0, 2 * (2 * 3 * 64 + 2 * 3 * 16)),
    # silu reads a half and writes it, mul reads that and the other half and writes: five halves.
    "swiglu": (ROWS, 0, 2 * 5 * 60),
    # neg and cat of halves: 1 + 2 * 1.0; x cos: x + table + out; turned sin: the same; add: 3.
    "rope": ({"batch": 1, "heads": 2, "seq": 4, "head_dim": 8}, 0, 2 * (64 + 128 + 2 * (64 + 32 + 64) + 192)),
    "gather": ({"table": 1000, "n": 7}, 0, 2 * 7 + 8 * 7 + 2 * 7),
    "cat": ({"rows": 4, "cols_a": 3, "cols_b": 5}, 0, 2 * 2 * 32),
    "embedding": ({"vocab": 1000, "dim": 16, "tokens": 7}, 0, 8 * 7 + 2 * 2 * 7 * 16),
    # A collective reads what a device has and writes what it ends with: all of it, or for a shard all and a quarter.
    **dict.fromkeys(("all_reduce", "alltoall", "broadcast"), ({"elements": 100, "devices": 4}, 0, 2 * 2 * 100)),
    **dict.fromkeys(("all_gather", "reduce_scatter"), ({"elements": 100, "devices": 4}, 0, 2 * 125)),
    **dict.fromkeys(("memcpy_h2d", "memcpy_d2h"), ({"bytes": 100}, 0, 200)),
    # Six picks of 8 x 12 (gate and up) and 6 x 8 (down); four experts' weights, the tokens in and out.
    "moe": (
        {"tokens": 3, "hidden": 8, "intermediate": 6, "top_k": 2, "experts": 4, "distribution": "balanced"},
        2 * (3 * 2) * 8 * 18, 2 * (4 * 8 * 18 + 2 * 3 * 8),
    ),
}  # fmt: skip


def entry(word: str, **changes: Any) -> dict[str, Any]:
    return {"op": word, **SAMPLES[word][0], **changes}


def test_every_word_has_a_sample() -> None:
    assert WORDS.keys() == SAMPLES.keys()


def test_every_word_is_predicted() -> None:
    """Rows that share a shape share a graph of symbols, but for the keys that choose among kernels."""
    fixed = {"count"}  # a row is one call
    rows = [{"op": word, "dtype": "bf16", "shape": {k: v for k, v in sizes.items() if k not in fixed}}
            for word, (sizes, *_) in SAMPLES.items()]  # fmt: skip
    assert [row["op"] for row in predict_rows(rows, "h100-sxm") if row["error"]] == []


@pytest.mark.parametrize("inputs", [65, 10**9, 10**12])
def test_a_step_has_a_limit_of_operands(inputs: int) -> None:
    with pytest.raises(rl.errors.UsageError, match=f"inputs={inputs}: a step has at most 64 operands"):
        rl.workload([{"op": "elementwise", "n": 8, "inputs": inputs, "count": 10_000}])


def test_damaged_workloads_are_refused_in_one_line() -> None:
    sound = [entry(word) for word in ("gemm", "elementwise", "moe", "all_reduce", "conv2d")]
    for made in mutants(json_mutated, sound, examples(150)):
        graph = refused(lambda made=made: rl.workload(made))
        if graph is not None:
            refused(lambda graph=graph: rl.estimate(graph, "h100-sxm").record())


@pytest.mark.parametrize("word", SAMPLES)
def test_every_word_builds_and_counts(word: str) -> None:
    totals = rl.count(rl.workload([entry(word)]))
    _, flops, moved = SAMPLES[word]
    assert (totals.flops, totals.bytes) == (flops, moved)


@pytest.mark.parametrize("word", SAMPLES)
@pytest.mark.parametrize("dtype", ["fp32", "torch.float16"])
def test_every_word_builds_in_other_formats(word: str, dtype: str) -> None:
    assert rl.estimate(rl.workload([entry(word, dtype=dtype)]), "h100-sxm", mode="graph").time > 0


def test_measured_rows_are_words() -> None:
    import csv

    from roofline.hardware.library import data_dir

    with (data_dir("measurements") / "h100-sxm" / "ops.csv").open() as file:
        rows = [(row["op"], row["dtype"], row["shape"]) for row in csv.DictReader(file)]
    for op, dtype, shape in rows[::20]:
        assert rl.count(rl.workload([{"op": op, "dtype": dtype, **json.loads(shape)}])).bytes > 0


def test_results_of_narrow_matmuls_are_wider() -> None:
    def moved(dtype: str) -> float:
        return rl.count(rl.workload([{"op": "gemm", "m": 8, "n": 8, "k": 8, "dtype": dtype}])).bytes

    assert moved("int8") == 2 * 64 + 4 * 64  # int32 out
    assert moved("fp8") == 2 * 64 + 2 * 64  # bf16 out
    assert moved("tf32") == 3 * 4 * 64


# --- counts ----------------------------------------------------------------------------------------------------------


def test_a_count_repeats_on_other_data_and_a_chain_goes_on() -> None:
    once, often = (rl.count(rl.workload([entry("gemm", count=n)])) for n in (1, 5))
    assert (often.flops, often.bytes, often.launches) == (5 * once.flops, 5 * once.bytes, 5)
    chain = rl.workload([{"op": "elementwise", "n": 8, "inputs": 1, "count": 5}])
    assert [node.inputs for node in chain.nodes][1:] == [node.outputs for node in chain.nodes][:-1]
    assert rl.count(rl.passes.fuse(chain)).bytes == 2 * 2 * 8


def test_a_chain_has_a_limit_and_a_count_none_but_exactness() -> None:
    with pytest.raises(rl.errors.UsageError, match=rf"a chain has at most {MAX_CHAIN} steps"):
        rl.workload([{"op": "elementwise", "n": 8, "count": MAX_CHAIN + 1}])
    assert rl.count(rl.workload([entry("gemm", count=MAX_SIZE)])).flops == MAX_SIZE * 2 * 105
    with pytest.raises(rl.errors.UsageError, match="a whole number from 1 to"):
        rl.workload([entry("gemm", count=MAX_SIZE + 1)])


# --- models ----------------------------------------------------------------------------------------------------------


def test_model_entries() -> None:
    graph = rl.workload([{"model": "gpt2", "phase": "decode", "batch": 4, "seq": 100, "dtype": "bf16"}])
    alone = rl.model("gpt2", phase="decode", dtype="bf16")
    assert not graph.symbols
    assert rl.count(graph).bytes == rl.count(alone, B=4, C=100).bytes
    assert graph.items == 4


def test_models_and_operators_in_one_list_keep_their_own_names_and_formats() -> None:
    work = [{"model": "resnet18", "batch": 2}, entry("gemm", dtype="fp32"), entry("gemm", dtype="fp32")]
    graph = rl.workload(work, dtype="fp16")
    parts = [rl.count(rl.workload([one], dtype="fp16")) for one in work]
    assert rl.count(graph).flops == sum(part.flops for part in parts)
    assert rl.count(graph).bytes == sum(part.bytes for part in parts)
    assert graph.tensors["1.gemm.a"].dtype == "fp32"
    assert len({node.name for node in graph.nodes}) == len(graph.nodes)


def test_a_context_apart_from_the_sequence() -> None:
    graph = rl.workload([{"model": "gpt2", "phase": "decode", "context": 77}])
    assert rl.count(graph).bytes == rl.count(rl.model("gpt2", phase="decode", dtype="bf16"), B=1, C=77).bytes


def test_a_model_without_its_sequence_says_so() -> None:
    with pytest.raises(rl.errors.UsageError, match=r"workload\[0\]: gpt2 prefill needs seq"):
        rl.workload([{"model": "gpt2"}])
    with pytest.raises(rl.errors.UsageError, match="needs context"):
        rl.workload([{"model": "gpt2", "phase": "decode"}])


# --- what is wrong ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "error", "fault"),
    [
        ({"op": "gem", "m": 1}, rl.errors.ModelDataError, r"work\[1\]: unknown op 'gem'; did you mean gemm"),
        ({"op": "zzzz"}, rl.errors.ModelDataError, "unknown op 'zzzz'; allowed: gemm, linear"),
        ({"op": ["gemm"]}, rl.errors.ModelDataError, "unknown op"),
        (entry("gemm", mm=3), rl.errors.ModelDataError, "unknown key 'mm'; allowed: m, n, k, "),
        (entry("softmax", colls=3), rl.errors.ModelDataError, "did you mean cols"),
        (entry("gemm", b=3), rl.errors.ModelDataError, "unknown key 'b'"),
        ({**entry("gemm"), 7: 1}, rl.errors.ModelDataError, "unknown key 7"),
        ({"op": "gemm", "m": 4}, rl.errors.ModelDataError, "gemm needs n, k"),
        ({"op": "bmm", "m": 4, "n": 4}, rl.errors.ModelDataError, "bmm needs k, b"),
        ({"op": "gemm", "m": 4, "n": 4, "k": None}, rl.errors.ModelDataError, "gemm needs k"),
        (entry("gemm", m="4"), rl.errors.UsageError, "m='4': expected a whole number from 1"),
        (entry("gemm", m=1.5), rl.errors.UsageError, "m=1.5"),
        (entry("gemm", m=-4), rl.errors.UsageError, "m=-4"),
        (entry("gemm", m=0), rl.errors.UsageError, "m=0"),
        (entry("gemm", m=True), rl.errors.UsageError, "m=True"),
        (entry("gemm", m=float("nan")), rl.errors.UsageError, "m=nan"),
        (entry("gemm", m=float("inf")), rl.errors.UsageError, "m=inf"),
        (entry("gemm", m=[4]), rl.errors.UsageError, r"m=\[4\]"),
        (entry("gemm", m=10**400), rl.errors.UsageError, "a whole number from 1 to 10"),
        (entry("gemm", count=0), rl.errors.UsageError, "count=0"),
        (entry("gemm", count="many"), rl.errors.UsageError, "count='many'"),
        (entry("conv2d", padding=-1), rl.errors.UsageError, "padding=-1: expected a whole number from 0"),
        (entry("conv2d", stride=0), rl.errors.UsageError, "stride=0"),
        (entry("conv2d", groups=3), rl.errors.UsageError, "groups=3 does not divide c_in=4"),
        (entry("conv2d", r=30), rl.errors.ShapeError, "kernel larger than its padded input"),
        (entry("attention", kv_heads=3), rl.errors.ShapeError, "8 query heads, which is not a multiple of 3"),
        (entry("attention", causal="yes"), rl.errors.UsageError, "causal='yes': expected true or false"),
        (entry("attention", causal=2), rl.errors.UsageError, "causal=2: expected true or false"),
        (entry("gemm", dtype="bf61"), rl.errors.UnknownDType, "did you mean bf16"),
        (entry("gemm", dtype=16), rl.errors.UnknownDType, "unknown number format '16'"),
        ({"m": 1}, rl.errors.ModelDataError, "either 'op' or 'model'"),
        ({"op": "gemm", "model": "gpt2"}, rl.errors.ModelDataError, "either 'op' or 'model'"),
        ("gemm", rl.errors.ModelDataError, "either 'op' or 'model', not gemm"),
        (None, rl.errors.ModelDataError, "either 'op' or 'model'"),
        ({"model": "gpt2-xxl", "seq": 1}, rl.errors.UnknownModel, "did you mean gpt2-xl"),
        ({"model": "gpt2", "sequence": 3}, rl.errors.ModelDataError, "unknown key 'sequence'"),
        ({"model": "gpt2", "phase": "decoding", "seq": 3}, rl.errors.UsageError, "did you mean decode"),
        ({"model": "gpt2", "seq": 0}, rl.errors.UsageError, "S=0"),
        ({"model": "gpt2", "seq": 8, "batch": "4"}, rl.errors.UsageError, "B='4'"),
        ({"model": "gpt2", "seq": 8, "count": -1}, rl.errors.UsageError, "count=-1"),
    ],
)  # fmt: skip
def test_a_wrong_entry_is_named_with_its_place(bad: Any, error: type[Exception], fault: str) -> None:
    with pytest.raises(error, match=fault) as caught:
        rl.workload([entry("relu"), bad], name="work")
    assert str(caught.value).startswith("work[1]: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("bad", [[], (), {}, "gemm", None, 3, {"op": "relu", "n": 1}])
def test_a_workload_is_a_list_of_at_least_one_entry(bad: Any) -> None:
    with pytest.raises(rl.errors.ModelDataError, match="a list of at least one entry"):
        rl.workload(bad)


def test_true_and_false_may_be_one_and_zero() -> None:
    plain = rl.count(rl.workload([entry("attention", causal=False)])).flops
    assert rl.count(rl.workload([entry("attention", causal=0)])).flops == plain
    assert rl.count(rl.workload([entry("attention", causal=1)])).flops < plain


def test_whole_floats_are_whole() -> None:
    assert rl.count(rl.workload([entry("gemm", m=3.0)])).flops == 2 * 105


# --- files -----------------------------------------------------------------------------------------------------------


def write(folder: Path, text: str) -> Path:
    file = folder / "mine.json"
    file.write_text(text, encoding="utf-8")
    return file


def test_a_file_is_a_list_a_table_or_one_entry(tmp_path: Path) -> None:
    one = entry("gemm")
    forms = [[one], {"work": [one]}, {"dtype": "bf16", "work": [one]}, one]
    graphs = [rl.load_program(write(tmp_path, json.dumps(form))) for form in forms]
    assert {graph.name for graph in graphs} == {"mine"}
    assert {rl.count(graph).bytes for graph in graphs} == {SAMPLES["gemm"][2]}


def test_the_format_of_a_file_and_of_the_caller(tmp_path: Path) -> None:
    file = write(tmp_path, json.dumps({"dtype": "fp32", "work": [entry("gemm")]}))
    assert rl.count(rl.load_program(file)).bytes == 2 * SAMPLES["gemm"][2]
    assert rl.count(rl.load_program(str(file), dtype="bf16")).bytes == SAMPLES["gemm"][2]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('[\n  {"op": "relu",\n   "n": }\n]', r"mine\.json: line 3, column 9: Expecting value"),
        ("", "line 1, column 1"),
        ("[", "line 1, column 2"),
        ('[{"op": "relu", "n": 1},]', "line 1, column"),
        ("[]", "a list of at least one entry"),
        ("{}", r"mine\[0\]: an entry is a table with either 'op' or 'model'"),
        ("3", "a list of at least one entry"),
        ("null", "a list of at least one entry"),
        ('{"work": []}', "a list of at least one entry"),
        ('{"work": 5}', "a list of at least one entry"),
        (
            '{"dtyp": "fp8", "work": [{"op": "relu", "n": 1}]}',
            "unknown key 'dtyp'; allowed: dtype, work; did you mean dtype",
        ),
        ('[{"op": "relu", "n": ' + "1" * 5000 + "}]", "digits"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_a_broken_file_is_named_with_the_place(tmp_path: Path, text: str, fault: str) -> None:
    with pytest.raises(rl.errors.ModelDataError, match=fault) as caught:
        rl.load_program(write(tmp_path, text))
    assert "mine" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_numbers_that_json_does_not_know_are_no_sizes(tmp_path: Path) -> None:
    with pytest.raises(rl.errors.UsageError, match="n=nan"):
        rl.load_program(write(tmp_path, '[{"op": "relu", "n": NaN}]'))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    latin = tmp_path / "latin.json"
    latin.write_bytes(b'["\xe9"]')
    for path, fault in (
        (tmp_path, "a directory; expected a JSON file"),
        (tmp_path / "absent.json", "no such file"),
        (latin, "cannot be read"),
        ("a\0b.json", "no such file"),
        ("x" * 5000, "cannot be read"),
    ):
        with pytest.raises(rl.errors.ModelDataError, match=fault):
            load_workload(path)


@pytest.mark.parametrize(("tokens", "ep"), [(1, 1), (6, 1), (100, 1), (6, 2), (6, 4)])
def test_experts_are_read_in_expectation_whoever_counts(tokens: int, ep: int) -> None:
    # Of E experts, T tokens that draw k each pick E (1 - (1 - k/E)^T): 6.576 of 8 for 6 tokens and k = 2, not 7.
    shape = {"tokens": tokens, "hidden": 4096, "intermediate": 14336, "top_k": 2, "experts": 8, "ep": ep}
    graph = rl.workload([{"op": "moe", **shape}], dtype="bf16")
    experts = 8 * (1 - (1 - 2 / 8) ** tokens) / ep
    assert rl.count(graph).rows[0].kernel.read == pytest.approx(
        2 * (3 * 4096 * 14336 * experts + 4096 * tokens), rel=1e-3
    )
    (row,) = rl.predict([{"op": "moe", "dtype": "bf16", "shape": shape}], "h100-sxm").to_dict("records")
    assert row["bytes"] == pytest.approx(rl.count(graph).bytes, rel=1e-9)
    assert row["floor_us"] == pytest.approx(1e6 * rl.estimate(graph, "h100-sxm").floor, rel=1e-9)
