"""``roofline graph`` and scripts as programs: formats, files, and one line for every wrong input."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import roofline as rl
from roofline.cli import graph as _graph
from roofline.cli import main
from roofline.frontends.script import load_script, split_script

SCRIPT = """
import roofline as rl

print("built by a script")


def build():
    b = rl.ops.Builder("mine", "bf16")
    x = b.input("x", (32, 64))
    with b.scope("mlp"):
        y = b.op("linear", x, b.weight("w", (128, 64)), name="up")
    return b.graph([b.op("relu", y)])
"""
MODEL = "b = rl.ops.Builder('{0}', 'bf16')\n{0} = b.graph([b.op('relu', b.input('x', ({1}, 64)))])\n"


class Result:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


Run = Callable[..., Result]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run the command in this process, in an empty folder, as if piped, 80 columns wide."""
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("FORCE_COLOR", "ROOFLINE_DEBUG", "ROOFLINE_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)

    def call(*args: object, command: str = "graph") -> Result:
        capsys.readouterr()
        code = main([command, *(str(arg) for arg in args)])
        return Result(code, *capsys.readouterr())

    return call


def fails(result: Result, *words: str) -> None:
    assert (result.code, result.out) == (2, "")
    line = result.err.splitlines()[-1]
    assert line.startswith("roofline: error: ")
    for word in words:
        assert word in line


def save(name: str, text: str) -> str:
    Path(name).write_text(text)
    return name


# --- formats ----------------------------------------------------------------------------------------------------------

NUMBERS = ["-B", "8", "-S", "2048"]
SHORT = ["-B", "8", "-S", "1024"]  # as many positions as GPT-2 has
ARGS = [
    ["llama-3-8b", "--phase", "decode"],
    ["llama-3-8b", "--phase", "decode", *NUMBERS],
    ["llama-3-8b", "--phase", "prefill", *NUMBERS, "--fuse", "chains"],
    ["deepseek-v3", "--phase", "decode", *NUMBERS],
    ["gpt-oss-20b", "--phase", "prefill", "-B", "2"],
    ["resnet50", "-B", "4", "--all"],
    ["unet"],
]


@pytest.mark.parametrize("form", ["text", "table"])
@pytest.mark.parametrize("args", ARGS, ids=" ".join)
def test_it_fits_80_columns_when_piped(run: Run, args: list[str], form: str) -> None:
    result = run(*args, "--format", form)
    assert (result.code, result.err) == (0, "")
    assert max(map(len, result.out.splitlines())) <= 80
    assert "\x1b" not in result.out
    assert "…" not in result.out
    assert not re.search(r"\bnan\b|\binf\b|None", result.out)


def test_text_is_the_default_and_has_the_totals(run: Run) -> None:
    out = run("llama-3-8b", "--phase", "decode", *NUMBERS).out
    counts = rl.count(rl.model("llama-3-8b", phase="decode"), B=8, C=2048)
    for value in (counts.flops, counts.vector_flops, counts.bytes):
        assert f"{value:,}" in out
    assert "0 ... 31" in out
    assert run("llama-3-8b", "--phase", "decode", *NUMBERS, "--format", "text").out == out


def test_wide_terminals_get_more(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    narrow = {form: run("gpt2", *SHORT, "--format", form).out for form in ("text", "table")}
    monkeypatch.setenv("COLUMNS", "200")
    wide = {form: run("gpt2", *SHORT, "--format", form).out for form in ("text", "table")}
    for form in narrow:
        assert "inputs" in wide[form]
        assert "inputs" not in narrow[form]
    assert "what it does" in wide["table"]


def test_table_has_a_row_a_node(run: Run) -> None:
    out = run("resnet18", "-B", "1", "--all", "--format", "table").out
    rows = [line for line in out.splitlines() if re.match(r"\s*\d+  \S", line)]
    assert len(rows) == len(rl.model("resnet18").nodes)


def test_colours_on_request(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    script = save("odd.py", SCRIPT.replace('b.op("relu", y)', 'b.op("unknown", y, what="aten::odd", shape=(32, 128))'))
    monkeypatch.setenv("FORCE_COLOR", "1")
    for form in ("text", "table"):
        out = run(script, "--format", form).out
        assert re.search(r"\x1b\[1;31m[^\n]*unknown: aten::odd", out)


def test_dot_and_html_and_json(run: Run) -> None:
    assert run("gpt2", "--format", "dot").out.startswith('digraph "gpt2')
    assert run("gpt2", "--format", "html").out.startswith("<!doctype html>")
    data = json.loads(run("gpt2", *SHORT, "--json").out, parse_constant=lambda word: pytest.fail(word))
    graph = rl.model("gpt2")
    assert data["totals"]["flops"] == rl.count(graph, B=8, S=1024).flops
    assert (data["totals"]["nodes"], data["sizes"]) == (len(graph.nodes), {"batch": 8, "seq": 1024})
    symbolic = json.loads(run("gpt2", "--json").out)
    assert (symbolic["symbols"], type(symbolic["totals"]["flops"])) == (["B", "S"], str)


def test_fuse_shows_compiled_kernels(run: Run) -> None:
    eager, fused = (
        json.loads(run("gpt2", *SHORT, "--json", *more).out)["totals"] for more in ([], ["--fuse", "chains"])
    )
    assert fused["flops"] == eager["flops"]
    assert (fused["kernels"], fused["bytes"]) < (eager["kernels"], eager["bytes"])


@pytest.mark.parametrize(
    ("name", "start"),
    [("g.html", "<!doctype"), ("g.dot", "digraph"), ("g.gv", "digraph"), ("g.json", "{"), ("g.txt", "gpt2")],
)
def test_files_by_their_suffix(run: Run, name: str, start: str) -> None:
    result = run("gpt2", "-o", name)
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"{name}: ")
    assert Path(name).read_text().startswith(start)
    assert [path.name for path in Path().iterdir()] == [name]


def test_a_file_has_no_colours(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    for form in ("text", "table"):
        run("gpt2", "-o", "g.txt", "--format", form)
        assert "\x1b" not in Path("g.txt").read_text()


def test_a_file_is_written_whole_or_not_at_all(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    fails(run("gpt2", "-o", "missing/g.html"), "missing/g.html", "cannot be written")
    save("g.html", "old")

    def broken(*_: object) -> str:
        raise rl.errors.UsageError("broken")

    monkeypatch.setitem(sys.modules["roofline.cli.graph"].FORMATS, "html", broken)
    fails(run("gpt2", "-o", "g.html"), "broken")
    assert Path("g.html").read_text() == "old"


def test_output_to_a_dash_is_the_standard_output(run: Run) -> None:
    assert run("gpt2", "-o", "-", "--format", "dot").out.startswith("digraph")


def test_help_says_that_a_script_is_run(run: Run) -> None:
    out = " ".join(run("--help").out.split())
    assert "A script is your own code and is run" in out
    assert "text, table, dot or html" in out


def test_every_source_of_programs(run: Run) -> None:
    config = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 4,
              "num_attention_heads": 8, "vocab_size": 1000}  # fmt: skip
    save("config.json", json.dumps(config))
    save("work.json", json.dumps([{"op": "gemm", "m": 64, "n": 64, "k": 64}]))
    for name in ("config.json", "./", "work.json"):
        assert run(name).code == 0
    assert "x4" in run("config.json").out


# --- wrong input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["gpt2", "--format", "tabel"], ["--format 'tabel'", "text, table, dot, html", "did you mean table?"]),
        (["gpt2", "--format", "svg"], ["--format 'svg'", "allowed"]),
        (["gpt2", "--format", "dot", "--json"], ["--json and --format exclude each other"]),
        (["gtp2"], ["did you mean gpt2"]),
        (["gpt2", "-B", "1,2"], ["-B", "one number"]),
        (["gpt2", "-B", "0"], ["-B"]),
        (["gpt2", "--phase", "decod"], ["did you mean decode"]),
        ([], ["MODEL_OR_SCRIPT"]),
        (["gpt2", "-o", "."], ["a directory"]),
    ],
    ids=lambda value: " ".join(value)[:40],
)
def test_wrong_input_is_one_line(run: Run, args: list[str], words: list[str]) -> None:
    result = run(*args)
    fails(result, *words)
    assert result.err.count("\n") == 1
    assert not list(Path().iterdir())


FAULTS = [
    ("raise ValueError('bad\\nthing')", ["s.py:1: ValueError: bad thing"]),
    ("def f():\n    return {}['k']\n\n\nf()", ["s.py:2: KeyError: 'k'"]),
    ("import sys\nsys.exit(3)", ["s.py:2", "sys.exit(3)"]),
    ("import sys\nsys.exit()", ["s.py:2", "sys.exit()"]),
    ("a = (", ["s.py:1: SyntaxError"]),
    ("\x00", ["s.py"]),
    ("import nothing_of_that_name", ["s.py:1: ModuleNotFoundError"]),
    ("net = 1\nother = 2", ["no program", "build()", "example_inputs", "names in it: net, other"]),
    ("", ["names in it: none"]),
    ("def build():\n    return 5", ["build() returns a int"]),
    ("def build():\n    raise RuntimeError('no')", ["s.py:2: RuntimeError: no"]),
    ("def build(x):\n    return x", ["s.py", "TypeError", "build()"]),
    ("import roofline as rl\n" + MODEL.format("one", 2) + MODEL.format("two", 3), ["graphs: one, two", "s.py:one"]),
    ("import roofline as rl\nrl.model('gtp2')", ["s.py:2: UnknownModel", "did you mean gpt2"]),
    ("raise RecursionError", ["s.py:1: RecursionError"]),
    ("class M:\n    def forward(self): ...\n    __call__ = forward\nmodel = M()", ["example_inputs"]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "words"), FAULTS, ids=[str(n) for n in range(len(FAULTS))])
def test_faults_of_a_script_are_one_line(run: Run, text: str, words: list[str]) -> None:
    result = run(save("s.py", text))
    fails(result, *words)
    assert result.err.count("\n") == 1


def test_scripts_that_are_not_there(run: Run) -> None:
    save("mine.py", SCRIPT)
    fails(run("mne.py"), "no script is called 'mne.py'", "did you mean mine.py?")
    fails(run("mine.py:bild"), "no name 'bild'", "did you mean build?")
    fails(run("mine.py:zzz"), "no name 'zzz'; it has", "build")
    fails(run("mine.py", "--phase", "decode"), "a script has no phase")
    Path("folder.py").mkdir()
    fails(run("folder.py"), "cannot be read")


@pytest.mark.parametrize("address", ["https://example.org/s.py", "http://example.org/s.py:build", "file:///s.py"])
def test_addresses_are_never_run(run: Run, address: str) -> None:
    fails(run(address), "only from a file on this machine")


# --- scripts ----------------------------------------------------------------------------------------------------------


def test_script_with_a_function(run: Run) -> None:
    result = run(save("mine.py", SCRIPT), "--json")
    assert json.loads(result.out)["totals"]["flops"] == 2 * 32 * 64 * 128
    assert result.err == "built by a script\n"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("import roofline as rl\n" + MODEL.format("only", 2), None),
        ("import roofline as rl\n" + MODEL.format("one", 2) + MODEL.format("two", 3), "two"),
        (SCRIPT.replace("build", "program"), None),
        (SCRIPT.replace("build", "other"), "other"),
    ],
)
def test_what_may_be_in_a_script(tmp_path: Path, text: str, name: str | None) -> None:
    file = tmp_path / "s.py"
    file.write_text(text)
    assert isinstance(load_script(file, name), rl.Graph)
    assert rl.load_program(f"{file}:{name}" if name else str(file)).nodes


