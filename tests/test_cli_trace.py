"""``roofline trace`` as a program: text of 80 columns, JSON, CSV, pages, and one line for every wrong input."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from made_traces import Made, chain

from roofline.cli import main

CALLS: list[Any] = [
    ("aten::addmm", [[3072], [32768, 768], [768, 3072], [], []], 233.0, {"kernel": "nvjet_sm90_a_long_name"}),
    ("aten::gelu", [[64, 512, 3072], []], 148.0, {}),
    ("aten::native_layer_norm", [[64, 512, 768], [], [768], [768], []], 76.0,
     {"concrete": ["", "[768]", "", "", "1e-05"]}),
    ("mine::secret", [[1024]], 20.0, {"kernel": "secret_kernel"}),
]  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return chain(Made(), CALLS, gap=30.0).write(tmp_path)


def run(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, str, str]:
    code = main([str(word) for word in argv])
    out, err = capsys.readouterr()
    return code, out, err


def test_text_fits_80_columns(capsys: pytest.CaptureFixture[str], path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = run(capsys, "trace", path)
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    for wanted in ("on h100-sxm", "slowest 4 of 4 operators", "compute", "memory", "TFLOP/s", "-> ", "iterations  2"):
        assert wanted in out


def test_top(capsys: pytest.CaptureFixture[str], path: Path) -> None:
    _, out, _ = run(capsys, "trace", path, "--top", 2)
    assert "slowest 2 of 4 operators" in out
    assert "without a formula (1 in all)" in out
    assert "mine::secret" in out
    assert run(capsys, "trace", path, "--top", 0)[0] == 2


def test_json(capsys: pytest.CaptureFixture[str], path: Path) -> None:
    code, out, err = run(capsys, "trace", path, "--json")
    found = json.loads(out, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert (code, err) == (0, "")
    assert found["chip"] == "h100-sxm"
    assert found["rows"][0]["flops"] == 2 * 32768 * 768 * 3072
    assert [one["op"] for one in found["unknown"]] == ["mine::secret"]
    assert sum(found["idle"].values()) + found["busy_s"] == pytest.approx(found["time_s"])


def test_csv(capsys: pytest.CaptureFixture[str], path: Path) -> None:
    code, out, _ = run(capsys, "trace", path, "--csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert code == 0
    assert [row["op"] for row in rows] == ["aten::addmm", "aten::gelu", "aten::native_layer_norm", "mine::secret"]
    assert float(rows[0]["time_s"]) == pytest.approx(233e-6)
    assert rows[3]["flops_share"] == ""


def test_html(capsys: pytest.CaptureFixture[str], path: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.html"
    code, out, _ = run(capsys, "trace", path, "--html", target)
    assert code == 0
    assert out.startswith(f"{target}: report of")
    assert target.read_text(encoding="utf-8").startswith("<!doctype html>")
    code, out, _ = run(capsys, "trace", path, "--html", target, "--json")
    assert json.loads(out)["chip"] == "h100-sxm"


def test_html_where_nothing_can_be_written(capsys: pytest.CaptureFixture[str], path: Path, tmp_path: Path) -> None:
    code, out, err = run(capsys, "trace", path, "--html", tmp_path / "no" / "out.html")
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1


def test_chip_given(capsys: pytest.CaptureFixture[str], path: Path) -> None:
    code, out, _ = run(capsys, "trace", path, "--chip", "a100-80gb-sxm")
    assert code == 0
    assert "on a100-80gb-sxm" in out
    assert "the trace names h100-sxm" in " ".join(out.split())
    assert "above the roof" in out


def test_unknown_device_is_no_error(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, _ = run(capsys, "trace", chain(Made("Frobnicator"), CALLS).write(tmp_path))
    assert code == 0
    assert "chip unknown" in out
    assert "aten::addmm" in out


def test_cut_file_is_partial(capsys: pytest.CaptureFixture[str], path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) * 2 // 3])
    code, out, err = run(capsys, "trace", path)
    assert code == 0
    assert "PARTIAL" in out
    assert "partial" in err


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "empty"), ('{"traceEvents": []}', "event"), ('{"log": {}}', "HAR"), ("name\n", "table"),
        ('{"traceEvents": [{"ph": "X", "cat": "user_annotation", "name": "a", "ts": 1, "dur": 2, "pid": 1, "tid": 1}]}',
         "neither operators nor device events"),
    ],
)  # fmt: skip
def test_bad_files(capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, word: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text, encoding="utf-8")
    code, out, err = run(capsys, "trace", path)
    assert (code, out) == (2, "")
    assert err.startswith("roofline: error: ")
    assert len(err.splitlines()) == 1
    assert word in err


@pytest.mark.parametrize(
    "argv",
    [("nowhere.json",), ("{path}", "--chip", "h100"), ("{path}", "--json", "--csv"), ("{path}", "--top", "x"), ()],
)
def test_wrong_use(capsys: pytest.CaptureFixture[str], path: Path, argv: tuple[str, ...]) -> None:
    code, out, err = run(capsys, "trace", *(word.format(path=path) for word in argv))
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1


def test_a_name_that_means_harm(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    made = chain(Made(), [("evil\x1b[31m\nop", None, 10.0, {"kernel": "k\x07"})])
    made.document["deviceProperties"] = [{"id": 0, "name": "dev\x1b]0;title"}]
    _, out, _ = run(capsys, "trace", made.write(tmp_path))
    assert "\x1b" not in out
    assert "\x07" not in out
