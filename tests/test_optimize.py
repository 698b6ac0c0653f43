"""``rl.optimize``: plans within limits, never worse than the start, replayed to the same graph, and taken back."""

from __future__ import annotations

import csv
import importlib.metadata as metadata
import json
import sys
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from command_line import Run, fails
from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import examples

import roofline as rl
from roofline.optimization.moves import KINDS
from roofline.optimization.rounding import format_error

CHIPS = ("h100-sxm", "a100-80gb-sxm", "t4", "b200-sxm", "tpu-v5e", "epyc-9654")
#: Small programs of each kind: a stack of layers with a cache, one without, images, experts.
PROGRAMS = {
    "decode": ("gpt2", {"phase": "decode", "layers": 2}), "encoder": ("bert-base-uncased", {"layers": 1}),
    "images": ("resnet18", {}), "experts": ("mixtral-8x7b", {"phase": "decode", "layers": 1}),
}  # fmt: skip
SIZES = {"decode": {"context": 64}, "encoder": {"seq": 32}, "images": {}, "experts": {"context": 64}}


@cache
def program(name: str) -> rl.Graph:
    model, options = PROGRAMS[name]
    return rl.model(model, **options)


def optimized(name: str = "decode", chip: str = "h100-sxm", objective: str = "time", **options: Any) -> Any:
    quick = {"batch": 2, "check": False, "without": "kernels", "beam": 4, **options}
    return rl.optimize(program(name), chip, objective, **SIZES[name], **quick)


# --- laws -------------------------------------------------------------------------------------------------------------


@settings(max_examples=examples(12), deadline=None)
@given(st.data())
def test_a_plan_is_never_worse_within_its_limits_and_replays_to_the_same_graph(data: st.DataObject) -> None:
    name, chip = data.draw(st.sampled_from(sorted(PROGRAMS))), data.draw(st.sampled_from(CHIPS))
    objective = data.draw(st.sampled_from(["time", "memory", "throughput"]))
    budget = data.draw(st.sampled_from([0, 0.01, 0.05, 1.0]))
    found = optimized(name, chip, objective, error_budget=budget, beam=data.draw(st.sampled_from([2, 24])))
    value = found.target.value
    assert value(found.after) <= value(found.before)
    assert found.after.noise <= budget
    assert found.after.memory_bytes <= found.target.memory_limit
    assert all(found.target.allows(point.figures) for point in found.front)
    assert min(value(point.figures) for point in found.front) >= value(found.after) / 1.2
    again = rl.optimization.replay(program(name), found.plan.steps)
    assert again.graph == found.program
    assert found.plan.rollback(len(found.plan.steps)).replay(program(name)).graph == program(name)


@settings(max_examples=examples(4), deadline=None)
@given(st.sampled_from(sorted(PROGRAMS)), st.sampled_from(CHIPS))
def test_a_beam_is_no_further_from_all_plans_than_its_bound_says(name: str, chip: str) -> None:
    every = optimized(name, chip, beam=10_000)
    few = optimized(name, chip, beam=3)
    assert every.gap == 0
    assert few.after.time_s <= (1 + few.gap) * every.after.time_s * 1.03 or few.gap == 0


def test_steps_add_up_and_each_says_what_it_saves() -> None:
    found = optimized()
    rows = found.records()
    assert [row["step"] for row in rows] == [repr(step) for step in found.plan.steps]
    assert sum(row["saves_s"] for row in rows) == pytest.approx(found.before.time_s - found.after.time_s)
    assert all(row["saves_low_s"] <= row["saves_s"] <= row["saves_high_s"] for row in rows)


def test_exact_plans_compute_the_same_to_the_last_digits() -> None:
    for name in ("encoder", "images"):
        found = optimized(name, error_budget=0, check=True, without=("kernels", "run"))
        assert found.after.noise == found.validation.noise == 0
        assert found.validation.agrees
        assert found.validation.difference <= 1e-6