def test_a_script_runs_like_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "helper_of_script.py").write_text("WIDTH = 8\n")
    text = (
        "from __future__ import annotations\nimport sys\nfrom dataclasses import dataclass\n"
        "import helper_of_script\nimport roofline as rl\nassert sys.argv == [__file__]\n"
        "@dataclass\nclass Size:\n    width: int\n"
        "if __name__ == '__main__':\n    raise SystemExit('not here')\n"
        "def build():\n    from helper_of_script import WIDTH\n    b = rl.ops.Builder('s', 'bf16')\n"
        "    return b.graph([b.op('relu', b.input('x', (Size(WIDTH).width, 2)))])\n"
    )
    file = tmp_path / "s.py"
    file.write_text(text)
    before = sys.path[:], sys.argv[:], set(sys.modules)
    assert load_script(file).tensors["x"].shape == (8, 2)
    assert (sys.path, sys.argv) == before[:2]
    assert set(sys.modules) - before[2] <= {"helper_of_script"}
    monkeypatch.delitem(sys.modules, "helper_of_script")


def test_other_commands_take_scripts_too(run: Run) -> None:
    save("mine.py", SCRIPT)
    result = run("mine.py", "h100-sxm", "--json", command="estimate")
    assert json.loads(result.out)["rows"][0]["flops"] == 2 * 32 * 64 * 128
    assert run("mine.py", "h100-sxm", "-o", "x.svg", command="plot").code == 0


