"""Where tensors lie while a program runs: nothing overlaps, nothing sticks out, and what goes out is paid for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from command_line import Run
from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import examples

import roofline as rl
from roofline.ops.builder import Builder
from roofline.planning.memory import LOADED, MemoryPlan
from roofline.planning.placement import Arena, Block, live_bytes, overlaps, place

MIB = 2**20
STEPS = 24
BLOCKS = st.lists(
    st.builds(lambda size, first, more: Block(size, first, min(first + more, STEPS - 1)),
              st.integers(1, 5000), st.integers(0, STEPS - 1), st.integers(0, STEPS)), min_size=1, max_size=40,
)  # fmt: skip


def end(blocks: list[Block], offsets: list[Any]) -> int:
    return max(offset + block.size for block, offset in zip(blocks, offsets, strict=True))


# --- offsets ----------------------------------------------------------------------------------------------------------


@settings(max_examples=examples(200), deadline=None)
@given(BLOCKS, st.sampled_from([1, 16, 256]))
def test_blocks_never_overlap_and_take_no_more_than_all_of_them_alone(blocks: list[Block], alignment: int) -> None:
    offsets = place(blocks, Arena(alignment))
    assert list(overlaps(blocks, offsets)) == []  # type: ignore[arg-type]
    assert all(offset is not None and offset % alignment == 0 for offset in offsets)
    rounded = [Block(-(-block.size // alignment) * alignment, block.first, block.last) for block in blocks]
    assert live_bytes(blocks, STEPS).max() <= end(blocks, offsets) <= sum(block.size for block in rounded)
    assert end(rounded, offsets) <= 2 * live_bytes(rounded, STEPS).max()


@settings(max_examples=examples(100), deadline=None)
@given(BLOCKS, st.integers(1, 20_000))
def test_what_finds_no_room_is_left_out_and_the_rest_stays_inside(blocks: list[Block], capacity: int) -> None:
    offsets = place(blocks, Arena(1, capacity))
    pairs = [(block, offset) for block, offset in zip(blocks, offsets, strict=True) if offset is not None]
    inside, at = [block for block, _ in pairs], [offset for _, offset in pairs]
    assert list(overlaps(inside, at)) == []
    assert all(offset + block.size <= capacity for block, offset in pairs)
    assert all(offset is not None for block, offset in zip(blocks, offsets, strict=True) if sum(
        other.size for other in blocks if other.first <= block.last and block.first <= other.last) <= capacity
        and block.size == max(other.size for other in blocks))  # fmt: skip


def test_the_checker_finds_what_overlaps() -> None:
    blocks = [Block(8, 0, 3), Block(8, 3, 5), Block(8, 4, 6)]
    assert list(overlaps(blocks, [0, 7, 0])) == [(0, 1), (1, 2)]
    assert list(overlaps(blocks, [0, 8, 0])) == []


def test_the_example_of_minimalloc_takes_the_twelve_bytes_that_are_least() -> None:
    """The example input of https://github.com/google/minimalloc, whose ends are exclusive; its capacity is 12."""
    rows = [(0, 3, 4), (3, 9, 4), (0, 9, 4), (9, 21, 4), (0, 21, 4)]
    blocks = [Block(size, first, last - 1) for first, last, size in rows]
    assert end(blocks, place(blocks, Arena(1, 12))) == 12


def as_mobile(graph: rl.Graph) -> rl.Graph:
    """Return a graph whose kernels are those of TensorFlow Lite: a norm and a clip belong to their convolution."""
    labels: dict[str, str] = {}
    for node in graph.nodes:
        own = node.op in ("batchnorm2d", "relu6")
        labels[node.outputs[0]] = labels.get(node.inputs[0], node.name) if own else node.name
    return graph.with_nodes(replace(node, kernel=labels[node.outputs[0]]) for node in graph.nodes)


def test_mobilenet_v2_takes_what_tensorflow_lite_states() -> None:
    """65 tensors of 26 MB together (https://blog.tensorflow.org/2020/10/optimizing-tensorflow-lite-runtime.html).

    The 65th is the result of a softmax behind the head. Greedy by size reaches the lower bound: the input and the
    result of the first depthwise convolution with a step, 96 channels of 112 and of 56 points squared, 5.742 MiB.
    """
    graph = as_mobile(rl.model("mobilenet-v2", dtype="fp32"))
    plan = rl.memory_plan(graph, "h100-sxm", level="main", alignment=1, batch=1)
    sizes = [each.size_bytes for each in plan.placed if each.kind == "activation"]
    assert len(sizes) == 64
    assert (sum(sizes) + 4000) / MIB == pytest.approx(26.313, abs=5e-4)
    (use,) = plan.levels
    assert use.arena_bytes == use.live_bytes == 4 * 96 * (112**2 + 56**2)


# --- plans of programs ------------------------------------------------------------------------------------------------