def test_formats_are_rounded_for_real() -> None:
    found = optimized("encoder", error_budget="20%", check=True)
    assert found.validation.agrees
    assert 0.3 * found.after.noise < found.validation.noise < 3 * found.after.noise


def test_a_plan_is_carried_out_on_a_module() -> None:
    torch = pytest.importorskip("torch")
    net, x = torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.ReLU(), torch.nn.Linear(96, 64)), torch.ones(8, 64)
    step = rl.optimization.Step.of
    steps = (step("cast", dtype="bf16"), step("run", mode="graph"), step("quantize", weights="int8"))
    found = rl.optimize(rl.from_torch(net, x), "epyc-9654", without=list(KINDS), check=False)
    found = replace(found, plan=replace(found.plan, steps=steps))
    run = found.measured(net, x, budget=0.01)
    rows = {row["step"]: row for row in run.records()}
    assert list(rows) == ["as given", *map(repr, found.plan.steps)]
    cast, rounded = rows["cast(dtype='bf16')"], rows["quantize(weights='int8')"]
    assert run.gain == cast["speedup"] == rows["as given"]["measured_s"] / cast["measured_s"]
    assert 0 < cast["noise"] < rounded["noise"] < 0.03
    assert "CUDA" in rows["run(mode='graph')"]["reason"]
    assert "kernels of its own" in rounded["reason"]
    assert rounded["measured_s"] is None
    assert next(net.parameters()).dtype == torch.float32
    with pytest.raises(rl.RooflineError, match="parameters"):
        found.measured(torch.nn.Linear(3, 3), x)


@pytest.mark.parametrize("chip", ["h100-sxm", "tpu-v5e", "epyc-9654"])
def test_no_mode_by_itself_is_faster_than_the_plan_from_eager(chip: str) -> None:
    """Rows of odd lengths too, some of which a compiler pads (torch._inductor.config.shape_padding)."""
    parts = {
        "gelu": (rl.workload([{"op": "linear", "m": 4096, "n": 4097, "k": 1023}, {"op": "gelu", "n": 4096 * 4097}],
                             dtype="bf16"), {}),
        "prefill": (rl.model("gpt2", phase="prefill", dtype="bf16", layers=1), {"batch": 8, "seq": 512}),
        "decode": (program("decode"), {"batch": 8, "context": 64}),
    }  # fmt: skip
    for graph, sizes in parts.values():
        found = rl.optimize(graph, chip, error_budget=0, check=False, **sizes)
        modes = (rl.estimate(graph, chip, mode=mode, **sizes).time for mode in ("eager", "graph", "compiled"))
        assert found.after.time_s <= 1.01 * min(modes)


def test_what_a_compiler_pads_is_what_it_padded_on_a_device() -> None:
    """Rows of ``k`` that are not aligned were padded once in fourteen times: the last row."""
    with open(Path(__file__).parents[1] / "measurements" / "h200-sxm" / "padding.csv", newline="") as file:
        *rows, seldom = csv.DictReader(file)
    assert seldom["padded"] == "True"
    for row in rows:
        linear = rl.workload([{"op": "linear", **{name: int(row[name]) for name in "mnk"}}], dtype="bf16")
        plain, compiled = (rl.estimate(linear, "h200-sxm", mode=mode).time for mode in ("graph", "compiled"))
        assert (plain > 2 * compiled) == (row["padded"] == "True")
        assert (float(row["eager_s"]) > 2 * float(row["compiled_s"])) == (row["padded"] == "True")


def test_a_replay_stays_for_what_comes_after_it_and_for_a_slow_host() -> None:
    """Kernels of a large batch take as long as the host, until they are narrow; the host may take twice as long."""
    about = {"objective": "throughput", "batch": (1, 1024), "error_budget": "5%"}
    assert optimized(**about).after.time_s <= 1.01 * optimized(**about, mode="graph").after.time_s
    close = optimized(**{**about, "batch": 520, "error_budget": 0}, without=("kernels", "linears"))
    assert close.before.time_s < 1.01 * close.after.time_s
    assert close.before.high_s > 1.5 * close.after.high_s


