"""What every command prints: JSON as its schema has it, CSV with the same rows, text that fits, help with examples."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import typer
from command_line import Run

from roofline.cli.app import EXAMPLES
from roofline.cli.commands import app
from roofline.ir.report import Report

sys.path.insert(0, str(Path(__file__).parent.parent / "scripts"))
import schemas

CALLS = schemas.calls()
STORED = schemas.stored()
#: What measures this machine for a while, or serves until it is ended.
SLOW = {"calibrate", "explore", "measure", "tune"}
#: Commands whose output is of a program.
OF_A_PROGRAM = {
    "estimate",
    "batch",
    "compare",
    "scaling",
    "request",
    "serve",
    "check",
    "train",
    "fuse",
    "memory-plan",
    "timeline",
    "layouts",
}


@pytest.fixture(autouse=True, scope="module")
def folder() -> Iterator[Path]:
    with schemas.folder_of_examples() as path:
        yield path


@pytest.mark.parametrize("call", CALLS, ids=" ".join)
def test_json_and_csv_are_as_the_schema_says(call: list[str]) -> None:
    record = json.loads(schemas.printed(call), parse_constant=lambda word: pytest.fail(f"{word} in JSON"))
    assert next(iter(record)) == "schema"
    assert record["schema"].keys() == {"name", "version"}
    assert list(schemas.faults(record, STORED[record["schema"]["name"]])) == []
    if call[0] in OF_A_PROGRAM:
        assert {"model", "phase", "passes", "sizes"} <= record.keys()
    rows = list(csv.DictReader(io.StringIO(schemas.printed(call, "--csv"))))
    assert len(rows) == len(record["rows"])
    for key in ("model", "phase", "mode", "dtype"):
        if isinstance(record.get(key), str) and rows and call[0] in OF_A_PROGRAM:
            assert {row[key] for row in rows} <= {record[key]}


@pytest.mark.parametrize(
    ("name", "result"),
    [("calibrate", schemas.calibration), ("measurement", schemas.measurement), ("tuning", schemas.tuning)],
)
def test_what_is_measured_is_as_its_schema_says(name: str, result: Callable[[], Report]) -> None:
    assert list(schemas.faults(result().record(), STORED[name])) == []


def test_a_schema_finds_what_is_wrong() -> None:
    schema = schemas.schema_of([{"a": 1, "b": [1.5]}])
    assert list(schemas.faults({"a": "x", "c2": 0}, schema)) == [
        "$: b is missing", "$.a: string, not integer", "$: c2 is not in the schema",
    ]  # fmt: skip


def test_every_key_is_explained_and_the_page_lists_it() -> None:
    for name, schema in STORED.items():
        row = schema["properties"]["rows"].get("items", {}).get("properties", {})
        keys = {*schema["properties"], *row} - schemas._CHIP_FILE - {"images_per_s"}
        assert keys <= schemas.KEYS.keys(), name
    text = schemas.PAGE.read_text(encoding="utf-8")
    assert schemas.page(text) == text, "run scripts/schemas.py"


# --- text -------------------------------------------------------------------------------------------------------------


def says_what_it_is_of(call: list[str], out: str) -> None:
    out = " ".join(out.split())
    assert call[1] in out
    if "--mode" in call:
        assert f"{call[call.index('--mode') + 1]} mode" in out
    if "--tp" in call:
        assert "shard(tp=2)" in out


# The text of predict is CSV, which says nothing of what it is of.
@pytest.mark.parametrize("call", [call for call in CALLS if call[0] != "predict"], ids=" ".join)
def test_text_says_what_it_is_of_and_narrow_terminals_lose_columns_but_no_digits(
    run: Run, call: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    wide = run(*call).out
    if call[0] in OF_A_PROGRAM:
        says_what_it_is_of(call, wide)
    if call[0] == "graph":
        return
    monkeypatch.setenv("COLUMNS", "60")
    narrow = run(*call).out
    assert max(map(len, narrow.splitlines())) <= 60
    assert "…" not in narrow
    numbers = re.compile(r"(?<![\w.-])\d[\d.,]*(?= [kMGTPmun]?(?:s|B|iB|FLOP)\b|%)")
    assert set(numbers.findall(narrow)) <= set(numbers.findall(wide))


def test_what_is_left_out_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    call = ("estimate", "gpt2", "h100-sxm", "-S", "64", "-B", "1,2")
    assert "MBU" in run(*call).out
    monkeypatch.setenv("COLUMNS", "60")
    assert "in a wider terminal also: MFU, MBU" in run(*call).out


def test_narrow_terminals_break_no_name_and_no_bar(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    size = ("--phase", "decode", "-S", "128")
    assert "a100-80gb-sxm  " in run("compare", "gpt2", "--chips", "h100-sxm,a100-80gb-sxm", *size).out
    assert "bert-large-uncased  " in run("models").out
    assert not re.search(r"^ *█+$", run("check", "gpt2", "h100-sxm", "--measured", "90ms", *size).out, re.MULTILINE)


def test_errors_name_commands_instead_of_functions(run: Run) -> None:
    assert "'roofline models' lists the names" in run("estimate", "nope", "t4").err
    assert "see 'roofline chips'" in run("estimate", "gpt2", "nope").err


# --- help -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name not in SLOW])
def test_the_example_of_each_command_runs(run: Run, name: str) -> None:
    words = shlex.split(EXAMPLES[name])
    assert words[:2] == ["roofline", name]
    assert run(*words[1:]).code == (1 if name in ("check", "ops") else 0)


@pytest.mark.parametrize("name", EXAMPLES)
def test_help_comes_in_groups_with_the_example(run: Run, name: str) -> None:
    out = run(name, "--help").out
    assert EXAMPLES[name] in " ".join(out.split())
    assert max(map(len, out.splitlines())) <= 80


def test_help_of_all_lists_every_command_in_a_group(run: Run) -> None:
    out = run("--help").out
    for word in (*EXAMPLES, "Predict", "Judge", "Look up", "Accuracy"):
        assert f" {word} " in out


SHARED = {"weights", "activations", "cache", "fuse", "prune", "tp", "pp", "ep", "phase", "dtype", "seq", "context"}


@pytest.mark.parametrize("name", ["estimate", "batch", "compare", "plot", "check", "sweep", "fuse", "graph"])
def test_what_prices_a_program_shares_its_options(name: str) -> None:
    (command,) = [one for one in app.registered_commands if one.name == name]
    assert command.callback is not None
    assert set(command.callback.__annotations__) >= SHARED


@pytest.mark.parametrize(
    ("words", "incomplete", "offered"),
    [
        (["estimate"], "llama-3-8", "llama-3-8b"),
        (["estimate", "gpt2"], "h100-s", "h100-sxm"),
        (["estimate", "gpt2"], "l4,h100-s", "l4,h100-sxm"),
        (["compare", "gpt2", "--chips"], "a100-80gb-s", "a100-80gb-sxm"),
        (["estimate", "gpt2", "h100-sxm", "--phase"], "dec", "decode"),
        (["check", "gpt2", "h100-sxm", "--weights"], "int", "int8"),
        (["batch", "gpt2", "h100-sxm", "--mode"], "com", "compiled"),
        (["fuse", "gpt2", "--policy"], "fl", "flash"),
    ],
    ids=" ".join,
)
def test_shells_complete(words: list[str], incomplete: str, offered: str) -> None:
    from typer._completion_classes import BashComplete

    shell = BashComplete(typer.main.get_command(app), {}, "roofline", "_ROOFLINE_COMPLETE")
    assert offered in [item.value for item in shell.get_completions(words, incomplete)]


def test_the_version_loads_neither_parser_nor_numpy() -> None:
    code = (
        "import sys; from roofline.cli import main; main(['--version']); "
        "heavy = {'typer', 'click', 'rich', 'numpy', 'pandas', 'pydantic'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
