"""``roofline fuse``: the access table and the explanation of a pair, as text, JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

import roofline as rl
from roofline.cli import main
from roofline.passes.fusion.fuse import POLICIES

CHAIN = [{"op": "elementwise", "n": 2**20, "count": 5}]
GPT2 = ["gpt2", "-S", "256", "--phase", "forward"]


@pytest.fixture(autouse=True)
def piped(monkeypatch: pytest.MonkeyPatch) -> None:
    """80 columns, as if piped."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("FORCE_COLOR", raising=False)


def run(capsys: pytest.CaptureFixture[str], *args: object) -> str:
    capsys.readouterr()
    code = main(["fuse", *map(str, args)])
    out, err = capsys.readouterr()
    assert code == 0, err
    return out


def refused(capsys: pytest.CaptureFixture[str], *args: object) -> str:
    capsys.readouterr()
    code = main(["fuse", *map(str, args)])
    out, err = capsys.readouterr()
    assert code == 2
    assert out == ""
    assert err.startswith("roofline: error: ")
    assert err.count("\n") == 1
    return err


@pytest.fixture
def chain(tmp_path: Path) -> Path:
    path = tmp_path / "chain.json"
    path.write_text(json.dumps(CHAIN))
    return path


def test_the_table_shows_ten_accesses_against_two(capsys: pytest.CaptureFixture[str], chain: Path) -> None:
    out = run(capsys, chain)
    rows = {words[0]: words[1:] for line in out.splitlines() if (words := line.split()) and words[0] in POLICIES}
    assert set(rows) == set(POLICIES)
    assert rows["eager"][:3] == ["5", "10.5", "M"]
    assert rows["chains"][:3] == ["1", "2.1", "M"]
    assert "20%" in rows["ideal"]


@pytest.mark.parametrize("more", [(), ("h100-sxm",), ("h100-sxm", "--policy", "ideal"), ("--policy", "flash"),
                                  ("h100-sxm", "--pair", "layers.0.mlp.up,layers.0.mlp.down")])  # fmt: skip
def test_it_fits_a_terminal(capsys: pytest.CaptureFixture[str], more: tuple[str, ...]) -> None:
    out = run(capsys, "gpt2", *more, *GPT2[1:])
    assert out
    if "--pair" not in more:
        assert max(map(len, out.splitlines())) <= 80


def test_json_is_the_record(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(run(capsys, "gpt2", "h100-sxm", *GPT2[1:], "--json"))
    ours = rl.analysis.fusion(rl.model("gpt2", phase="forward"), "h100-sxm", B=1, S=256)
    assert [row["policy"] for row in found["rows"]] == ["given", *POLICIES]
    assert [row["bytes"] for row in found["rows"]] == [row.bytes for row in ours.rows]
    assert [row["time_s"] for row in found["rows"]] == [row.time_s for row in ours.rows]


def test_a_policys_kernels_come_as_json_and_csv(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(run(capsys, *GPT2, "--policy", "chains", "--json"))
    rows = list(csv.DictReader(io.StringIO(run(capsys, *GPT2, "--policy", "chains", "--csv"))))
    assert found["policy"] == "chains"
    assert [row["kernel"] for row in rows] == [row["kernel"] for row in found["rows"]]
    assert all(float(row["accesses"]) <= float(row["unfused_accesses"]) for row in rows)
    table = list(csv.DictReader(io.StringIO(run(capsys, *GPT2, "--csv"))))
    assert [row["policy"] for row in table] == ["given", *POLICIES]


def test_a_pair_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    pair = "layers.0.mlp.up,layers.0.mlp.down"
    out = run(capsys, "gpt2", "h100-sxm", *GPT2[1:], "--pair", pair)
    assert out.startswith(
        "gpt2 forward on h100-sxm, batch 1, seq 256\nlayers.0.mlp.up + layers.0.mlp.down: cannot be one"
    )
    (found,) = json.loads(run(capsys, *GPT2, "--pair", pair, "--json"))["rows"]
    assert found["fusible"] is False
    assert found["saves_s"] is None


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((*GPT2, "--policy", "idel"), "did you mean ideal"),
        ((*GPT2, "--pair", "layers.0.mlp.up"), "expected two kernels"),
        ((*GPT2, "--pair", "layers.0.mlp.up,layers.0.mlp.dwn"), "did you mean layers.0.mlp.down"),
        ((*GPT2, "--pair", "a,b", "--policy", "ideal"), "exclude each other"),
        ((*GPT2, "--json", "--csv"), "exclude each other"),
        (("gpt2", "h100-sx", "-S", "16"), "did you mean"),
        (("gpt2", "-S", "16,32"), "give -S one number"),
        (("gpt2",), "needs a sequence length"),
    ],
)
def test_wrong_input_is_one_line(capsys: pytest.CaptureFixture[str], args: tuple[str, ...], words: str) -> None:
    assert words in refused(capsys, *args)