def test_a_step_of_training_is_compiled_and_put_in_fewer_bits_from_eager() -> None:
    step, about = rl.model("gpt2", phase="train", layers=1), {"batch": 8, "seq": 128}
    found = rl.optimize(step, "h100-sxm", error_budget="0.1%", without=("recompute", "micro_batch"), **about)
    assert [dict(each.options) for each in found.plan.steps] == [{"mode": "compiled"}, {"tf32": True}]
    assert found.after.time_s == rl.training.train(step, "h100-sxm", mode="compiled", tf32=True, **about).time
    assert found.gap == 0
    already = rl.optimize(
        step, "h100-sxm", error_budget=0, tf32=True, without=("run", "recompute", "micro_batch"), **about
    )
    assert already.plan.steps == ()


# --- golden: what the field does --------------------------------------------------------------------------------------


def test_a_small_batch_of_decode_wants_graphs_or_a_compiler_first() -> None:
    """CUDA graphs remove launch overhead of small batches (pytorch.org/blog/accelerating-pytorch-with-cuda-graphs)."""
    few = rl.model("llama-3-8b", phase="decode", layers=2)
    found = rl.optimize(few, "h100-sxm", batch=1, context=512, error_budget=0, check=False,
                        without=("kernels", "linears"))  # fmt: skip
    assert dict(found.plan.steps[0].options)["mode"] in ("graph", "compiled")
    assert found.gain > 2
    replayed = optimized(error_budget=0, policy=lambda *_: [rl.optimization.Move(
        "x", "run", rl.optimization.Step.of("run", mode="graph"))])  # fmt: skip
    assert replayed.gain > 2


def test_weights_in_four_bits_make_a_70b_fit_where_nothing_wider_does() -> None:
    """AWQ and GPTQ put 70B on one 48 to 80 GB GPU (arXiv 2306.00978, section 1; 2210.17323, section 1)."""
    others = [kind for kind in KINDS if kind not in ("formats", "cache")]
    about = {"batch": 1, "context": 512, "check": False, "without": others, "beam": 2}
    part, share = rl.model("llama-3-70b", phase="decode", layers=8), 8 / 80
    room = share * 48 * 2**30 + 4 * 2**30
    with pytest.raises(rl.errors.DoesNotFit, match=r"what helps: error_budget=0.2 \(--error-budget 20%\)"):
        rl.optimize(part, "h100-sxm", memory_limit=room, error_budget=0, **about)
    found = rl.optimize(part, "h100-sxm", memory_limit=room, error_budget="20%", **about)
    assert found.before.memory_bytes > share * 130e9
    assert any("int4" in repr(step) for step in found.plan.steps)


def test_formats_err_as_their_bits_say() -> None:
    """6.02 dB a bit (Bennett 1948) for equal steps; half an ulp at most for floating point."""
    assert format_error("int8-g128-sym") / format_error("int6-g128-sym") == pytest.approx(1 / 4, rel=0.05)
    for name, bits in (("bf16", 8), ("fp16", 11), ("tf32", 11)):
        assert 2**-bits / 4 < format_error(name) < 2**-bits


def test_a_step_of_training_recomputes_where_memory_is_short() -> None:
    about = {"phase": "train", "batch": 32, "seq": 1024, "without": ("run", "precision"), "mode": "graph"}
    wide = rl.optimize("gpt2", "h100-sxm", **about)
    need = wide.after.memory_bytes
    tight = rl.optimize("gpt2", "h100-sxm", memory_limit=need / 2, **about)
    assert tight.after.memory_bytes <= need / 2
    assert any("recompute" in repr(step) or "micro_batch" in repr(step) for step in tight.plan.steps)


