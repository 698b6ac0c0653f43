"""Predictions beside measurements: figures, classes, and what counts as worse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import roofline as rl
from roofline.analysis.prediction import predict_rows
from roofline.analysis.validation import Validation, figures, record, worse
from roofline.cli.commands import app

H100 = "h100-sxm"


def rows(factors: list[float], **more: Any) -> list[dict[str, Any]]:
    """Relus that took these times the predicted."""
    given = [{"op": "relu", "dtype": "bf16", "shape": json.dumps({"n": 2**20 + at})} for at in range(len(factors))]
    found = list(predict_rows(given, H100))
    return [
        {**row, "kernel_us": str(at["predicted_us"] * factor), **more}
        for row, at, factor in zip(given, found, factors, strict=True)
    ]


def judged(factors: list[float], **more: Any) -> Validation:
    return rl.validate(rows(factors, **more), H100)


def test_figures() -> None:
    (section,) = judged([1.0, 1.0, 1.0, 1 / 1.1, 1 / 0.8]).sections
    assert (section.chip, section.name, section.total.rows) == (H100, "operators", 5)
    assert section.total.mean == pytest.approx((10 + 20) / 5)
    assert section.total.median == pytest.approx(0, abs=1e-9)
    assert section.worst[0]["error"] == pytest.approx(-20)
    assert section.classes["relu bf16"] == section.total
    assert section.predicted == 100


def test_the_range_is_judged() -> None:
    (section,) = judged([1.0, 1.0, 1.0, 100.0]).sections
    assert section.total.inside == pytest.approx(75)
    assert section.total.spread is not None
    assert section.total.spread > 1


def test_unstable_rows_are_left_out_and_failed_ones_named() -> None:
    table = [*rows([1.0, 1.0]), *rows([5.0], stable="0"),
             {"op": "relu", "dtype": "bf16", "shape": "?", "kernel_us": "1"}]  # fmt: skip
    found = rl.validate(table, H100)
    assert found.unstable == 1
    assert sum(found.failed.values()) == 1
    assert found.sections[0].total.rows == 2
    assert found.sections[0].predicted == pytest.approx(200 / 3)


def test_warm_rows_are_judged_apart() -> None:
    warm = [{**row, "p50_us": row["kernel_us"], "kernel_us": "", "chip": "t4"} for row in rows([1.0])]
    found = rl.validate([*rows([1.0]), *warm], H100)
    assert [(section.chip, section.name) for section in found.sections] == [
        (H100, "operators"),
        ("t4", "operators, warm"),
    ]


def test_models_by_regime_and_their_memory() -> None:
    row = {"model": "resnet50", "phase": "inference", "mode": "eager", "dtype": "bf16", "batch": "64"}
    table = [
        {**row, "wall_us": "5646", "regime": "device", "activation_bytes": "308281344"},
        {**row, "wall_us": "8345", "regime": "host_or_mixed", "activation_bytes": ""},
    ]
    names = [section.name for section in rl.validate(table, H100).sections]
    assert names == ["models, device", "activation memory", "models, host_or_mixed"]


def test_nothing_measured_is_refused() -> None:
    with pytest.raises(rl.errors.UsageError, match="no measurement"):
        rl.validate([{"op": "relu", "dtype": "bf16", "shape": "{}"}], H100)
    with pytest.raises(rl.errors.UsageError, match=r"there are some for .*h100-sxm"):
        rl.validate(None, "t4")
    with pytest.raises(rl.errors.UsageError, match="expected a number"):
        rl.validate([{"op": "relu", "dtype": "bf16", "shape": "{}", "kernel_us": "fast"}], H100)


def test_recorded_and_compared(tmp_path: Path) -> None:
    path = tmp_path / "recorded.toml"
    good, bad = judged([1.0, 1.0, 1.02]), judged([1.0, 1.5, 1.5])
    with pytest.raises(rl.errors.ModelDataError, match="validate --record"):
        worse(good, path)
    record(bad, path)
    assert worse(good, path) == []
    record(good, path)
    assert worse(good, path) == []
    lines = worse(bad, path)
    assert any(line.startswith("h100-sxm, operators: mean was") for line in lines)
    assert figures(good)[H100]["operators"]["predicted"] == 100


def test_a_point_is_allowed(tmp_path: Path) -> None:
    path = tmp_path / "recorded.toml"
    record(judged([1.0, 1.0]), path)
    assert worse(judged([1.005, 1.005]), path) == []
    assert worse(judged([1.02, 1.02]), path) != []


@pytest.mark.parametrize("text", ["mean = 1", "[a]\nmean = 1", '[a.b]\nmean = "much"', "[", '["h100-sxm".operators]'])
def test_a_broken_record_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "recorded.toml"
    path.write_text(text)
    found = judged([1.0])
    if text.startswith('["h100'):
        assert worse(found, path) == []
    else:
        with pytest.raises(rl.errors.ModelDataError):
            worse(found, path)


def test_other_chips_stay_recorded(tmp_path: Path) -> None:
    path = tmp_path / "recorded.toml"
    path.write_text("[t4.operators]\nmean = 7\n")
    text = record(judged([1.0]), path).read_text()
    assert '["t4"."operators"]\nmean = 7\n' in text
    assert '["h100-sxm"."operators"]' in text


# The command.


def run(*arguments: Any) -> Any:
    return CliRunner().invoke(app, ["validate", *map(str, arguments)], env={"COLUMNS": "80"})


def test_the_command(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text('op,dtype,shape,kernel_us\nrelu,bf16,"{""n"": 1048576}",2.9\n')
    done = run(path, "--chip", H100)
    assert done.exit_code == 0
    assert "operators on h100-sxm" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    data = json.loads(run(path, "--json").stdout)
    assert [(row["class"], row["rows"]) for row in data["rows"]] == [("all", 1), ("relu bf16", 1)]
    assert {"chip", "section", "mean", "median", "p90", "bias", "inside", "spread"} <= set(data["rows"][0])
    assert set(data["sections"][0]) == {"chip", "section", "predicted", "worst"}


def test_the_check_is_for_what_ships(tmp_path: Path) -> None:
    done = run(tmp_path / "mine.csv", "--check")
    assert isinstance(done.exception, rl.errors.UsageError)
    assert isinstance(run("--check", "--record").exception, rl.errors.UsageError)
