"""What MODEL may be on the command line: names, model files, workloads, configs and their folders."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import roofline as rl

CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "vocab_size": 1000,
}
GEMM = [{"op": "gemm", "m": 64, "n": 64, "k": 64}]
MODEL = """
name = "mine"
dtype = "bf16"
[sizes]
hidden = 64
[inputs]
x = ["B", "hidden"]
[[layer]]
op = "relu"
"""


def save(path: Path, data: object) -> Path:
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return path


@pytest.mark.parametrize("name", ["gpt2", "GPT2", "meta-llama/Llama-3.1-8B", "llama-3-8b"])
def test_names_and_aliases(name: str) -> None:
    assert rl.load_program(name).parameters == rl.model(name).parameters


def test_phase_and_formats_reach_a_model() -> None:
    graph = rl.load_program("gpt2", phase="decode", dtype="bf16", weights="int8", cache="fp8")
    assert graph.info.phase == "decode"
    assert {t.dtype for t in graph.tensors.values() if t.kind == "cache"} == {"fp8"}
    assert graph.tensors["layers.0.mlp.up.weight"].dtype == "int8"


def test_model_file(tmp_path: Path) -> None:
    assert rl.load_program(save(tmp_path / "mine.toml", MODEL)).nodes[0].op == "relu"


def test_config_by_any_way_of_naming_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "my-llama"
    folder.mkdir()
    file = save(folder / "config.json", CONFIG)
    other = save(tmp_path / "saved.json", CONFIG)
    monkeypatch.chdir(tmp_path)
    for source in (folder, str(folder), "./my-llama", "my-llama", file, str(file), other, "saved.json"):
        assert rl.load_program(source).parameters == 341_568


def test_a_shipped_name_wins_over_a_folder_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gpt2").mkdir()
    save(tmp_path / "gpt2" / "config.json", CONFIG)
    monkeypatch.chdir(tmp_path)
    assert rl.load_program("gpt2").parameters == rl.model("gpt2").parameters
    assert rl.load_program(f".{os.sep}gpt2").parameters == 341_568


def test_workload(tmp_path: Path) -> None:
    graph = rl.load_program(save(tmp_path / "work.json", GEMM))
    assert (rl.count(graph).flops, graph.name) == (2 * 64**3, "work")
    wide = rl.load_program(save(tmp_path / "work.json", GEMM), dtype="fp32")
    assert rl.count(wide).bytes == 2 * rl.count(graph).bytes
    light = rl.load_program(save(tmp_path / "work.json", GEMM), weights="int8")
    assert rl.count(light).bytes == rl.count(graph).bytes - 64 * 64


def test_workload_of_a_model(tmp_path: Path) -> None:
    entry = [{"model": "gpt2", "phase": "decode", "batch": 2, "seq": 128}]
    graph = rl.load_program(save(tmp_path / "work.json", entry))
    assert (graph.symbols, graph.info.phase) == (frozenset(), "decode")


def test_a_workload_has_no_phase(tmp_path: Path) -> None:
    with pytest.raises(rl.errors.UsageError, match="a workload has no phase"):
        rl.load_program(save(tmp_path / "work.json", GEMM), phase="decode")


@pytest.mark.parametrize(
    ("source", "error", "words"),
    [
        ("lama-3-8b", rl.errors.UnknownModel, "did you mean llama-3-8b"),
        ("wrk.json", rl.errors.UnknownModel, "did you mean work.json"),
        ("mne.toml", rl.errors.UnknownModel, "did you mean mine.toml"),
        ("no/such/place", rl.errors.UnknownModel, "no model"),
        (".", rl.errors.ModelDataError, r"without config\.json"),
        ("folder.json", rl.errors.ModelDataError, "a directory"),
        ("folder.toml", rl.errors.ModelDataError, "a directory"),
        ("broken.toml", rl.errors.ModelDataError, "not valid TOML"),
        ("broken.json", rl.errors.ModelDataError, "line 1, column 2"),
        ("", rl.errors.UsageError, "expected a program: a Graph, a shipped name"),
        (None, rl.errors.UsageError, "expected a program: a Graph, a shipped name"),
        ("a\0b", rl.RooflineError, "no file can be called so"),
        ("x" * 5000, rl.errors.UnknownModel, "not known"),
        ("x" * 5000 + ".json", rl.RooflineError, "x"),
    ],
)
def test_what_is_no_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, error: type[Exception], words: str
) -> None:
    save(tmp_path / "work.json", GEMM)
    save(tmp_path / "mine.toml", MODEL)
    save(tmp_path / "broken.toml", "name = [")
    save(tmp_path / "broken.json", "[")
    for folder in ("folder.json", "folder.toml"):
        (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=words) as caught:
        rl.load_program(source)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["work.json", "config.json", "mine.toml"])
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="the superuser may read everything")
def test_unreadable_file(tmp_path: Path, name: str) -> None:
    file = save(tmp_path / name, "{}")
    file.chmod(0)
    with pytest.raises(rl.errors.ModelDataError, match="cannot be read"):
        rl.load_program(file)
