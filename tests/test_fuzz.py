"""Every input of every command, damaged: the answer is a result or one line, never a fault of our own.

What a command reads is told by its arguments: a new command, or a new argument, is fuzzed the day it is written, by
the example in its help. ``python tests/test_fuzz.py 100000 [seed]`` tries more.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
from command_line import Result
from mutators import bytes_mutated, dumps, json_mutated, mutants, table_mutated

import roofline as rl
from roofline.cli import main
from roofline.cli.app import EXAMPLES
from roofline.cli.commands import app

# --- sound inputs and how they are damaged ----------------------------------------------------------------------------


def toml(value: Mapping[str, Any]) -> str:
    """Write TOML as JSON writes values, whatever they are; what TOML has not is a fault of the file's."""
    return "".join(f"{json.dumps(key)} = {inline(item)}\n" for key, item in value.items())


def inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {inline(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(inline, value)) + "]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps("none" if value is None else value)


@dataclass(frozen=True)
class Input:
    """A sound file: its name, its contents, and how contents are written."""

    name: str
    content: Any
    write: Callable[[Any], str] = str

    def text(self) -> str:
        return self.write(self.content)

    def damaged(self, count: int, seed: int) -> Iterator[bytes]:
        """Yield files of which half are damaged as data and half as bytes."""
        whole = self.text().encode()
        for at in range(count):
            if random.Random(f"{seed}/{at}/{self.name}").random() < 0.25:
                yield next(mutants(bytes_mutated, whole, 1, seed * 10**6 + at))
            elif isinstance(self.content, str):
                yield next(mutants(table_mutated, self.content, 1, seed * 10**6 + at)).encode(errors="replace")
            else:
                yield self.write(next(mutants(json_mutated, self.content, 1, seed * 10**6 + at))).encode()


def chip() -> dict[str, Any]:
    table: dict[str, Any] = rl.chip("l4").model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    return table


MODEL = {"family": "decoder", "dtype": "bf16", "sizes": {}, "options": {}}
LAYERS = {
    "name": "small", "dtype": "fp16", "parameters": 4736, "sizes": {"hidden": 64, "wide": "hidden * 2"},
    "inputs": {"x": ["B", "S", "hidden"]},
    "layer": [
        {"op": "linear", "name": "up", "out": "wide"}, {"op": "gelu"}, {"op": "linear", "out": "hidden", "bias": True},
        {"op": "add", "inputs": ["x", "up"]}, {"op": "softmax", "axis": -1},
    ],
}  # fmt: skip
CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100,
    "torch_dtype": "bfloat16", "tie_word_embeddings": False, "max_position_embeddings": 4096,
    "rope_scaling": {"rope_type": "linear", "factor": 2.0},
    "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32},
}  # fmt: skip
WORK = {"dtype": "bf16", "work": [
    {"op": "gemm", "m": 64, "n": 64, "k": 64}, {"op": "attention", "b": 2, "heads": 4, "kv_heads": 2, "q": 8, "kv": 64,
                                                 "head_dim": 16, "causal": True},
    {"op": "conv2d", "n": 2, "h": 8, "w": 8, "c_in": 8, "c_out": 16, "r": 3, "s": 3, "stride": 2, "padding": 1},
    {"op": "gelu", "n": 1024, "count": 4}, {"model": "gpt2", "phase": "decode", "batch": 2, "context": 64},
]}  # fmt: skip
ROWS = (
    "op,dtype,shape,count,chip\n"
    'gemm,bf16,"{""m"": 64, ""n"": 64, ""k"": 64}",1,\nrelu,fp32,"{""n"": 1024}",2,l4\n'
    'elementwise,bf16,"{""n"": 64}",,\n'
)
MODEL_ROWS = "model,phase,mode,dtype,batch,seq,context\ngpt2,prefill,eager,fp16,2,64,\ngpt2,decode,graph,,4,,64\n"
OPS = "op,dtype,m,n,k,time_us,count\ngemm,bf16,512,512,512,9.5,2\ngemm,fp16,64,64,64,4 us,1\ngelu,bf16,,4096,,3,\n"
SWEEP = "batch,time_ms\n1,5\n2,5.1\n4,5.3\n8,6\n16,9\n"
MEASURED = "op,dtype,shape,p50_us,kernel_us,stable\n" + 'relu,bf16,"{""n"": 1048576}",4.1,3.9,1\n' * 3
TRACE = {"traceEvents": [
    {"ph": "X", "cat": "kernel", "name": "ampere_sgemm_128x64_tn", "ts": 100 + 50 * at, "dur": 40, "pid": 0, "tid": 7,
     "args": {"device": 0, "stream": 7, "correlation": at, "External id": at, "grid": [8, 1, 1], "block": [128, 1, 1]}}
    for at in range(4)
] + [
    {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 90 + 50 * at, "dur": 8, "pid": 1, "tid": 1,
     "args": {"External id": at, "Input Dims": [[512, 512], [512, 512]], "Input type": ["float", "float"]}}
    for at in range(4)
], "deviceProperties": [{"id": 0, "name": "NVIDIA L4"}]}  # fmt: skip