def chip(sram: str | None = "1 MiB", **more: Any) -> rl.Chip:
    memory: list[Mapping[str, Any]] = [{"name": "DRAM", "capacity": "8 GB", "bandwidth": "100 GB/s", "source": "test"}]
    if sram is not None:
        memory += [{"name": "SRAM", "capacity": sram, "shared_by": "core", "source": "test", **more}]
    shares = {"compute": 1.0, "memory": 1.0, "launch": "1 us"}
    return rl.Chip(name="mine", core_name="tile", matrix={"bf16": "10 TFLOP/s"}, vector={"fp32": "1 TFLOP/s"},
                   memory=memory, efficiency=shares)  # fmt: skip


def chain(lengths: list[int]) -> rl.Graph:
    """A chain of elementwise steps on tensors of 256 KiB, then a sum with the tensor of each length back."""
    b = Builder("chain", "bf16")
    names = [b.op("relu", b.input("x", (131072,)), name="t0")]
    for at, back in enumerate(lengths, 1):
        names.append(b.op("add", names[-1], names[max(at - 1 - back, 0)], name=f"t{at}"))
    return b.graph([names[-1]])


def sound(plan: MemoryPlan) -> None:
    for use in plan.levels:
        here = [each for each in plan.placed if each.level == use.level]
        assert list(overlaps([each.block for each in here], [each.offset_bytes for each in here])) == []
        assert use.live_bytes <= use.arena_bytes
        assert max((each.end for each in here), default=0) == use.peak_bytes or not use.arena_bytes
        if use.level != plan.chip.main.name:
            assert use.fits
    ways = (plan.time_s, plan.in_time_s)
    assert plan.on_chip_s <= ways[1] * (1 + 1e-12)
    assert ways[0] <= ways[1] * (1 + 1e-12)


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(st.integers(0, 8), min_size=1, max_size=12), st.sampled_from([None, "4 KiB", "600 KiB", "2 MiB"]))
def test_plans_of_random_programs_are_sound_and_traffic_is_what_the_kernels_count(
    lengths: list[int], sram: str | None
) -> None:
    graph = chain(lengths)
    plan = rl.memory_plan(graph, chip(sram))
    sound(plan)
    counted = rl.count(graph).bytes
    assert plan.moves.main.sum() <= counted
    if sram in (None, "4 KiB"):
        assert plan.moves.main.sum() == counted
        assert plan.spilled_bytes == (0 if sram is None else counted - 2 * 2**18)


def test_a_larger_memory_on_chip_spills_no_more_and_the_bytes_are_those_of_the_tensors() -> None:
    graph = chain([4, 4, 4, 4, 4, 4])
    spilled = [rl.memory_plan(graph, chip(f"{kib} KiB")).spilled_bytes for kib in (256, 512, 768, 1024, 2048, 4096)]
    assert spilled == sorted(spilled, reverse=True)
    assert spilled[-1] == 0
    assert all(size % 2**18 == 0 for size in spilled)


def test_the_tensor_that_waits_longest_goes_out_and_comes_back_once() -> None:
    """t0 waits for the last step, while t1 and t2 are read by the next one; two of the three have room."""
    b = Builder("wait", "bf16")
    first = b.op("relu", b.input("x", (131072,)), name="t0")
    third = b.op("relu", b.op("relu", b.op("relu", first, name="t1"), name="t2"), name="t3")
    plan = rl.memory_plan(b.graph([b.op("add", third, first, name="y")]), chip("512 KiB"))
    sound(plan)
    assert {each.tensor for each in plan.placed if each.spilled} == {"t0"}
    assert (plan.moves.out.sum(), plan.moves.back.sum()) == (2**18, 2**18)
    assert plan.summary()["spill_s"] == pytest.approx(2 * 2**18 / 100e9)
    # out with the first kernel, which reads x as well; back with the last one, which writes y as well
    assert plan.spill_cost_s == pytest.approx(2 * 2**18 / 100e9)


def test_weights_come_while_the_kernel_before_leaves_main_memory_idle() -> None:
    """A product of 4096 rows takes long, the one behind it has a large weight and one row."""
    b = Builder("ahead", "bf16")
    x = b.op("linear", b.input("x", (4096, 512)), b.weight("w", (512, 512)), name="busy")
    row = b.op("slice", x, shape=(1, 512), name="row")
    plan = rl.memory_plan(b.graph([b.op("linear", row, b.weight("v", (2048, 512)), name="light")]), chip("8 MiB"))
    sound(plan)
    (loaded,) = [each for each in plan.placed if each.kind == LOADED]
    busy = 2 * 4096 * 512 * 512 / 10e12
    idle = busy - (4096 * 512 * 2 + 512 * 512 * 2) / 100e9
    assert loaded.size_bytes == min(2048 * 512 * 2, int(idle * 100e9))
    assert plan.hidden_s == pytest.approx((2048 * 512 * 2 + 2048 * 2) / 100e9 - 1e-6)  # the launch is what is left
    tight = rl.memory_plan(plan.graph, chip("4 MiB"))  # the result of the first product fills it
    assert tight.hidden_s == 0


