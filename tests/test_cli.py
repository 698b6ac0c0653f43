"""The command line: outputs, exit codes, and one line for every wrong input."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import Run, fails

import roofline as rl
from roofline.cli import options, tables
from roofline.cli.options import whole_numbers
from roofline.cli.output import plain
from roofline.ir.units import format_si

DECODE = ["llama-3-8b", "h100-sxm", "-S", "2048", "--phase", "decode", "--mode", "graph"]
GEMM = [{"op": "gemm", "m": 512, "n": 512, "k": 512}]


def shell(*args: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run it as a process."""
    environment = {**os.environ, "COLUMNS": "80", **options.pop("env", {})}
    command = [sys.executable, "-m", "roofline", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, **options)


def save(path: Path, data: object) -> Path:
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return path


# --- for a person -----------------------------------------------------------------------------------------------------

TABLES = [
    ["chips"],
    ["chips", "h100-sxm"],
    ["chips", "tpu-v5e"],
    ["models"],
    ["models", "mixtral-8x7b"],
    ["models", "resnet50"],
    ["estimate", *DECODE, "-B", "8"],
    ["estimate", *DECODE, "-B", "1,8,32,128"],
    ["estimate", "llama-3-8b", "h100-sxm,rtx-pro-6000-server,l40s", "-S", "2048"],
    ["estimate", "llama-3-8b", "h100-sxm,l40s", "-S", "2048,131072", "-B", "1:1024:341"],
    ["estimate", "deepseek-v3", "h100-sxm", "-S", "163840", "-B", "1024"],
    ["estimate", "resnet50", "h100-sxm", "-B", "32"],
    ["estimate", "llama-3-8b", "xeon-8480", "-S", "512"],
    ["estimate", "llama-3-8b", "xeon-8480,h100-sxm", "-S", "512"],
    ["batch", *DECODE],
    ["batch", "resnet50", "h100-sxm", "--latency", "10ms"],
    ["check", *DECODE, "-B", "32", "--measured", "11ms"],
    ["check", *DECODE, "-B", "32", "--measured", "1s"],
    ["--help"],
    ["estimate", "--help"],
]


@pytest.mark.parametrize("args", TABLES, ids=" ".join)
def test_output_fits_80_columns_without_colours_when_piped(run: Run, args: list[str]) -> None:
    result = run(*args)
    assert result.code in (0, 1)
    assert result.err == ""
    assert max(map(len, result.out.splitlines())) <= 80
    assert "\x1b" not in result.out
    assert "…" not in result.out
    assert not re.search(r"\bnan\b|\binf\b|None", result.out)


def test_memory_that_nobody_published_is_no_error_and_no_verdict(run: Run) -> None:
    row = next(
        line for line in run("estimate", "llama-3-8b", "xeon-8480", "-S", "512").out.splitlines() if "capac" in line
    )
    assert row.split() == ["capacity", "of", "xeon-8480", "-", "not", "published"]
    for command in ("estimate", "compare"):
        lines = run(command, "llama-3-8b", "xeon-8480,h100-sxm", "-S", "512").out.splitlines()
        column = next(line for line in lines if line.startswith("chip") and "fits" in line).index("fits")
        rows = [line for line in lines if re.match(r"(xeon|h100).* GiB ", line)]
        fits = [line[column:].split()[0] for line in rows]
        assert fits == ["-", "yes"], command