def test_formats_of_a_script(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text(SCRIPT)
    graph = rl.load_program(tmp_path / "s.py", dtype="fp32", weights="int8")
    assert {name: tensor.dtype for name, tensor in graph.tensors.items()} == {
        "x": "fp32", "mlp.w": "int8", "mlp.up": "fp32", "relu": "fp32"}  # fmt: skip


@pytest.mark.parametrize(
    ("inputs", "args", "kwargs"),
    [
        ("example_inputs = (1, 2)", (1, 2), None),
        ("inputs = [3]", (3,), None),
        ("inputs = 4", (4,), None),
        ("example_inputs = {'ids': 5}\ndynamic = {'B': 0}", (), {"ids": 5}),
    ],
)
def test_torch_modules_go_to_their_importer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inputs: str, args: tuple[int, ...], kwargs: dict[str, int] | None
) -> None:
    calls: list[Any] = []

    def from_torch(module: Any, *given: Any, **options: Any) -> rl.Graph:
        calls.append((type(module).__name__, given, options))
        return rl.model("gpt2", layers=1)

    monkeypatch.setattr("roofline.frontends.torch.from_torch", from_torch)
    file = tmp_path / "s.py"
    file.write_text(f"class Net:\n    def forward(self, *x): ...\n    __call__ = forward\nmodel = Net()\n{inputs}\n")
    assert load_script(file).name == rl.model("gpt2", layers=1).name
    ((name, given, options),) = calls
    assert (name, given, options.get("kwargs"), options["unknown"]) == ("Net", args, kwargs, "report")
    assert options.get("dynamic") == ({"B": 0} if "dynamic" in inputs else None)


