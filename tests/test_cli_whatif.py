"""The what-if options of the command line: estimate, check, batch, train, compare and fuse, right and wrong input."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest
from command_line import Run, fails

import roofline as rl
from roofline.cli.train import count_of

DECODE = ["gpt2", "h100-sxm", "--dtype", "bf16", "-S", "1024", "--phase", "decode", "--mode", "graph", "-B", "8"]
SMALL = ["llama-3-8b", "h100-sxm", "-S", "128"]
GPT2 = ["gpt2", "h100-sxm", "-B", "8", "-S", "1024"]


# --- for a person ---

TABLES = [
    ["estimate", *DECODE, "--tp", "4", "--weights", "int4", "--cache", "fp8"],
    ["estimate", *DECODE, "--prune", "heads=0.25,2:4", "--fuse", "chains", "--activations", "fp8", "--pp", "2"],
    ["estimate", *GPT2, "--phase", "train", "--dtype", "amp-bf16", "--dp", "2", "--zero", "2", "--recompute", "full"],
    ["check", *DECODE, "--measured", "9ms", "--tp", "2", "--weights", "int4", "--dp", "2"],
    ["check", *GPT2, "--phase", "train", "--dtype", "amp-bf16", "--measured", "66.7ms"],
    ["batch", *DECODE[:-2], "--tp", "2", "--weights", "int4", "--cache", "fp8", "--fuse", "chains"],
    ["batch", *GPT2[:2], *GPT2[4:], "--phase", "train", "--dtype", "amp-bf16"],
    ["train", *GPT2, "--precision", "amp-bf16", "--tokens", "10B"],
    ["train", "llama-3-8b", "dgx-h100", "-B", "64", "-S", "4096", "--tp", "4", "--sp", "--dp", "4", "--pp", "2",
     "--zero", "1", "--recompute", "selective", "--interleave", "2", "--tokens", "15T"],
    ["compare", DECODE[0], "--chips", "h100-sxm,dgx-a100,l4", *DECODE[2:]],
    ["fuse", *GPT2],
    ["fuse", *GPT2, "--policy", "chains"],
    *([verb, "--help"] for verb in ("check", "batch", "train", "compare", "fuse")),
]  # fmt: skip


@pytest.mark.parametrize("args", TABLES, ids=" ".join)
def test_output_fits_80_columns(run: Run, args: list[str]) -> None:
    result = run(*args)
    assert result.code in (0, 1), result.err
    assert all(line.startswith("roofline: note: ") for line in result.err.splitlines())
    assert max(map(len, result.out.splitlines())) <= 80
    assert "\x1b" not in result.out
    assert "…" not in result.out
    assert not re.search(r"\bnan\b|\binf\b|None", result.out)


@pytest.mark.parametrize("verb", ["estimate", "check"])
def test_every_what_if_has_its_option(run: Run, verb: str) -> None:
    shown = run(verb, "--help").out
    for option in ("weights", "cache", "activations", "fuse", "prune", "tp", "pp", "dp", "zero", "recompute", "json"):
        assert f"--{option} " in shown
    assert "or train" in shown


# --- what the options do ---

FORMS = {
    "weights": (["--weights", "int4"], {"weights": "int4"}),
    "by pattern": (["--weights", "int4-g128,*.down*=int8"], {"weights": "int4-g128,*.down*=int8"}),
    "cache": (["--cache", "fp8"], {"cache": "fp8"}),
    "activations": (["--activations", "fp8"], {"activations": "fp8"}),
    "fuse": (["--fuse", "chains"], {"fuse": "chains"}),
    "prune": (["--prune", "heads=0.25,layers=0.5,2:4"], {"prune": "heads=0.25,layers=0.5,2:4"}),
    "tp": (["--tp", "2"], {"tp": 2}),
    "pp": (["--pp", "2"], {"pp": 2}),
    "together": (["--tp", "2", "--weights", "int4", "--pp", "2"], {"tp": 2, "weights": "int4", "pp": 2}),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_an_option_is_the_librarys_pass(run: Run, form: str) -> None:
    options, changes = FORMS[form]
    found = run("estimate", *DECODE, *options, "--json").row
    ours = rl.estimate(
        rl.what_if(rl.model("gpt2", phase="decode", dtype="bf16"), **changes), "h100-sxm", mode="graph", B=8, C=1024
    )
    assert found["time_s"] == pytest.approx(float(ours.time), rel=1e-12)
    assert found["memory_bytes"]["total"] == pytest.approx(float(ours.memory.total), rel=1e-12)
    plain = run("estimate", *DECODE, "--json").row
    assert found != plain
    judged = run("check", *DECODE, *options, "--measured", "20ms", "--json").data
    assert judged["expected_s"] > 0
    passes = run("estimate", *DECODE, *options, "--json").data["passes"]
    assert judged["passes"][: len(passes)] == passes


def test_copies_share_the_batch(run: Run) -> None:
    whole, part = run("estimate", *DECODE, "--dp", "4", "--json"), run("estimate", *DECODE[:-1], "2", "--json")
    assert whole.data == part.data
    assert "throughput is that of one copy" in whole.err
    uneven = run("estimate", *DECODE[:-1], "8,9", "--dp", "4", "--json")
    assert [row["batch"] for row in uneven.data["rows"]] == [2, 3]


def test_the_best_batch_is_of_the_changed_program(run: Run) -> None:
    asked = ["--phase", "decode", "--mode", "graph", "--tp", "2", "--weights", "int4", "--cache", "fp8", "--json"]
    graph = rl.what_if(rl.model("gpt2", phase="decode", dtype="bf16"), tp=2, weights="int4", cache="fp8")
    ours = rl.best_batch(graph, "h100-sxm", mode="graph", C=1024)
    for where in ("h100-sxm", "dgx-h100"):
        assert run("batch", "gpt2", where, "-S", "1024", "--dtype", "bf16", *asked).data["best_batch"] == ours.best


def test_phase_train_is_a_step_of_training_in_every_verb(run: Run) -> None:
    training = [*GPT2[2:], "--phase", "train", "--dtype", "amp-bf16", "--json"]
    step = run("train", *GPT2, "--precision", "amp-bf16", "--json").data
    assert run("estimate", *GPT2[:2], *training).data == step
    row = run("compare", "gpt2", "--chips", "h100-sxm", *training).data["rows"][0]
    assert row["time_s"] == pytest.approx(step["time_s"], rel=1e-9)
    assert row["memory_bytes"]["total"] == pytest.approx(step["memory_bytes"]["total"], rel=1e-9)
    policies = {row["policy"]: row for row in run("fuse", *GPT2[:2], *training).data["rows"]}
    seconds = {row["part"]: row["time_s"] for row in step["rows"]}
    assert policies["given"]["time_s"] == pytest.approx(seconds["forward"] + seconds["backward"], rel=0.1)
    batch = run("batch", *GPT2[:2], *GPT2[4:], *training[4:]).data["best"]
    whole = run(
        "train", "gpt2", "h100-sxm", "-S", "1024", "-B", batch["batch"], "--precision", "amp-bf16", "--json"
    ).data
    assert batch["time_s"] == pytest.approx(whole["time_s"], rel=1e-9)


def test_a_step_has_stable_keys(run: Run) -> None:
    options = ["-B", "16", "-S", "512", "--dp", "2", "--zero", "1", "--tokens", "1B", "--json"]
    found = run("train", "gpt2", "h100-sxm", *options).data
    ours = rl.training.train("gpt2", "h100-sxm", batch=16, dp=2, zero=1, S=512)
    assert list(found) == [*ours.record(), "items", "time_for_items_s"]
    assert found["time_s"] == pytest.approx(sum(row["time_s"] for row in found["rows"]))
    assert found["time_for_items_s"] == pytest.approx(1e9 / (16 * 512) * found["time_s"])
    parts = list(csv.DictReader(io.StringIO(run("train", "gpt2", "h100-sxm", *options[:-1], "--csv").out)))
    assert [row["part"] for row in parts] == [row["part"] for row in found["rows"]]
    assert sum(float(row["share"]) for row in parts) == pytest.approx(1)


def test_what_has_no_loss_is_trained_without(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "mlp.toml"
    path.write_text('name = "mlp"\ndtype = "bf16"\n[inputs]\nx = ["B", 64]\n[[layer]]\nop = "linear"\nout = 128\n')
    result = run("train", path, "h100-sxm", "-B", "64", "--json")
    assert result.data["samples"] == 64
    assert "without a loss" in result.err


def test_counts_of_tokens() -> None:
    assert (count_of("300B", "--tokens"), count_of("0.5k", "--tokens")) == (3e11, 500)


# --- wrong input ---

WRONG = [
    (["--tp", "0"], ["tp=0", "from 1"]),
    (["--tp", "-1"], ["tp=-1", "from 1"]),
    (["--tp", "3"], ["32 heads on 8 key-value heads", "tp that fit: 1, 2, 4, 8, 16, 32"]),
    (["--tp", "1000"], ["tp that fit: 1, 2, 4, 8, 16, 32"]),
    (["--pp", "0"], ["nearest 1"]),
    (["--pp", "33"], ["32 layers", "nearest 32"]),
    (["--dp", "0"], ["from 1"]),
    (["--dp", "5", "-B", "4"], ["a batch of 4", "nearest: --dp 4, or -B 5"]),
    (["--dp", "5", "-B", "4,8"], ["nearest: --dp 4"]),
    (["--zero", "1"], ["--zero belongs to training"]),
    (["--recompute", "full"], ["--recompute belongs to training"]),
    (["--weights", ""], ["unknown number format ''"]),
    (["--weights", "int4-g100"], ["groups of 100", "int4-g128"]),
    (["--weights", "int4,int8"], ["PATTERN=FORMAT"]),
    (["--weights", "int4,*.nothere*=int8"], ["no matrix matches"]),
    (["--cache", "int4-g7"], ["nearest that fits: int4-g8"]),
    (["--activations", "int2"], ["unknown number format", "did you mean"]),
    (["--fuse", "chain"], ["did you mean chains?"]),
    (["--prune", ""], ["says nothing", "heads"]),
    (["--prune", "hedas=0.5"], ["did you mean heads?"]),
    (["--prune", "heads=2"], ["nearest feasible: heads=4 of 32"]),
    (["--prune", "heads=nan"], ["a share to remove"]),
    (["--prune", "heads=0.5,heads=0.25"], ["gives heads twice"]),
    (["--prune", "layers=1+1"], ["kept once"]),
    (["--prune", "layers=0+99"], ["there are 0 to 31"]),
    (["--prune", "3:4"], ["did you mean 2:4?"]),
    (["--phase", "train", "--zero", "5"], ["allowed: 0, 1, 2, 3"]),
    (["--phase", "train", "--zero", "1"], ["give dp=2 or more"]),
    (["--phase", "train", "--recompute", "some"], ["none, selective, full"]),
    (["--phase", "train", "--recompute", ""], ["none, selective, full"]),
    (["--phase", "train", "--weights", "int4"], ["--weights does not apply"]),
    (["--phase", "train", "--fuse", "chains"], ["--fuse does not apply"]),
    (["--phase", "train", "--dtype", "int4"], ["allowed: fp32"]),
    (["--phase", "train", "-B", "1,2"], ["give -B one number"]),
    (["--mod", "graph"], ["did you mean --mode?"]),
]


@pytest.mark.parametrize(("options", "words"), WRONG, ids=lambda value: " ".join(value))
def test_wrong_options_are_one_line(run: Run, options: list[str], words: list[str]) -> None:
    fails(run("estimate", *SMALL, *options), *words)
    if "-B" not in options and options[0] in ("--tp", "--zero", "--phase"):
        fails(run("check", *SMALL, *options, "--measured", "5ms"), *words)


WRONG_STEPS = [
    (["-B", "8,9", "-S", "8"], ["give -B one number"]),
    (["-B", "x", "-S", "8"], ["whole numbers from 1"]),
    (["-B", "8"], ["needs a sequence length"]),
    (["-B", "8", "-S", "8", "--micro-batch", "0"], ["micro_batch=0", "from 1"]),
    (["-B", "8", "-S", "8", "--micro-batch", "3"], ["the nearest: 6 or 9"]),
    (["-B", "8", "-S", "8", "--dp", "3"], ["the nearest: 6 or 12"]),
    (["-B", "8", "-S", "8", "--tp", "16"], ["the nearest: 8 devices", "dgx-h100"]),
    (["-B", "8", "-S", "7", "--tp", "2", "--sp"], ["the nearest: 6 or 8"]),
    (["-B", "8", "-S", "8", "--sp"], ["give tp=2"]),
    (["-B", "8", "-S", "8", "--pp", "4", "--interleave", "100"], ["nearest 32"]),
    (["-B", "2", "-S", "8", "--pp", "4", "--interleave", "2"], ["nearest 4"]),
    (["-B", "8", "-S", "8", "--ep", "2", "--dp", "2"], ["no experts"]),
    (["-B", "8", "-S", "8", "--optimizer", "adma"], ["did you mean adamw?"]),
    (["-B", "8", "-S", "8", "--precision", "fp9"], ["allowed: fp32"]),
    (["-B", "8", "-S", "8", "--tokens", "junk"], ["300B"]),
    (["-B", "8", "-S", "8", "--tokens", "0.5"], ["from 1"]),
    (["-B", "8", "-S", "8", "--tokens", "1e99"], ["to 1e21"]),
    (["-B", "8", "-S", "8", "--json", "--csv"], ["exclude each other"]),
]


@pytest.mark.parametrize(("options", "words"), WRONG_STEPS, ids=lambda value: " ".join(value))
def test_wrong_steps_are_one_line(run: Run, options: list[str], words: list[str]) -> None:
    fails(run("train", "llama-3-8b", "h100-sxm", *options), *words)


CLUSTERS = {
    "devices_per_node = 8": ["chip: missing"],
    'chip = "h100-sxm"\ndevices_per_node = 1': ["one device", "devices_per_node = 2"],
    'chip = "h100-sxm"\ndevices_per_node = 8\nnodes = 4': ["no link between them"],
    'chip = "h100-sxm"\ndevices_per_node = "eight"': ["devices_per_node", "eight"],
    'chip = "h100-sxm"\ndevices_per_node = 99999999999': ["10000000"],
    'chip = "h1000-sxm"\ndevices_per_node = 8': ["did you mean h100-sxm"],
    'chip = "h100-sxm"\ndevices_per_node = 8\nnodes = 2\nlink = "fast"': ["link"],
    'chip = "h100-sxm"\ndevices_per_node = 8\nnodes = 2\n[link]\nname = "x"\nbandwidth = "fast"': ["link.bandwidth"],
    'chip = "h100-sxm"\ndevice_per_node = 8': ["did you mean devices_per_node?"],
    "hello = [": ["not valid TOML"],
}


@pytest.mark.parametrize("text", CLUSTERS, ids=repr)
def test_a_bad_cluster_is_one_line_that_speaks_of_it(run: Run, tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(f'name = "mine"\n{text}\n')
    for args in (["train", "gpt2", path, "-B", "8"], ["estimate", "gpt2", path], ["batch", "gpt2", path]):
        fails(run(*args, "-S", "64"), str(path), *CLUSTERS[text])


def test_a_cluster_must_have_the_devices(run: Run) -> None:
    for options in (["--tp", "8", "--pp", "8"], ["--tp", "8", "--dp", "8", "-B", "8"]):
        fails(run("estimate", "llama-3-8b", "dgx-h100", "-S", "64", *options), "64 devices needed", "nodes=8")
    fails(run("train", "gpt2", "dgx-h100", "-B", "64", "-S", "64", "--dp", "64"), "64 devices needed", "nodes=8")


def test_an_error_stands_alone_whatever_notes_came_before(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "work.json"
    path.write_text('[{"op": "gemm", "m": 512, "n": 512, "k": 512}]')
    fails(run("train", path, "h100-sxm", "-B", "8"), "no symbol B")
    fails(run("estimate", path, "h100-sxm", "--dp", "2"), "no batch")
    fails(run("estimate", "gpt2", "a100-80gb-sxm", "-S", "8", "--activations", "fp8"), "no published fp8")


@pytest.mark.parametrize("text", ["junk", "5", "-5ms", "0s", "5GB", "nan"])
def test_a_measured_step_is_a_time(run: Run, text: str) -> None:
    fails(run("check", "gpt2", "h100-sxm", "-S", "8", "--phase", "train", f"--measured={text}"))


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["compare", "gpt2", "-S", "8", "--chips", "h100-sxm,nothere"], ["'nothere'"]),
        (["compare", "gpt2", "-S", "8", "--chips", ","], ["','"]),
        (["compare", "gpt2", "-S", "8", "--chips", "h100-sxm", "--mode", "fast"], ["allowed: eager"]),
        (["fuse", "gpt2", "-S", "8", "--pair", "head,head"], ["one kernel twice"]),
        (["fuse", "gpt2", "-S", "8", "--pair", "head,haed"], ["no kernel or node 'haed'"]),
        (["fuse", "gpt2", "-S", "8", "-B", "1,2"], ["give -B one number"]),
        (["batch", "llama-3-70b", "h100-sxm", "-S", "8192"], ["what would fit"]),
        (["batch", "gpt2", "h100-sxm", "-S", "1024", "--latency", "1ns"], ["above the latency limit"]),
        (["batch", "gpt2", "h100-sxm", "-S", "8", "--phase", "train", "--tp", "2"], ["--tp does not apply"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_other_verbs_refuse_in_one_line(run: Run, args: list[str], words: list[str]) -> None:
    fails(run(*args), *words)


# --- a node of eight --------------------------------------------------------------------------------------------------

_SIZES = ("--phase", "decode", "-S", "64")


@pytest.mark.parametrize("words", [
    ("estimate", "opt-1.3b", "h100-sxm", *_SIZES, "--tp", "16"),
    ("estimate", "opt-1.3b", "h100-sxm,t4", *_SIZES, "--tp", "16"),
    ("estimate", "opt-1.3b", "h100-sxm", *_SIZES, "--tp", "2", "--pp", "8"),
    ("estimate", "opt-1.3b", "h100-sxm", *_SIZES, "-B", "16", "--dp", "16"),
    ("estimate", "mixtral-8x7b", "h100-sxm", *_SIZES, "--tp", "2", "--ep", "8"),
    ("batch", "opt-1.3b", "h100-sxm", *_SIZES, "--pp", "16"),
    ("check", "opt-1.3b", "h100-sxm", *_SIZES, "--tp", "16", "--measured", "20ms"),
    ("compare", "opt-1.3b", "--chips", "h100-sxm", *_SIZES, "--tp", "16"),
    ("fuse", "opt-1.3b", "h100-sxm", *_SIZES, "--tp", "16"),
    ("plot", "opt-1.3b", "h100-sxm", *_SIZES, "--tp", "16", "-o", "never.svg"),
    ("train", "opt-1.3b", "h100-sxm", "-B", "16", "-S", "64", "--dp", "16"),
])  # fmt: skip
def test_a_chip_stands_for_a_node_of_eight(run: Run, words: tuple[str, ...]) -> None:
    fails(run(*words), "16 devices needed, it has 1 x 8", "a cluster of 2 nodes", "dgx-h100")


def test_a_result_of_a_cluster_names_it(run: Run) -> None:
    result = run("estimate", "opt-1.3b", "dgx-h100", *_SIZES, "--tp", "16", "--json")
    data = json.loads(result.out)
    assert (data["chip"], data["cluster"]) == ("h100-sxm", "dgx-h100")
    assert "opt-1.3b decode on h100-sxm of dgx-h100" in run("estimate", "opt-1.3b", "dgx-h100", *_SIZES).out


def test_devices_that_nobody_has_placed_are_noted() -> None:
    graph = rl.what_if("opt-1.3b", phase="decode", tp=16)
    note = "links between nodes: 16 devices taken as one node"
    assert any(note in text for text in rl.estimate(graph, "h100-sxm", batch=1, context=64).not_modelled)
    placed = rl.what_if("opt-1.3b", phase="decode", tp=16, cluster="dgx-h100")
    where = rl.cluster("dgx-h100").device
    assert not any(note in text for text in rl.estimate(placed, where, batch=1, context=64).not_modelled)
    with pytest.raises(rl.errors.UsageError, match="16 devices needed"):
        rl.what_if("opt-1.3b", phase="decode", tp=16, cluster="h100-sxm")