def test_only_what_helps_is_said_to_help() -> None:
    for limit in ({"latency_limit": "1 ns"}, {"memory_limit": "1 MB"}):
        with pytest.raises(rl.errors.DoesNotFit, match="only other limits help: relax that of") as fault:
            optimized(**limit)
        assert "devices" not in str(fault.value)
    room = optimized(without=("formats", "cache", "kernels", "dtype"), error_budget=0).after.memory_bytes
    with pytest.raises(rl.errors.DoesNotFit, match=r"what helps: devices=2 \(--devices 2\)$"):
        optimized(without=("formats", "cache", "kernels", "dtype"), error_budget=0, memory_limit=0.95 * room)


def test_devices_share_a_program_that_one_cannot_hold() -> None:
    others = [kind for kind in KINDS if kind not in ("devices", "run")]
    part = rl.model("llama-3-70b", phase="decode", layers=8)
    found = rl.optimize(part, "h100-sxm", batch=1, context=512, devices=4, error_budget=0, memory_limit="7 GiB",
                        without=others, mode="graph")  # fmt: skip
    assert "shard(tp=4)" in map(repr, found.plan.steps)
    assert found.after.devices == 4
    assert any("exchange" in remark for remark in found.validation.remarks)


def test_the_batch_is_chosen_for_throughput_within_the_latency() -> None:
    found = rl.optimize(
        program("decode"), "h100-sxm", "throughput", context=64, latency_limit="2 ms", check=False, beam=2
    )
    assert found.after.batch > 1
    assert found.after.time_s <= 2e-3
    energy = rl.optimize(program("decode"), "h100-sxm", "energy", context=64, watts=700, check=False, beam=2,
                         without=("formats", "kernels"))  # fmt: skip
    assert energy.target.value(energy.after) == pytest.approx(700 / energy.after.rate)


# --- plan files -------------------------------------------------------------------------------------------------------


def test_a_plan_file_comes_back_as_it_was(tmp_path: Path) -> None:
    found = optimized(check=True)
    read = rl.optimization.load_plan(found.save(tmp_path / "plan.toml"))
    assert read.steps == found.plan.steps
    assert read.replay(program("decode")).graph == found.program
    assert read.record() == rl.optimization.load_plan(read.save(tmp_path / "again.toml")).record()
    assert {"roofline", "numpy", "python"} <= read.versions.keys()
    again = rl.optimization.replayed(read, program("decode"))
    assert [each.time_s for each in again.stages] == [each.time_s for each in found.stages]
    assert again.changed() == []


def test_a_plan_refuses_another_program_and_says_what_changed(tmp_path: Path) -> None:
    plan = optimized().plan
    with pytest.raises(rl.RooflineError, match=r"another program.*[0-9]+ more add.*plan again"):
        plan.replay(rl.model("gpt2", phase="decode", layers=3))
    with pytest.raises(rl.RooflineError, match="give it again"):
        plan.replay()
    script = tmp_path / "evil.py"
    script.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    named = type(plan)(**{**vars(plan), "program": {**plan.program, "given": str(script)}})
    with pytest.raises(rl.RooflineError, match="give it again"):
        named.replay()
    assert not (tmp_path / "ran").exists()


def test_a_plan_is_found_by_its_name_in_its_own_phase(run: Run, tmp_path: Path) -> None:
    step, decode = str(tmp_path / "step.toml"), str(tmp_path / "decode.toml")
    few = ["-S", "64", "--without", "kernels,formats", "-q"]
    run("optimize", "gpt2", "h100-sxm", "--phase", "train", "-B", "1", "-S", "64", "-q", "--without",
        "run,recompute,micro_batch", "-o", step)  # fmt: skip
    run("optimize", "gpt2", "h100-sxm", "--phase", "decode", *few, "-o", decode)
    for plan in (step, decode):
        again = run("optimize", "--replay", plan, "--json").data
        assert again["rows"] == run("optimize", "gpt2", "--replay", plan, "--json").data["rows"]
    fails(run("optimize", "gpt2", "--phase", "prefill", "--replay", decode), "another program")