def test_files_that_are_no_scripts_never_run_one(run: Run, tmp_path: Path) -> None:
    trap = tmp_path / "trap.py"
    trap.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    config = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 1,
              "num_attention_heads": 8, "vocab_size": 100, "auto_map": {"AutoModel": "trap.Model"},
              "_name_or_path": str(trap)}  # fmt: skip
    save("config.json", json.dumps(config))
    assert run("config.json").code == 0
    save("work.json", json.dumps([{"model": str(trap)}]))
    fails(run("work.json"), "trap.py")
    save("rows.csv", "")
    with open("rows.csv", "w", newline="") as file:
        csv.writer(file).writerows([["model", "batch"], [str(trap), 1]])
    assert run("rows.csv", "--chip", "h100-sxm", command="predict").code == 1
    save("m.toml", f'name = "m"\nfamily = "{trap}"\ndtype = "bf16"\n')
    fails(run("m.toml"), "trap.py")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("s.py", ("s.py", None)), ("a/S.PY", ("a/S.PY", None)), ("s.py:net", ("s.py", "net")), ("s.py:", ("s.py", "")),
        ("C:\\s.py", ("C:\\s.py", None)), ("C:\\s.py:net", ("C:\\s.py", "net")), ("gpt2", None), ("a:b", None),
        ("s.pyc", None), (Path("s.py"), ("s.py", None)),
    ],
)  # fmt: skip
def test_what_is_a_script(text: str | Path, wanted: tuple[str, str | None] | None) -> None:
    assert split_script(text) == wanted