def test_colours_on_request(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[" in run("check", *DECODE, "--measured", "1ms").out


def test_estimate_of_one_point_names_it_all(run: Run) -> None:
    out = run("estimate", *DECODE, "-B", "8").out
    est = rl.estimate(rl.model("llama-3-8b", phase="decode"), "h100-sxm", B=8, S=2048, mode="graph")
    for word in ("floor", "bound", "MFU", "token/s", "weights", "KV cache", "total", "capacity", "fits",
                 "slowest 5 of", "efficiencies", "not modelled", est.kernel_rows()[0]["kernel"]):  # fmt: skip
        assert word in out
    for seconds in (est.time, est.low, est.high, est.floor):
        assert format_si(seconds, "s") in out


def test_estimate_by_level_fits_80_columns_and_names_each_bound(run: Run) -> None:
    lines = run("estimate", *DECODE, "-B", "8", "--by-level").out.splitlines()
    table = lines[next(at for at, line in enumerate(lines) if line.startswith("by level")) :]
    assert max(map(len, table)) <= 80
    for level in ("HBM", "L2", "SRAM", "compute"):
        assert sum(f" {level} " in line for line in table) == 5, level
    assert sum(line.endswith("bound") for line in table) == 5
    (kernel, *_) = run("estimate", *DECODE, "-B", "8", "--by-level", "--json").data["kernels"]
    main = kernel["levels"][0]
    assert (main["level"], kernel["bound_level"]) == ("HBM", "HBM")
    assert main["share"] == pytest.approx(main["bytes"] / rl.chip("h100-sxm").bandwidth / kernel["each_s"])
    fails(run("estimate", *DECODE, "-B", "1,8", "--by-level"), "--by-level", "one point")


def test_estimate_says_that_the_host_sets_the_pace_and_what_a_graph_takes(run: Run) -> None:
    decode = ("estimate", "gpt2", "h100-sxm", "--phase", "decode", "-B", "1", "-S", "64")
    graph = run(*decode, "--mode", "graph", "--json").row["time_s"]
    said = next(line for line in run(*decode).out.splitlines() if line.startswith("CUDA graph"))
    assert format_si(graph, "s") in said
    assert "the host's" in said
    assert run(*decode, "--json").row["device_s"] == graph
    assert "CUDA graph" not in run(*decode, "--host", "0.001").out
    assert run(*decode, "--host", "0.5", "--json").row["host_s"] == run(*decode, "--json").row["host_s"] / 2
    fails(run(*decode, "--host", "fast.toml"), "fast.toml", "no such file")


@pytest.mark.parametrize("host", ["", " ", "0", "-1", "nan", "1e300", "1e-300"])
@pytest.mark.parametrize("command", ["estimate gpt2 h100-sxm -S 64", "train gpt2 h100-sxm -B 1 -S 64"])
def test_a_host_is_a_factor_that_a_host_can_have(run: Run, command: str, host: str) -> None:
    fails(run(*command.split(), "--host", host), "host", "such as 0.5")


def test_training_runs_on_the_host_that_is_given(run: Run) -> None:
    step = ("train", "gpt2", "h100-sxm", "-B", "1", "-S", "128")
    slow, fast = (run(*step, *more, "--json").data["time_s"] for more in ((), ("--host", "0.5")))
    assert 0.45 * slow < fast < 0.75 * slow
    quick = rl.chip("h100-sxm").replace(host=rl.chip("h100-sxm").efficiency.host / 2)
    assert rl.training.train("gpt2", quick, batch=1, seq=128).time == pytest.approx(fast)


@pytest.mark.parametrize("time", ["-5 us", "0 s"])
def test_a_host_file_gives_a_time_above_zero(run: Run, tmp_path: Path, time: str) -> None:
    (tmp_path / "host.toml").write_text(f'[efficiency]\nhost = "{time}"\n')
    result = run("estimate", "resnet18", "h100-sxm", "--host", str(tmp_path / "host.toml"))
    fails(result, f"efficiency.host={time}", "above zero")


def test_estimate_says_what_does_not_fit(run: Run) -> None:
    result = run("estimate", "llama-3-70b", "h100-sxm", "-S", "128")
    assert result.code == 0
    assert "does not fit" in result.out


def test_one_row_a_point(run: Run) -> None:
    out = run("estimate", *DECODE, "-B", "1,8,32").out
    assert [line.split()[0] for line in out.splitlines() if " ms " in line] == ["1", "8", "32"]
    assert tables.span(7.494e-3, 13.07e-3) == "7.49-13.1 ms"


def test_batch_says_why(run: Run) -> None:
    assert "no longer fits" in run("batch", *DECODE).out
    assert "takes longer than 12 ms" in run("batch", *DECODE, "--latency", "12ms").out
    assert "ridge" in run("batch", "resnet50", "h100-sxm", "--mode", "graph").out
    said = "the ridge is of all kernels in sum, a bound of the kernels that take most"
    bert = ("bert-base-uncased", "l4", "--mode", "graph", "-S")
    assert said in " ".join(run("batch", *bert, 384).out.split())  # at batch 1 compute-bound, and the ridge is at 2
    assert said not in " ".join(run("batch", *bert, 128).out.split())


def test_check_says_the_verdict_first(run: Run) -> None:
    assert run("check", *DECODE, "--measured", "1us").out.startswith("impossible: ")
    out = run("check", *DECODE, "--measured", "1s").out
    assert out.startswith("very slow: ")
    assert "where it went" in out
    assert "what would help" in out


def test_chip_has_every_figure_and_its_source(run: Run) -> None:
    out, chip = run("chips", "h100-sxm").out, rl.chip("h100-sxm")
    for name, peak in {**chip.matrix, **chip.vector}.items():
        assert format_si(peak.flops, "FLOP/s") in out
        assert name in out
    assert "[1]" in out
    assert chip.memory[0].source[:20] in out


# --- for a program ----------------------------------------------------------------------------------------------------


def test_estimate_json_has_a_row_per_point(run: Run) -> None:
    data = run("estimate", *DECODE, "-B", "8", "--json").row
    keys = "model chip phase mode batch context time_s low_s high_s floor_s flops bytes intensity bound tokens_per_s"
    assert set(keys.split()) < set(data)
    assert {"weights", "kv_cache", "activations", "total"} < set(data["memory_bytes"])
    assert (data["chip"], data["phase"], data["mode"], data["batch"], data["context"]) == (
        "h100-sxm", "decode", "graph", 8, 2048)  # fmt: skip
    assert data["calibrated"] in ("measured", "transferred", "prior")
    assert data["low_s"] <= data["time_s"] <= data["high_s"]


def test_estimate_json_of_several_points_says_which(run: Run) -> None:
    data = run("estimate", "llama-3-8b", "h100-sxm,l40s", "-S", "64", "-B", "1:3", "--json").data
    assert (data["chip"], data["sizes"]) == (["h100-sxm", "l40s"], {"batch": [1, 2, 3], "seq": 64})
    assert [(row["chip"], row["batch"]) for row in data["rows"]] == [
        (chip, batch) for chip in ("h100-sxm", "l40s") for batch in (1, 2, 3)
    ]


def test_seq_means_what_the_phase_has(run: Run) -> None:
    for phase in ("prefill", "decode", "forward"):
        data = run("estimate", "gpt2", "h100-sxm", "-S", "64", "--phase", phase, "--json").row
        assert (data["phase"], data["context" if phase == "decode" else "seq"]) == (phase, 64)


def test_csv_is_flat_and_equal(run: Run) -> None:
    rows = list(csv.DictReader(io.StringIO(run("estimate", *DECODE, "-B", "1,8", "--csv").out)))
    data = run("estimate", *DECODE, "-B", "1,8", "--json").data
    for row, record in zip(rows, data["rows"], strict=True):
        assert float(row["time_s"]) == record["time_s"]
        assert float(row["memory_bytes_total"]) == record["memory_bytes"]["total"]
        assert not [value for value in row.values() if value and value[0] in "[{"]


def test_batch_json(run: Run) -> None:
    data = run("batch", *DECODE, "--memory-limit", "72GiB", "--latency-limit", "50ms", "--json").data
    assert {"best_batch", "ridge_batch", "limit", "rows"} < set(data)
    assert data["memory_limit_bytes"] == 72 * 2**30
    assert data["latency_limit_s"] == 0.05
    assert data["best_batch"] in [point["batch"] for point in data["rows"]]


def test_check_json(run: Run) -> None:
    data = run("check", *DECODE, "--measured", "1s", "--json").data
    assert (data["verdict"], data["measured_s"]) == ("very_slow", 1.0)
    assert {"label", "explains_s", "fix"} < set(data["causes"][0])
    assert {"change", "time_s", "saves_s"} < set(data["advice"][0])


def test_catalogue_json(run: Run) -> None:
    assert {row["chip"] for row in run("chips", "--json").data["rows"]} == set(rl.chips())
    assert {row["model"] for row in run("models", "--json").data["rows"]} == set(rl.models())
    assert run("chips", "h100-sxm", "--json").data["matrix"]["bf16"]["source"]
    data = run("models", "llama-3-8b", "--json").data
    assert (data["parameters"], data["sizes"]["layers"]) == (8_030_261_248, 32)


def test_json_has_plain_finite_values() -> None:
    import numpy as np

    value = {"a": np.float64("inf"), "b": np.arange(2), "c": (np.bool_(True), np.int64(3), float("nan"), "x", None)}
    assert plain(value) == {"a": None, "b": [0, 1], "c": [True, 3, None, "x", None]}


def test_options_reach_the_estimate(run: Run) -> None:
    base = run("estimate", *DECODE, "--json").row
    int8 = run("estimate", *DECODE, "--weights", "int8", "--json").row
    assert int8["memory_bytes"]["weights"] < 0.6 * base["memory_bytes"]["weights"]
    cache = run("estimate", *DECODE, "--cache", "int8", "--json").row
    scaled = (128 * 8 + 16) / (128 * 16)  # a row of a head is 128 numbers and a 16-bit scale
    assert cache["memory_bytes"]["kv_cache"] == scaled * base["memory_bytes"]["kv_cache"]
    fp32 = run("estimate", *DECODE, "--dtype", "fp32", "--json").row
    assert fp32["memory_bytes"]["weights"] == 2 * base["memory_bytes"]["weights"]
    tf32 = ["estimate", "bert-base-uncased", "h100-sxm", "-S", "512", "-B", "32", "--json"]
    assert run(*tf32, "--tf32").row["time_s"] < run(*tf32).row["time_s"]


# --- sources of programs ----------------------------------------------------------------------------------------------


def test_workload_and_config(run: Run, tmp_path: Path) -> None:
    assert run("estimate", save(tmp_path / "work.json", GEMM), "h100-sxm", "--json").row["flops"] == 2 * 512**3
    config = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 4,
              "num_attention_heads": 8, "vocab_size": 1000}  # fmt: skip
    save(tmp_path / "config.json", config)
    result = run("estimate", tmp_path, "h100-sxm", "-S", "64", "--json")
    assert result.row["memory_bytes"]["weights"] == 2 * 341_568
    assert "bf16 is assumed" in result.err


def test_own_chip(run: Run, tmp_path: Path) -> None:
    text = 'name = "mine"\nmemory_bandwidth = "2 TB/s"\nmemory_capacity = "64 GB"\n[matrix]\nbf16 = "400 TFLOP/s"\n'
    chip = save(tmp_path / "mine.toml", text)
    assert run("estimate", "llama-3-8b", chip, "-S", "64", "--json").row["chip"] == "mine"
    assert "given by the user" in run("chips", chip).out


def test_a_broken_file_does_not_hide_the_others(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models").mkdir()
    save(tmp_path / "models" / "broken.toml", 'family = "decoder"\n')
    monkeypatch.setenv("ROOFLINE_PATH", str(tmp_path))
    result = run("models", "--json")
    assert len(result.data["rows"]) == len(rl.models()) - 1
    assert "broken is left out" in result.err


# --- sizes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [("8", 8), ("1,8,32", [1, 8, 32]), ("1:4", [1, 2, 3, 4]), ("1:8:3", [1, 4, 7]), (" 1 , 2", [1, 2]), ("8:8", 8)],
)
def test_whole_numbers(text: str, found: object) -> None:
    assert whole_numbers(text, "-B") == found


@pytest.mark.parametrize(
    "text",
    ["", "0", "-5", "-1:4", "1.5", "2k", "1e3", "nan", "inf", "1,,2", "4:1", "1:4:0", "1:2:3:4", "0x8", "٣", "1_000",
     "9" * 30, "9" * 5000, "1:10001", "1:9007199254740993", "8;9", "B"],
)  # fmt: skip
def test_no_whole_numbers(run: Run, text: str) -> None:
    fails(run("estimate", "gpt2", "h100-sxm", "-S", "8", "-B", text), "-B")


def test_too_many_points(run: Run) -> None:
    fails(run("estimate", "gpt2", "h100-sxm,l40s", "-S", "1:200", "-B", "1:200"), "80000 points", "10000")


def test_a_size_without_use_is_ignored_with_a_note(run: Run) -> None:
    result = run("estimate", "resnet50", "h100-sxm", "-S", "5", "--json")
    assert (result.code, result.row["seq"]) == (0, None)
    assert result.err == "roofline: note: resnet50 forward has no use for a sequence length; -S is ignored\n"


@pytest.mark.parametrize(
    ("args", "option"),
    [(["gpt2", "h100-sxm"], "-S"), (["gpt2", "h100-sxm", "--phase", "decode"], "-S"),
     (["t5-base", "h100-sxm", "--phase", "decode", "-S", "64"], "-C"),
     (["t5-base", "h100-sxm", "--phase", "decode", "-C", "64"], "-S")],
)  # fmt: skip
def test_a_missing_size_names_its_option(run: Run, args: list[str], option: str) -> None:
    fails(run("estimate", *args), f"give it with {option}")


def test_decoder_with_its_own_context(run: Run) -> None:
    args = ("estimate", "t5-base", "h100-sxm", "--phase", "decode", "-S", "64", "-C", "128", "--json")
    assert run(*args).code == 0


# --- exit codes and errors --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("measured", "code"), [("1us", 1), ("9ms", 0), ("100ms", 1), ("10s", 1)])
def test_exit_code_of_check(run: Run, measured: str, code: int) -> None:
    assert run("check", *DECODE, "--measured", measured).code == code


WRONG = [
    (["estimate", "llama-3-8b", "h100-smx", "-S", "8"], ["h100-smx", "did you mean h100-sxm"]),
    (["estimate", "llama-3-8b", "h100", "-S", "8"], ["matches several", "h100-pcie"]),
    (["estimate", "llama-3-8b", "h100-sxm,nope", "-S", "8"], ["nope"]),
    (["estimate", "lama-3-8b", "h100-sxm", "-S", "8"], ["did you mean llama-3-8b"]),
    (["estimate", "llama-3-8b", "h100-sxm", "-S", "8", "--mode", "grph"], ["did you mean graph"]),
    (["estimate", "llama-3-8b", "h100-sxm", "-S", "8", "--phase", "decod"], ["did you mean decode"]),
    (["estimate", "llama-3-8b", "h100-sxm", "-S", "8", "--dtype", "bf61"], ["bf61", "did you mean bf16"]),
    (["estimate", "llama-3-8b", "h100-sxm", "-S", "8", "--json", "--csv"], ["--json and --csv exclude each other"]),
    (["estimate", "llama-3-8b", "h100-sxm", "-S", "8", "--mod", "graph"], ["--mod", "did you mean --mode"]),
    (["estimate", "llama-3-8b", "h100-sxm", "-S"], ["-S", "argument"]),
    (["estimate", "llama-3-8b"], ["CHIP", "roofline estimate --help"]),
    (["estimate", "llama-3-8b", "h100-sxm", "extra", "-S", "8"], ["extra"]),
    (["estimate", "", "h100-sxm"], ["model"]),
    (["estimate", "gpt2", "", "-S", "8"], ["chip"]),
    (["estimate", "gpt2", "groq-lpu-v1", "-S", "8"], ["fp32", "it has", "--dtype fp16"]),
    (["estimte"], ["estimte"]),
    (["--versio"], ["did you mean --version"]),
    (["check", *DECODE], ["--measured"]),
    (["check", *DECODE, "--measured", "41kg"], ["kg", "41 ms"]),
    (["check", *DECODE, "--measured", "41GB"], ["GB"]),
    (["check", *DECODE, "--measured", "0ms"], ["above zero"]),
    (["check", *DECODE, "--measured", "-1ms"], ["above zero"]),
    (["check", *DECODE, "--measured", "nan"], ["nan"]),
    (["check", *DECODE, "--measured", "1e999s"], ["finite"]),
    (["check", *DECODE, "-B", "1,2", "--measured", "1s"], ["-B", "one number"]),
    (["batch", "llama-3-70b", "h100-sxm", "-S", "2048", "--phase", "decode"], ["needs", "weights", "would fit"]),
    (["batch", *DECODE, "--memory", "8GiB"], ["would fit"]),
    (["batch", *DECODE, "--memory-limit", "72"], ["--memory-limit 72", "no unit", "72GiB, 72GB or 72MiB?"]),
    (["batch", *DECODE, "--latency", "20"], ["--latency 20", "no unit", "20us, 20ms or 20s?"]),
    (["check", *DECODE, "-B", "1", "--measured", "41"], ["--measured 41", "no unit", "41ms"]),
    (["batch", *DECODE, "--memory", "72ms"], ["ms", "GiB"]),
    (["batch", *DECODE, "--memory", "-1GiB"], ["positive"]),
    (["batch", *DECODE, "--latency", "1us"], ["batch 1 takes"]),
    (["batch", "llama-3-8b", "h100-sxm", "-S", "8,16"], ["-S", "one number"]),
    (["plot", *DECODE], ["--output"]),
    (["plot", *DECODE, "-B", "1,2", "--measured", "1s", "-o", "x.svg"], ["--measured", "one"]),
    (["plot", "llama-3-8b", "h100-sxm", "-B", "1:3", "-S", "8,16", "-o", "x.svg"], ["axis"]),
    (["chips", "h100-smx"], ["did you mean h100-sxm"]),
    (["models", "lama-3-8b"], ["did you mean llama-3-8b"]),
    (["models", "bad\nname\x1b[31m"], ["bad"]),
]


@pytest.mark.parametrize(
    ("args", "words"), WRONG, ids=[" ".join(args)[:60].encode("unicode_escape").decode() for args, _ in WRONG]
)
def test_wrong_input_is_one_line(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                 args: list[str], words: list[str]) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    result = run(*args)
    fails(result, *words)
    assert "\x1b" not in result.err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("m.toml", "name = [", ["m.toml", "not valid TOML"]),
        ("m.toml", 'name = "m"\ndtype = "bf16"\n', ["m.toml", "family"]),
        ("m.toml", b"\xff\xfe", ["m.toml"]),
        ("m.json", "[{", ["m.json", "line 1"]),
        ("m.json", '[{"op": "gem", "m": 1}]', ["gem", "did you mean gemm"]),
        ("m.json", '[{"op": "gemm", "m": -1, "n": 1, "k": 1}]', ["m=-1"]),
        ("m.json", '{"model_type": "lama"}', ["did you mean llama"]),
    ],
)
def test_broken_files(run: Run, tmp_path: Path, name: str, content: str | bytes, words: list[str]) -> None:
    file = tmp_path / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    fails(run("estimate", file, "h100-sxm", "-S", "8"), *words)