def test_a_plan_that_is_beyond_its_limits_says_so(tmp_path: Path) -> None:
    found = optimized("encoder", error_budget="0.8%", check=True)
    assert found.validation.noise > found.target.error_budget
    assert "over the error budget of 0.008" in found.remarks[0]
    assert found.plan.remarks == found.remarks
    coarse = replace(found.plan, steps=(rl.optimization.Step.of("quantize", weights="int4-g128"),))
    said = rl.optimization.replayed(coarse, program("encoder")).changed()
    assert any("beyond its own limit: error 0.09" in text for text in said)
    assert any("the same, of other steps" in text for text in found.plan.diff(coarse).about())


def test_a_plan_file_needs_an_objective_and_its_validation(tmp_path: Path) -> None:
    path, text = tmp_path / "plan.toml", _text()
    for was, now, words in (('objective = "time"', 'objective = "foo"', "objective"),
                            ("[validation]\n", "", "validation")):  # fmt: skip
        path.write_text(text.replace(was, now), encoding="utf-8")
        with pytest.raises(rl.RooflineError, match=words):
            rl.optimization.load_plan(path)


def test_two_plans_are_told_apart() -> None:
    plan = optimized().plan
    apart = plan.diff(plan.rollback(1))
    assert [row["of"] for row in apart.records()] == ["both"] * (len(plan.steps) - 1) + ["first"]
    assert plan.diff(plan).about() == []
    assert "objective: time, memory" in plan.diff(optimized(objective="memory").plan).about()