def test_as_a_process(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "roofline", "graph", "mine.py", "--json"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert (ran.returncode, ran.stderr) == (0, "built by a script\n")
    assert json.loads(ran.stdout)["name"] == "mine"


def test_the_command_is_a_module() -> None:
    assert isinstance(_graph, ModuleType)


def test_a_torch_module_as_a_script(run: Run) -> None:
    pytest.importorskip("torch")
    if not hasattr(rl, "from_torch"):
        pytest.skip("no importer of torch modules")
    save(
        "net.py",
        "import torch\nmodel = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()) "
        "for _ in range(6)))\nexample_inputs = (torch.zeros(2, 64),)\ndynamic = {'B': 0}\n",
    )
    result = run("net.py", "--json")
    assert result.code == 0, result.err
    data = json.loads(result.out)
    assert data["totals"]["flops"] == f"{6 * 2 * 64 * 64}*B"
    assert [block["times"] for block in data["blocks"]] == [6]


def test_kernels_that_are_launched_are_listed_by_operator(run: Run, tmp_path: Path) -> None:
    script = "b = rl.ops.Builder('net', 'bf16')\nx = b.input('x', (2, 64, 8, 8))\n"
    script += "y = b.op('conv2d', x, b.weight('w', (64, 64, 3, 3)), b.weight('b', (64,)), padding=1, name='conv')\n"
    (tmp_path / "net.py").write_text(f"import roofline as rl\n{script}net = b.graph([b.op('relu', y)])\n")
    text = run("net.py", "h100-sxm", "--kernels").out
    assert "2 operators launch 3 kernels" in text
    assert re.search(r"^conv +conv2d +1\n +conv2d +conv2d +1 .*\n +add_bias +add +1 ", text, re.MULTILINE)
    assert max(map(len, text.splitlines())) <= 80
    record = json.loads(run("net.py", "h100-sxm", "--kernels", "--json").out)
    assert record["schema"]["name"] == "graph_kernels"
    assert sum(row["count"] for row in record["rows"]) == record["launches"] == 3
    assert sum(row["time_s"] for row in record["rows"]) == pytest.approx(record["time_s"])
    same = rl.analysis.launched(rl.estimate(str(tmp_path / "net.py"), "h100-sxm")).records()
    assert [row["kernel"] for row in same] == ["conv2d", "add_bias", "relu"]


@pytest.mark.parametrize("words", [("--kernels",), ("h100-sxm",), ("h100-sxm", "--kernels", "--format", "dot")])
def test_kernels_take_a_chip_and_no_format(run: Run, words: tuple[str, ...]) -> None:
    result = run("resnet18", *words)
    assert result.code == 2
    assert result.err.count("\n") == 1
    assert "--kernels" in result.err


def test_kernels_of_several_chips_are_refused(run: Run) -> None:
    result = run("resnet18", "h100-sxm,a100-80gb-sxm", "--kernels")
    assert result.code == 2
    assert result.err == "roofline: error: h100-sxm,a100-80gb-sxm: several chips; this takes one, such as h100-sxm\n"