#: Eight floats, all of it text; the length of the header comes first.
_HEADER = '{"w":{"dtype":"F32","shape":[2,4],"data_offsets":[0,32]}}'
SAFETENSORS = chr(len(_HEADER)) + "\0" * 7 + _HEADER + "0000" * 8

CHIPS = [lambda: Input("chip.toml", chip(), toml), lambda: Input("cluster.toml", {
    "name": "two", "chip": "l4", "devices_per_node": 4, "nodes": 2, "source": "none",
    "link": {"name": "RoCE", "bandwidth": "200 Gbit/s", "latency": "3 us"}}, toml)]  # fmt: skip
PROGRAMS = [
    lambda: Input("model.toml", small_model(), toml), lambda: Input("layers.toml", LAYERS, toml),
    lambda: Input("config.json", CONFIG, dumps), lambda: Input("work.json", WORK, dumps),
]  # fmt: skip


def small_model() -> dict[str, Any]:
    import tomllib

    from roofline.programs.library import find_model

    table = tomllib.loads(find_model("gpt2").read_text())
    table.pop("parameters", None)
    return table | {"sizes": table["sizes"] | {"layers": 2}}


@cache
def plan() -> str:
    """Return a plan's file, of the program and the chip of the command's example."""
    with tempfile.TemporaryDirectory() as folder:
        found = rl.optimize("llama-3-8b", "h100-sxm", phase="decode", batch=8, context=2048, beam=2, check=False,
                            without=("kernels", "linears", "formats", "cache"))  # fmt: skip
        return found.save(Path(folder) / "plan.toml").read_text(encoding="utf-8")


#: A trace of requests.
REQUESTS = '{"timestamp": 0, "input_length": 600, "output_length": 4, "hash_ids": [1, 2]}\n' * 3

#: What each parameter of a command reads, by its name, or by the command's and its own.
READS: dict[str, list[Callable[[], Input]]] = {
    "model": PROGRAMS, "chip": CHIPS, "chips": CHIPS, "where": CHIPS, "chips.name": CHIPS, "models.name": PROGRAMS,
    "schedules.op": PROGRAMS, "quantize.on": CHIPS,
    "quantize.file": [lambda: Input("w.safetensors", SAFETENSORS)],
    "serve.draft": PROGRAMS, "serve.prefill_chip": CHIPS,
    "fleet.models": PROGRAMS, "codesign.base": CHIPS, "codesign.goals": PROGRAMS,
    "predict.table": [lambda: Input("rows.csv", ROWS), lambda: Input("models.csv", MODEL_ROWS)],
    "ops.file": [lambda: Input("ops.csv", OPS)], "sweep.file": [lambda: Input("sweep.csv", SWEEP)],
    "plan.prices": [lambda: Input("prices.toml", "l4 = 0.8\nh100-sxm = 2.5\n")],
    "validate.source": [lambda: Input("measured.csv", MEASURED)],
    "cache.trace": [lambda: Input("requests.jsonl", REQUESTS)],
    "optimize.replay": [lambda: Input("plan.toml", plan())],
    "serve.trace": [lambda: Input("requests.jsonl", REQUESTS)],
    "trace.files": [lambda: Input("trace.json", TRACE, dumps)],
    "check.trace": [lambda: Input("trace.json", TRACE, dumps)],
}  # fmt: skip


def reads(command: str, parameter: str) -> list[Callable[[], Input]]:
    return READS.get(f"{command}.{parameter}", READS.get(parameter, []))