def test_folders_as_files(run: Run, tmp_path: Path) -> None:
    (tmp_path / "x.toml").mkdir()
    fails(run("estimate", tmp_path, "h100-sxm"), "without config.json")
    fails(run("estimate", tmp_path / "x.toml", "h100-sxm"), "a directory")
    fails(run("estimate", "gpt2", tmp_path, "-S", "8"), "a directory")
    fails(run("chips", tmp_path / "x.toml"), "a directory")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="the superuser may read everything")
def test_unreadable_file(run: Run, tmp_path: Path) -> None:
    save(tmp_path / "m.toml", "").chmod(0)
    fails(run("estimate", tmp_path / "m.toml", "h100-sxm"), "cannot be read")


# --- plots ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("batch", "kind"), [("8", "roofline"), ("1:8", "batch sweep"), ("1,2,4", "batch sweep")])
@pytest.mark.parametrize(("suffix", "magic"), [(".svg", b"<?xml"), (".png", b"\x89PNG")])
def test_plot(run: Run, tmp_path: Path, batch: str, kind: str, suffix: str, magic: bytes) -> None:
    file = tmp_path / f"out{suffix}"
    result = run("plot", "gpt2", "h100-sxm", "-S", "64", "--phase", "decode", "-B", batch, "-o", file)
    assert (result.code, result.err) == (0, "")
    assert str(file) in result.out.replace("\n", "")  # a path longer than a line goes on in the next
    assert kind in " ".join(result.out.split())
    assert file.read_bytes().startswith(magic)
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_plot_with_a_measured_time(run: Run, tmp_path: Path) -> None:
    args = ("plot", "gpt2", "h100-sxm", "-S", "64", "-o", tmp_path / "x.svg", "--measured")
    assert run(*args, "8ms").code == 0
    assert "roofline: note: " in run(*args, "1ns").err