@settings(max_examples=examples(40), deadline=None)
@given(data=st.data())
def test_a_broken_plan_file_is_one_error(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    text = _text()
    at = data.draw(st.integers(0, len(text) - 1))
    junk = data.draw(st.sampled_from(["", "\x00", '"', "[[", "= 1e999", "step", "-9" * 40, "{", "nan", "true"]))
    path = tmp_path_factory.mktemp("fuzz") / "plan.toml"
    path.write_text(text[:at] + junk + text[at + data.draw(st.integers(0, 9)) :], encoding="utf-8")
    fault = ""
    try:
        rl.optimization.load_plan(path).replay(program("decode"))
    except rl.RooflineError as error:
        fault = str(error)
    assert "\n" not in fault


@cache
def _text() -> str:
    with tempfile.TemporaryDirectory() as folder:
        return optimized(beam=2).save(Path(folder) / "plan.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("step", "words"),
    [
        ('{ step = "eval", code = "1" }', "no step is called"),
        ('{ step = "quantize", weights = "int9" }', "int9"),
        ('{ step = "run", batch = { a = 1 } }', "steps"),
        ('{ step = "fuse", graph = "x" }', "no option"),
        ("{ mode = 'graph' }", "needs its name"),
        ('{ step = "run", host = "/etc/passwd" }', "no option"),
    ],
)
def test_a_step_that_is_none_is_refused(step: str, words: str, tmp_path: Path) -> None:
    path = optimized(without=list(KINDS)).save(tmp_path / "plan.toml")
    path.write_text(path.read_text().replace("steps = []", f"steps = [{step}]"))
    with pytest.raises(rl.RooflineError, match=words):
        rl.optimization.load_plan(path).replay(program("decode"))


# --- policies ---------------------------------------------------------------------------------------------------------


def halve(graph: rl.Graph, chip: rl.Chip) -> list[rl.optimization.Move]:
    step = rl.optimization.Step.of("prune", layers=0.5)
    return [rl.optimization.Move("half the layers", "depth", step, "the function")]


def broken(graph: rl.Graph, chip: rl.Chip) -> list[str]:
    raise ValueError("no\nidea")


POINTS = [metadata.EntryPoint("halve", f"{__name__}:halve", "roofline.policies"),
          metadata.EntryPoint("broken", f"{__name__}:broken", "roofline.policies"),
          metadata.EntryPoint("absent", "no_such_module:policy", "roofline.policies")]  # fmt: skip


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = metadata.entry_points
    monkeypatch.setattr(metadata, "entry_points", lambda **about: metadata.EntryPoints(POINTS)
                        if about.get("group") == "roofline.policies" else real(**about))  # fmt: skip


@pytest.mark.usefixtures("installed")
def test_a_policy_of_an_installed_package_adds_moves() -> None:
    assert rl.optimization.policies() == ["absent", "broken", "halve"]
    assert "prune(layers=0.5)" in map(repr, optimized(policy="halve").plan.steps)
    ordered = optimized(policy=lambda graph, chip: ["cache"])
    assert {step.name for step in ordered.plan.steps} <= {"quantize"}
    assert [row["name"] for row in rl.measurement.doctor().records() if row["part"] == "policy"] == [
        "absent", "broken", "halve",
    ]  # fmt: skip


@pytest.mark.usefixtures("installed")
def test_a_policy_that_fails_is_a_remark_and_an_unknown_one_an_error() -> None:
    found = optimized(policy="broken")
    assert found.remarks == ("policy broken: ValueError: no idea; planned without it",)
    assert found.after.time_s == optimized().after.time_s
    assert "SystemExit: 3" in optimized(policy=lambda *_: sys.exit(3)).remarks[0]
    assert "expected moves" in optimized(policy=lambda *_: [1]).remarks[0]
    with pytest.raises(rl.RooflineError, match="absent cannot be loaded"):
        optimized(policy="absent")
    with pytest.raises(rl.RooflineError, match="did you mean"):
        optimized(policy="halv")


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_writes_replays_compares_and_takes_back(run: Run, tmp_path: Path) -> None:
    plan, less = str(tmp_path / "plan.toml"), str(tmp_path / "less.toml")
    made = run("optimize", "gpt2", "h100-sxm", "-S", "64", "--without", "kernels,formats", "-o", plan, "--json")
    assert made.data["improvement"] > 2
    again = run("optimize", "--replay", plan, "--rollback", "1", "-o", less, "--json").data
    assert [row["step"] for row in again["rows"]] == ["as given", *(row["step"] for row in made.data["rows"][:-1])]
    assert all(row["planned_s"] == row["time_s"] for row in again["rows"])
    assert run("optimize", "--diff", plan, less, "--json").data["rows"][-1]["of"] == "first"
    items = run("optimize", "gpt2", "h100-sxm", "-B", "1,512", "--phase", "decode", "-S", "64", "--objective",
                "throughput", "--without", "kernels,formats,cache").out  # fmt: skip
    assert "gains" in items
    assert "saves" not in items
    assert "planned" in run("optimize", "--replay", plan).out
    fails(run("optimize", "bert-base-uncased", "h100-sxm", "--replay", plan), "another program", "plan again")
    fails(run("optimize", "--replay", plan, "--rollback", "99"), "rollback")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["gpt2"], "MODEL and CHIP"),
        (["gpt2", "h100-sxm", "-S", "64", "--objective", "speed"], "objective"),
        (["gpt2", "h100-sxm", "-S", "64", "--objective", "cost"], "--price"),
        (["gpt2", "h100-sxm", "-S", "64", "--error-budget", "lots"], "error_budget"),
        (["gpt2", "h100-sxm", "-S", "64", "--error-budget", "-1"], "from 0% up to 100%"),
        (["gpt2", "h100-sxm", "-S", "64", "--without", "sleep"], "without"),
        (["gpt2", "h100-sxm", "-S", "64", "--policy", "mine"], "--policy"),
        (["gpt2", "h100-sxm", "-S", "64", "--may-prune", "cats=1"], "cats"),
        (
            ["gpt2", "h100-sxm", "-S", "64", "--latency-limit", "1us", "--without", "kernels,formats,linears"],
            "no plan is within",
        ),
        (["--replay", "/no/such.toml"], "such.toml"),
    ],
)
def test_wrong_input_is_one_line(run: Run, words: list[str], said: str) -> None:
    fails(run("optimize", *words), said)


def test_json_has_only_plain_values() -> None:
    assert json.loads(json.dumps(optimized(check=True).record(), allow_nan=False))["objective"] == "time"