def test_traffic_on_chip_takes_the_time_that_its_bandwidth_gives() -> None:
    graph = chain([0])
    fast, slow = (rl.memory_plan(graph, chip("1 MiB", bandwidth=each)) for each in ("10 TB/s", "20 GB/s"))
    assert fast.time_s < slow.time_s
    assert slow.seconds[1] == pytest.approx(2**18 / 20e9)  # t0 is read once for both operands


def test_a_gpu_keeps_what_kernels_hand_on_in_its_l2_and_a_tpu_in_its_vmem() -> None:
    for name, level in (("h100-sxm", "L2"), ("tpu-v5e", "VMEM"), ("wormhole-n150", "SRAM"), ("groq-lpu-v1", None)):
        plan = rl.memory_plan("mobilenet-v2", name, dtype="fp16" if name != "tpu-v5e" else "bf16", batch=2)
        sound(plan)
        assert [use.level for use in plan.levels][1:] == ([level] if level else [])


def test_plans_of_models_are_sound_under_every_level() -> None:
    for level in ("main", "L2", "sram"):
        sound(rl.memory_plan("gpt2", "h100-sxm", phase="decode", batch=4, context=512, level=level))
    sound(rl.memory_plan("resnet50", "tpu-v5e", dtype="bf16", batch=64, mode="compiled"))


@pytest.mark.parametrize("name", ["tpu-v5e", "wormhole-n150"])
def test_with_everything_in_main_memory_a_run_takes_what_the_time_model_says_of_cold_kernels(name: str) -> None:
    sizes: dict[str, Any] = {"phase": "prefill", "dtype": "bf16", "batch": 8, "seq": 512}
    plan = rl.memory_plan("gpt2", name, level="main", **sizes)
    assert plan.time_s == pytest.approx(rl.estimate("gpt2", name, mode="graph", regime="cold", **sizes).time, rel=0.1)


def test_a_caches_update_in_place_is_not_placed_twice() -> None:
    plan = rl.memory_plan("gpt2", "h100-sxm", phase="decode", batch=1, context=256)
    caches = [each for each in plan.placed if each.kind == "cache"]
    assert len({each.tensor for each in caches}) == len(caches) == 24
    assert plan.moves.main.sum() < rl.count("gpt2", phase="decode", batch=1, context=256).bytes


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"level": "L3"}, ["no memory level 'L3'", "L2"]),
        ({"level": 3}, ["level=3", "main, L2, SRAM"]),
        ({"alignment": 0}, ["alignment"]),
        ({"alignment": 2.5}, ["alignment"]),
        ({"batch": [1, 2]}, ["memory is planned for"]),
        ({"batch": 0}, ["batch"]),
        ({"batch": 10**12}, ["of tensors; allowed in a plan: up to"]),
    ],
)
def test_nonsense_is_refused_in_one_line(options: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(rl.RooflineError) as caught:
        rl.memory_plan("resnet18", "h100-sxm", **{"batch": 1, **options})
    assert all(word in str(caught.value) for word in words)
    assert "\n" not in str(caught.value)


def test_a_pipeline_and_what_is_no_plan_are_refused() -> None:
    with pytest.raises(rl.errors.UsageError, match="one device"):
        rl.memory_plan(rl.passes.pipelined(rl.model("gpt2", phase="decode"), 2), "h100-sxm", batch=1, context=8)
    with pytest.raises(rl.errors.UsageError, match=r"rl\.memory_plan"):
        rl.charts.plot_memory_plan(rl.count("gpt2", batch=1, seq=8))  # type: ignore[arg-type]


def test_the_chart_draws_each_tensor_at_its_offset() -> None:
    plan = rl.memory_plan(chain([4, 4, 4, 4, 4]), chip("512 KiB"))
    chart = rl.charts.plot(plan)
    assert [panel.title.partition(":")[0] for panel in chart.drawing().panels] == ["SRAM", "DRAM"]
    first = chart.drawing().panels[0].marks[0]
    rows = [row for row in chart.records() if row["level"] == "SRAM"]
    assert sorted(zip(first.at, first.width, strict=True)) == sorted(  # type: ignore[union-attr]
        (row["offset_bytes"] + row["size_bytes"] / 2, row["size_bytes"]) for row in rows
    )
    chart.figure()
    chart.plotly()


def test_the_command_says_what_does_not_fit_and_follows_figures_that_are_set(run: Run) -> None:
    said = run("memory-plan", "llama-3-70b", "groq-lpu-v1", "--phase", "decode", "-S", 64, "--dtype", "fp16").out
    assert re.search(r"does not fit\s+SRAM: 131\.\d+ GiB of 219", said)
    assert "spilled  " not in said.partition("the largest")[0]
    call = ("memory-plan", "resnet18", "wormhole-n150", "-B", 8, "--dtype", "bf16", "--json")
    spilled = [run(*call, "--set", f"sram={size}MiB").data["spilled_out_bytes"] for size in (4, 16, 64)]
    assert spilled == sorted(spilled, reverse=True)
    assert spilled[0] > 0 == spilled[-1]
    assert run(*call[:-1], "--level", "L3").code == 2