def test_plot_of_several_chips_and_programs(run: Run, tmp_path: Path) -> None:
    page, table = tmp_path / "x.html", tmp_path / "x.csv"
    sizes = ("-S", "64", "--phase", "decode", "-B", "8")
    result = run("plot", "gpt2", "h100-sxm,l4", *sizes, "-o", page, "-o", table, "--dark")
    assert (result.code, result.err) == (0, "")
    assert "2 rooflines" in " ".join(result.out.split())
    assert "#14181e" in page.read_text(encoding="utf-8")
    assert {line.split(",")[0] for line in table.read_text(encoding="utf-8").splitlines()} == {"of", "h100-sxm", "l4"}
    assert run("plot", "gpt2", "l4", "--also", "opt-1.3b", *sizes, "-o", tmp_path / "y.svg").code == 0
    fails(run("plot", "gpt2", "l4,t4", "-B", "1,2", "-S", "64", "-o", page), "one point")
    fails(run("plot", "gpt2", "l4", "-B", "1", "-S", "64", "--latency-limit", "9ms", "-o", page), "sweep over batches")


def test_plot_of_a_sweep_with_limits_and_times(run: Run, tmp_path: Path) -> None:
    args = ("plot", "gpt2", "l4", "-S", "64", "-B", "1,8,64", "--latency-limit", "20ms", "-o", tmp_path / "x.csv")
    assert run(*args, "--measured", "1=9ms,8=30ms").code == 0
    rows = (tmp_path / "x.csv").read_text(encoding="utf-8").splitlines()
    assert [row.split(",")[0] for row in rows[1:]] == ["expected"] * 3 + ["measured"] * 2
    fails(run(*args, "--measured", "9ms"), "BATCH=TIME")


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("missing/x.svg", "no directory"),
        ("folder.svg", "a directory"),
        (".", "suffix"),
        ("x.gif", ".svg"),
        ("x", ".svg"),
    ],
)
def test_plot_that_cannot_be_written(run: Run, tmp_path: Path, output: str, words: str) -> None:
    (tmp_path / "folder.svg").mkdir()
    fails(run("plot", "gpt2", "h100-sxm", "-S", "64", "-o", tmp_path / output), words)
    assert [path.name for path in tmp_path.iterdir()] == ["folder.svg"]


