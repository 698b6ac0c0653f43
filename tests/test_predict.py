"""Bulk prediction: a row in, a row out, and a reason where there is no prediction."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import roofline as rl
from roofline.analysis.prediction import COLUMNS, output_columns, parse_shape, predict_rows, uncalibrated
from roofline.cli.predict import predict as command
from roofline.hardware.library import data_dir
from roofline.ir.csvfile import read_rows, write_rows

H100 = "h100-sxm"
SHIPPED = data_dir("measurements") / H100


def one(chip: str | None = H100, **row: Any) -> dict[str, Any]:
    (found,) = predict_rows([row], chip)
    return found


def op(word: str, dtype: str = "bf16", **shape: Any) -> dict[str, Any]:
    return one(op=word, dtype=dtype, shape=json.dumps(shape))


# Operators.


def test_counts_of_a_matmul() -> None:
    found = op("gemm", m=4096, n=4096, k=4096)
    assert found["flops"] == 2 * 4096**3
    assert found["bytes"] == found["memory_bytes"] == 3 * 2 * 4096**2
    assert found["activation_bytes"] == 2 * 4096**2
    assert found["floor_us"] == pytest.approx(2 * 4096**3 / 989.4e12 * 1e6)
    assert found["floor_us"] <= found["low_us"] <= found["predicted_us"] <= found["high_us"]
    assert found["error"] is None
    assert found["calibrated"] == "measured"


def test_elementwise_counts_vector_operations() -> None:
    found = op("add", n=1000)
    assert (found["flops"], found["bytes"]) == (1000, 6000)


def test_several_kernels_are_summed() -> None:
    shape = {"batch": 1, "heads": 8, "kv_heads": 8, "q_len": 512, "kv_len": 512, "head_dim": 64, "causal": False}
    naive, fused = op("attention_naive", **shape), op("attention_sdpa", **shape)
    assert naive["bytes"] > fused["bytes"]
    assert naive["memory_bytes"] == fused["memory_bytes"] == 4 * 2 * 8 * 512 * 64


def test_rows_keep_their_order_and_columns() -> None:
    rows = [
        {"op": "relu", "dtype": "fp32", "shape": {"n": n}, "mine": n, "kernel_us": "?"} for n in (5, 2**20, 7, 2**26)
    ]
    found = list(predict_rows(rows, H100))
    assert [row["mine"] for row in found] == [5, 2**20, 7, 2**26]
    assert [row["bytes"] for row in found] == [8 * n for n in (5, 2**20, 7, 2**26)]
    assert list(found[0]) == ["op", "dtype", "shape", "mine", "kernel_us", *COLUMNS]


def test_alone_or_among_others_is_the_same() -> None:
    with read_rows(SHIPPED / "ops.csv") as (_, rows):
        table = list(rows)
    found = list(predict_rows(table, H100))
    assert not any(row["error"] for row in found)
    for at in range(0, len(table), 97):
        alone = next(predict_rows([table[at]], H100))
        assert alone["predicted_us"] == pytest.approx(found[at]["predicted_us"])
        assert all(alone[key] == found[at][key] for key in ("flops", "bytes", "memory_bytes", "bound"))


def test_warm_is_no_slower_than_cold() -> None:
    row = {"op": "gemm", "dtype": "bf16", "shape": {"m": 512, "n": 512, "k": 512}}
    cold, warm = (next(predict_rows([row], H100, regime=regime))["predicted_us"] for regime in ("cold", "warm"))
    assert warm <= cold


def test_without_calibration() -> None:
    row = {"op": "relu", "dtype": "bf16", "shape": {"n": 2**26}}
    found = next(predict_rows([row], H100, calibration=False))
    assert found["calibrated"] == "prior"
    assert uncalibrated(rl.chip(H100)).bandwidth == rl.chip(H100).bandwidth


def test_a_column_of_chips_wins() -> None:
    row = {"op": "relu", "dtype": "bf16", "shape": {"n": 2**26}}
    mixed = list(predict_rows([{**row, "chip": "t4"}, {**row, "chip": ""}, {**row, "chip": "t5"}], H100))
    assert mixed[0]["floor_us"] > mixed[1]["floor_us"]
    assert "t5" in mixed[2]["error"]
    assert "no chip" in one(None, **row)["error"]
    with pytest.raises(rl.errors.UnknownChip):
        predict_rows([row], "h1000")


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"op": "gem", "dtype": "bf16", "shape": "{}"}, "did you mean gemm"),
        ({"op": "gemm", "dtype": "bf16", "shape": '{"m": NaN, "n": 1, "k": 1}'}, "NaN is no size"),
        ({"op": "gemm", "dtype": "bf16", "shape": '{"m": 1e999, "n": 1, "k": 1}'}, "whole number"),
        ({"op": "gemm", "dtype": "bf16", "shape": '{"m": 1.5, "n": 1, "k": 1}'}, "whole number"),
        ({"op": "gemm", "dtype": "bf16", "shape": '{"m": 1, "n": 1}'}, "needs k"),
        ({"op": "gemm", "dtype": "bf16", "shape": "{m: 1}"}, "not JSON"),
        ({"op": "gemm", "dtype": "bf16", "shape": "[1, 2]"}, "JSON object"),
        ({"op": "gemm", "dtype": "bf16", "shape": "[" * 100_000}, "not JSON"),
        ({"op": "gemm", "dtype": "bf16"}, "no shape"),
        ({"op": "gemm", "shape": '{"m": 1, "n": 1, "k": 1}'}, "no dtype"),
        ({"op": "relu", "dtype": "bf17", "shape": '{"n": 8}'}, "did you mean bf16"),
        ({"op": "relu", "dtype": "bf16", "shape": '{"n": 8, "count": 2}'}, "no 'count'"),
        ({"op": "conv2d", "dtype": "bf16",
          "shape": '{"n": 1, "c_in": 3, "h": 2, "w": 2, "c_out": 8, "r": 7, "s": 7}'}, "no output"),
        ({"op": "", "dtype": "bf16"}, "neither an op nor a model"),
        ({"op": "relu", "dtype": "bf16", "shape": '{"n": 8}', None: ["more"]}, "more cells"),
        ({"model": "lama-3-8b", "batch": "1"}, "did you mean"),
        ({"model": "llama-3-8b", "phase": "decode", "batch": "1"}, "needs context"),
        ({"model": "llama-3-8b", "phase": "decode", "batch": "0", "context": "8"}, "batch='0'"),
        ({"model": "gpt2", "phase": "train", "batch": "1", "seq": "8", "optimizer": "adan"}, "did you mean"),
        ({"model": "resnet50", "phase": "decode", "batch": "1"}, "no phase 'decode'"),
        ({"model": "bert-base-uncased", "mode": "egaer", "batch": "1", "seq": "8"}, "did you mean eager"),
    ],
)  # fmt: skip
def test_a_bad_row_says_why_and_the_others_go_on(row: dict[Any, Any], reason: str) -> None:
    good = {"op": "relu", "dtype": "bf16", "shape": '{"n": 8}'}
    before, bad, after = predict_rows([good, row, good], H100)
    assert reason in bad["error"]
    assert "\n" not in bad["error"]
    assert bad["predicted_us"] is None
    assert before["error"] is None
    assert after["predicted_us"] == before["predicted_us"]


def test_a_shape_may_be_a_mapping() -> None:
    assert parse_shape({"n": 4}) == {"n": 4}


def test_an_unknown_regime_is_refused_at_once() -> None:
    with pytest.raises(rl.errors.UsageError, match="allowed: program, cold, warm"):
        predict_rows([], H100, regime="hot")


# Models.


def test_a_model_is_its_estimate() -> None:
    found = one(model="llama-3-8b", phase="decode", mode="cudagraph", dtype="bf16", batch="4", seq="1", context="2048")
    est = rl.estimate(rl.model("llama-3-8b", phase="decode"), H100, mode="graph", B=4, C=2048)
    assert found["predicted_us"] == pytest.approx(est.time * 1e6)
    assert found["high_us"] == pytest.approx(est.high * 1e6)
    assert found["flops"] == est.flops
    assert found["activation_bytes"] == est.memory.activations
    assert found["memory_bytes"] > 2 * 8.03e9


def test_batches_of_one_model_share_an_estimate() -> None:
    rows = [{"model": "resnet50", "phase": "inference", "dtype": "bf16", "batch": batch} for batch in (1, 64, 8)]
    found = [row["predicted_us"] for row in predict_rows(rows, H100)]
    assert found == pytest.approx([one(**row)["predicted_us"] for row in rows])


def test_the_variant_with_these_parameters_is_found() -> None:
    row = {"model": "llama-3.2-1b", "phase": "prefill", "dtype": "bf16", "batch": 1, "seq": 128}
    tied, untied = one(**row), one(**row, params="1498482688")
    assert untied["memory_bytes"] - tied["memory_bytes"] == 2 * (1498482688 - 1235814400)


def test_fp32_convolutions_may_use_tf32_and_matmuls_not() -> None:
    row = {"phase": "inference", "mode": "cudagraph", "dtype": "fp32", "batch": 64}
    conv, matmul = one(model="vgg16", **row), one(model="vit-b-16", **row)
    assert conv["floor_us"] < conv["flops"] / 67e12 * 1e6
    assert matmul["floor_us"] > 0.9 * matmul["flops"] / 67e12 * 1e6


def test_a_measured_column_is_kept_under_another_name() -> None:
    assert "measured_activation_bytes" in output_columns(["model", "activation_bytes"])
    row = {"model": "resnet50", "phase": "inference", "dtype": "bf16", "batch": "1", "activation_bytes": "12"}
    once = one(**row)
    assert once["measured_activation_bytes"] == "12"
    again = next(predict_rows([once], H100))
    assert list(again) == list(once)
    assert again["measured_activation_bytes"] == "12"


def test_frames_in_and_out() -> None:
    frame = rl.predict(SHIPPED / "models.csv", H100)
    assert len(frame) == 104
    again = rl.predict(frame, H100)
    assert (again.predicted_us.dropna() == frame.predicted_us.dropna()).all()
    assert not frame.error.dropna().size


def test_training_steps_are_predicted() -> None:
    """Rows of phase train: forward, backward and the optimizer that the note names, in the row's precision.

    The range of any host holds them. With the host of that machine, known from a network in inference whose pace it
    sets, the expected times do too, and who sets the pace is what the table says.
    """
    with (SHIPPED / "models.csv").open(encoding="utf-8") as file:
        every = list(csv.DictReader(file))
    rows = [row for row in every if row["phase"] == "train"]
    (known,) = (row for row in every if (row["model"], row["mode"], row["dtype"], row["batch"]) == (
        "resnet50", "eager", "bf16", "4"))  # fmt: skip
    (inference,) = predict_rows([known], H100)
    assert inference["bound"] == "host"
    chip = rl.chip(H100)
    host = chip.efficiency.host * float(known["wall_us"]) / inference["predicted_us"]
    found = list(predict_rows(rows, chip.replace(efficiency={"host": host})))
    assert len(found) == 6
    for row, anywhere, ours in zip(rows, predict_rows(rows, H100), found, strict=True):
        measured = float(row["wall_us"])
        assert anywhere["low_us"] <= measured <= anywhere["high_us"]
        assert ours["low_us"] <= measured <= ours["high_us"]
        assert ours["predicted_us"] == pytest.approx(measured, rel=0.15)
        assert (ours["bound"] == "host") == (row["regime"] == "host_or_mixed")


def test_devices_of_training_steps_take_as_long_as_measured() -> None:
    """Of another H100, whose host is slower: the device alone. The family's ViT lacks what torchvision's copies around
    its attention module, its Llama the norms in six kernels of transformers', which a capture has (docs/accuracy.md).
    """
    with (SHIPPED / "training_steps.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    notes = {"resnet50": "SGD momentum"}
    found = predict_rows([{**row, "mode": "graph", "note": notes.get(row["model"], "AdamW")} for row in rows], H100)
    errors = {
        (row["model"], row["dtype"], row["batch"], row["seq"]): ours["predicted_us"] / float(row["device_us"]) - 1
        for row, ours in zip(rows, found, strict=True)
    }
    assert len(errors) == 12
    lacking = [errors.pop(key) for key in list(errors) if key[0] in ("vit-b-16", "llama-3.2-1b")]
    assert len(lacking) == 3
    assert all(-0.25 < error < 0 for error in lacking)
    assert max(map(abs, errors.values())) < 0.1


def test_the_optimizer_is_a_column_or_a_word_of_the_note() -> None:
    row = {"model": "gpt2", "phase": "train", "dtype": "amp-bf16", "batch": "1", "seq": "64"}
    adam, noted, named = (one(**row, **more) for more in ({}, {"note": "SGD momentum"}, {"optimizer": "momentum"}))
    assert noted["memory_bytes"] == named["memory_bytes"] < adam["memory_bytes"]


# The command.

app = typer.Typer()
app.command()(command)


@app.callback()
def _several() -> None:
    """So that the command keeps its name."""


def run(*arguments: Any) -> Any:
    return CliRunner().invoke(app, ["predict", *map(str, arguments)])


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_the_command_writes_a_table(tmp_path: Path) -> None:
    source, target = tmp_path / "in.csv", tmp_path / "out.csv"
    source.write_text('op,dtype,shape,mine\nrelu,bf16,"{""n"": 1024}",a\n')
    done = run(source, "--chip", H100, "-o", target)
    assert (done.exit_code, done.stdout) == (0, "")
    (row,) = table(target)
    assert (row["mine"], row["bytes"], row["error"]) == ("a", "4096", "")
    assert list(tmp_path.iterdir()) in ([source, target], [target, source])


def test_the_command_says_when_rows_failed(tmp_path: Path) -> None:
    source = tmp_path / "in.csv"
    source.write_text('op,dtype,shape\nrelu,bf16,"{""n"": 1024}"\nrelu,bf16,{}\n')
    done = run(source, "--chip", H100)
    assert done.exit_code == 1
    rows = list(csv.DictReader(done.stdout.splitlines()))
    assert [bool(row["error"]) for row in rows] == [False, True]


@pytest.mark.parametrize("chip", ["a100-80gb-sxm", "mi300x", "tpu-v5e", H100])
def test_attention_in_a_table_is_that_of_an_estimate(chip: str) -> None:
    """Which kernels run depends on whether there are as many keys as queries, and heads of both."""
    sizes = {"batch": 4, "heads": 16, "kv_heads": 16, "q_len": 512, "kv_len": 512, "head_dim": 64, "causal": True}
    shapes = [sizes, {**sizes, "kv_len": 1024}, {**sizes, "kv_heads": 4}, {**sizes, "batch": 2}]
    rows = rl.predict([{"op": "attention_sdpa", "dtype": "bf16", "shape": shape} for shape in shapes], chip)
    for shape, time in zip(shapes, rows.predicted_us, strict=True):
        program = rl.workload([{"op": "attention_sdpa", **shape}], dtype="bf16")
        assert time == pytest.approx(1e6 * float(rl.estimate(program, chip, mode="graph").time), rel=1e-6)


def test_a_table_of_m_n_k_is_one_of_matmuls(tmp_path: Path) -> None:
    source = tmp_path / "in.csv"
    source.write_text("m,n,k,us\n4096,512,1024,9\n0,1,1,9\n1,,1,9\nx,1,1,9\n,,,9\n")
    done = run(source, "--chip", H100)
    rows = list(csv.DictReader(done.stdout.splitlines()))
    assert [bool(row["error"]) for row in rows] == [False, True, True, True, True]
    assert list(rows[0])[:5] == ["m", "n", "k", "us", "predicted_us"]
    (same,) = rl.predict(
        [{"op": "gemm", "dtype": "bf16", "shape": {"m": 4096, "n": 512, "k": 1024}}], H100
    ).predicted_us
    assert float(rows[0]["predicted_us"]) == pytest.approx(same, rel=1e-4)
    blocked = {"m": 4096, "n": 512, "k": 1024, "bm": 64, "bn": 64, "bk": 64}
    assert rl.predict([blocked], H100).dram_bytes[0] > 0
    (point,) = rl.validate([{"m": "4096", "n": "512", "k": "1024", "kernel_us": "9"}], H100).points
    assert point.kind == "gemm bf16"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"a,b\n1,2\n", "expected the columns op, dtype, shape or model or m, n, k"),
        (b"", "it has none"),
        (b"op,op,dtype,shape\n", "duplicate column"),
        (b"op,dtype,shape\nrelu,bf16,\xff\xfe\n", "UTF-8"),
    ],
)
def test_what_is_no_table_is_refused(tmp_path: Path, text: bytes, reason: str) -> None:
    source, target = tmp_path / "in.csv", tmp_path / "out.csv"
    source.write_bytes(text)
    done = run(source, "--chip", H100, "-o", target)
    assert isinstance(done.exception, rl.errors.UsageError)
    assert reason in str(done.exception)
    assert not target.exists()
    assert len(list(tmp_path.iterdir())) == 1


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "out.csv"
    target.write_text("old")

    def rows() -> Any:
        yield {"a": 1}
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_rows(target, ["a"], rows())
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]
    with pytest.raises(rl.errors.UsageError, match="cannot be written"):
        write_rows(tmp_path / "no" / "out.csv", ["a"], [])


# --- traffic by level and schedules -----------------------------------------------------------------------------------

MATMUL = {"op": "gemm", "dtype": "bf16", "shape": '{"m": 4096, "n": 4096, "k": 4096}'}


def test_bytes_by_level_come_with_every_row_and_a_measured_column_is_no_prediction() -> None:
    (row,) = predict_rows([{**MATMUL, "l2_bytes": "12", "dram_read_bytes": "5"}], "h100-sxm")
    assert (row["measured_l2_bytes"], row["dram_read_bytes"]) == ("12", "5")
    assert row["l2_bytes"] > row["dram_bytes"] > 2 * 4096**2 * 2
    (once_more,) = predict_rows([row], "h100-sxm")
    assert (once_more["measured_l2_bytes"], once_more["l2_bytes"]) == ("12", row["l2_bytes"])


def test_a_schedule_of_a_matmul_says_what_it_moves() -> None:
    by_row = {"bm": "32", "bn": "64", "bk": "64", "group": "1", "warps": "4", "stages": "3"}
    wide = {**by_row, "bm": "128", "bn": "256", "group": "8", "warps": "8"}
    plain, small, large = predict_rows([MATMUL, {**MATMUL, **by_row}, {**MATMUL, **wide}], "h100-sxm")
    assert small["l2_bytes"] > 3 * large["l2_bytes"]
    assert small["dram_bytes"] > 2 * large["dram_bytes"]
    (empty,) = predict_rows([{**MATMUL, **dict.fromkeys(by_row, "")}], "h100-sxm")
    assert empty["l2_bytes"] == plain["l2_bytes"]


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({**MATMUL, "bm": "128"}, "a schedule needs bn, bk"),
        ({**MATMUL, "bm": "128", "bn": "x", "bk": "64"}, "bn='x': expected a whole number"),
        ({"op": "relu", "dtype": "bf16", "shape": '{"n": 8}', "bm": 64}, "are for op 'gemm'"),
    ],
)
def test_half_a_schedule_is_an_error_of_its_row(row: dict[str, object], why: str) -> None:
    (answer,) = predict_rows([row], "h100-sxm")
    assert why in answer["error"]