@cache
def commands() -> dict[str, Any]:
    return dict(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


def cases() -> list[tuple[str, str]]:
    """Return each command with each parameter that reads a file."""
    return [(name, param.name) for name, command in commands().items() for param in command.params
            if reads(name, param.name)]  # fmt: skip


#: Words that no option expects, or that its reader has to understand as it stands.
WORDS = (
    "~nosuchuser/x", "~nosuchuser/x.toml", "~nosuchuser/x.json", "~nosuchuser/x.py", "~nosuchuser/x.onnx", "a\0b",
    "a\0b.toml", "x" * 5000, "x" * 300 + ".toml", "", " ", "-1", "0", "1e400", "nan", "inf", "-inf s", "1__0 GB",
    "1_0 GB", "9" * 300, "9" * 5000, "9" * 300 + " GB", "1e60 s", "1e-300s", "\x1b[31m", "\u202e", "\udcff", "/",
    ".", "..", "none/x.csv", "=1+1", "1:2:3:4", "1,,2", ",", ":", "true", "None", "[1]", "{}", "{", "%s%n", "0x10",
    "1e3", "½", "٣", "10**9", "int8,*=", "*=int8", "heads=", "heads=2", "=", "a=b=c", "2:4", "1" * 40, "amp-",
    "int4-g0", "int4-g" + "9" * 50, "l4,l4", "l4,", "-",
)  # fmt: skip


def call(name: str, parameter: str, file: Path | str, folder: Path) -> list[str]:
    """Return the words of a command's example, with a file for one parameter and sound small ones for the others."""
    words = shlex.split(EXAMPLES[name])[1:]
    context = commands()[name].make_context(name, words[1:], resilient_parsing=True)
    for param in commands()[name].params:
        value = context.params.get(param.name)
        if isinstance(value, list | tuple):
            value = value[0] if value else None
        if param.name == parameter:
            path = str(file)
        elif value is not None and reads(name, param.name):
            sound = reads(name, param.name)[0]()
            path = str(folder / sound.name)
            Path(path).write_text(sound.text())
        else:
            continue
        if str(value) in words:
            words[words.index(str(value))] = path
        else:
            words += [path] if param.param_type_name == "argument" else [f"{param.opts[0]}={path}"]
    return words


# --- the test ---------------------------------------------------------------------------------------------------------


def run(words: list[str]) -> Result:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    return Result(code, out.getvalue(), err.getvalue())


def fault(result: Result) -> str:
    """Say what is wrong with how a run ended; empty where nothing is."""
    lines = result.err.splitlines()
    if result.code not in (0, 1, 2):
        return f"code {result.code}: {result.err[:300]}"
    if result.code == 2 and len([line for line in lines if line.startswith("roofline: error: ")]) != 1:
        return f"no one line: {result.err[:300]!r}"
    if any(not line.startswith("roofline: ") or len(line) > 4000 for line in lines):
        return f"a line that is none of ours, or a long one: {result.err[:300]!r}"
    if not all(line.isprintable() for line in (result.out + result.err).split("\n")):
        return "something is printed that a terminal obeys"
    return ""


def attempts(name: str, parameter: str, folder: Path, count: int, seed: int) -> Iterator[tuple[list[str], Path]]:
    kinds = reads(name, parameter)
    for kind in kinds:
        sound = kind()
        for number, data in enumerate(sound.damaged(max(count // len(kinds), 1), seed)):
            file = folder / sound.name
            file.write_bytes(data)
            words = call(name, parameter, file, folder / "sound")
            os.utime(file, ns=(time.time_ns(), time.time_ns() + number))
            yield words, file


@pytest.mark.parametrize(("name", "parameter"), cases())
def test_a_damaged_file_gets_a_result_or_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, parameter: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sound").mkdir()
    for words, file in attempts(name, parameter, tmp_path, 8, 0):
        assert not fault(run(words)), (words, file.read_bytes())


def worded() -> list[tuple[str, str]]:
    """Return each command with each parameter that takes a word."""
    return [(name, param.name) for name, command in commands().items() for param in command.params
            if param.metavar and name not in ("calibrate",)]  # fmt: skip


def test_a_strange_word_gets_a_result_or_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "sound").mkdir()
    rng = random.Random(0)
    for name, parameter in rng.sample(worded(), 40):
        words = call(name, parameter, rng.choice(WORDS), tmp_path / "sound")
        assert not fault(run(words)), words


def test_every_argument_of_every_command_is_fuzzed() -> None:
    arguments = {(name, param.name) for name, command in commands().items() for param in command.params
                 if param.param_type_name == "argument"}  # fmt: skip
    # A script is code, and is run as it stands; a shape is a word and no file.
    assert arguments - {("measure", "script"), ("tune", "shape")} <= set(cases())


def both(folder: Path, count: int, seed: int, only: str) -> Iterator[tuple[str, list[str], Path | None]]:
    for name, parameter in worded():
        for word in WORDS:
            if only in f"word:{name}.{parameter}":
                yield f"{name}.{parameter}", call(name, parameter, word, folder / "sound"), None
    for name, parameter in cases():
        if only in f"file:{name}.{parameter}":
            for words, file in attempts(name, parameter, folder, count, seed):
                yield f"{name}.{parameter}", words, file


def search(count: int, seed: int, only: str = "") -> None:
    """Try many, print what fails, each kind of fault once."""
    seen: dict[str, int] = {}
    folder = Path(tempfile.mkdtemp(dir=os.environ.get("FUZZ_DIR")))
    (folder / "sound").mkdir()
    os.chdir(folder)
    signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(TimeoutError("too long")))
    tried = 0
    for where, words, file in both(folder, count, seed, only):
        signal.alarm(120)
        started = time.perf_counter()
        try:
            what = fault(run(words))
        except BaseException as error:
            what = f"{type(error).__name__}: {error}"
        signal.alarm(0)
        tried += 1
        if not what and time.perf_counter() - started > 30:
            what = f"slow: {time.perf_counter() - started:.0f} s"
        if what:
            key = f"{where} {what[:150]}"
            seen[key] = seen.get(key, 0) + 1
            if seen[key] == 1:
                print(f"{len(seen)} {key}\n    {shlex.join(words)[:500]!r}", flush=True)
                if file is not None:
                    (folder / f"fail-{len(seen)}-{file.name}").write_bytes(file.read_bytes())
    print(f"{tried} tried, {len(seen)} kinds of faults: {folder}")


if __name__ == "__main__":
    search(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1, sys.argv[3] if len(sys.argv) > 3 else "")