# --- as a process -----------------------------------------------------------------------------------------------------


def test_version_and_help() -> None:
    result = shell("--version")
    assert (result.returncode, result.stdout) == (0, f"roofline {rl.__version__}\n")
    result = shell()
    assert result.returncode == 0
    assert "estimate" in result.stdout


def test_error_of_a_process() -> None:
    result = shell("estimate", "llama-3-8b", "h100-smx", "-S", "8")
    assert (result.returncode, result.stdout) == (2, "")
    assert (
        result.stderr == "roofline: error: chip 'h100-smx' is not known; did you mean h100-sxm, h800-sxm, h200-sxm?\n"
    )


def test_script_and_module_are_the_same() -> None:
    script = Path(sys.executable).with_name("roofline")
    if not script.exists():
        pytest.skip("not installed as a script here")
    ran = subprocess.run([script, "--version"], capture_output=True, text=True, timeout=120)
    assert ran.stdout == shell("--version").stdout


def test_names_outside_of_the_encoding(tmp_path: Path) -> None:
    file = tmp_path / "größe.json"
    save(file, GEMM)
    result = shell("estimate", str(file), "h100-sxm", env={"PYTHONIOENCODING": "ascii"})
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.isascii()


@pytest.mark.skipif(os.name != "posix", reason="pipes of POSIX")
@pytest.mark.parametrize("args", [["chips"], ["estimate", *DECODE, "-B", "1:2000", "--json"]])
def test_nobody_reads_the_output(args: list[str]) -> None:
    command = [sys.executable, "-m", "roofline", *args]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(120) == 141


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_a_full_disk_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "roofline", "chips"]
        ran = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
    assert ran.returncode == 2
    assert ran.stderr.count("\n") == 1


# --- faults of roofline itself ----------------------------------------------------------------------------------------


def broken(*_: object) -> None:
    raise KeyError("lost\nkey")


def test_a_fault_is_one_line_that_asks_for_a_report(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "load_program", broken)
    result = run("estimate", "gpt2", "h100-sxm")
    assert result.code == 70
    assert result.err.count("\n") == 1
    assert "KeyError" in result.err
    assert "report" in result.err


def test_a_fault_shows_its_place_on_request(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "load_program", broken)
    monkeypatch.setenv("ROOFLINE_DEBUG", "1")
    assert "Traceback" in run("estimate", "gpt2", "h100-sxm").err


def test_interrupted(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(options, "load_program", interrupt)
    result = run("estimate", "gpt2", "h100-sxm")
    assert (result.code, result.err.strip()) == (130, "")


def test_a_text_that_is_no_number_is_told_in_our_words(run: Run) -> None:
    fails(run("estimate", "gpt2", "h100-sxm", "-S", "8", "--tp", "1,2"), "--tp", "expected a whole number")
