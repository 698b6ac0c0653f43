"""``roofline pipeline``: a program from how it was captured to tiles, with what each stage saves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from rich.text import Text

from roofline.cli import options as opt
from roofline.cli.app import COMPILE, command
from roofline.cli.tables import facts, heading, percent, size_text, table, time_text
from roofline.diagnosis.stages import Pipeline, Stage
from roofline.diagnosis.stages import pipeline as followed
from roofline.passes.fusion.fuse import POLICIES

_Policy = Annotated[str, opt.option(
    "--policy POLICY", f"How kernels are fused: {', '.join(POLICIES)}.", default="inductor",
    complete=tuple(POLICIES))]  # fmt: skip
_Level = Annotated[str | None, opt.option(
    "--level NAME", "The memory on chip that is filled, as the chip's file calls it; main for none.",
    default="the shared cache; without a GPU's, the cores' memories")]  # fmt: skip
#: Contractions whose tiles are listed, those that move the most.
_MOST = 5


@command(COMPILE, "roofline pipeline gpt2 h100-sxm --phase decode -B 8 -S 512")
def pipeline(
    model: opt.Model,
    chip: opt.OneChip,
    program: opt.ProgramOptions,
    sizes: opt.SizeOptions,
    output: opt.ChartOptions,
    what_if: opt.ChipOptions,
    policy: _Policy = "inductor",
    level: _Level = None,
    tf32: opt.Tf32 = None,
) -> None:
    """Follow a program: captured, cleaned, fused, planned, scheduled; what each stage saves."""
    graph = program.graph(model, what_if.cluster(chip))
    way = followed(
        graph, what_if.device(chip), policy=policy, level=level, tf32=tf32,
        **sizes.point(graph, "a pipeline of stages"),
    )  # fmt: skip
    output.write(way, _parts(way))


def _parts(way: Pipeline) -> Iterator[Any]:
    """Show the stages, what they did, and the tiles of the contractions that move the most."""
    yield heading(way)
    rows = [_row(before, stage) for before, stage in zip((None, *way.stages), way.stages, strict=False)]
    yield from ("", table("<stage|nodes|kernels|traffic|memory|time|saves|?expected", rows), "")
    yield facts([(stage.name, stage.what) for stage in way.stages])
    yield Text("time: kernels at the achievable rates; expected: by the time model, without the host", style="dim")
    moving = sorted(way.tiles, key=lambda tile: -tile.count * tile.moved_bytes)[:_MOST]
    tiles = [
        (tile.kernel, f"{tile.count:,}", tile.text,
         size_text(tile.moved_bytes), f"{tile.moved_bytes / tile.compulsory_bytes:.3g}")
        for tile in moving
    ]  # fmt: skip
    if tiles:
        yield from ("", table("<contraction|runs|<tile|moves|?of the least", tiles))
    longest = sorted(way.schedules, key=lambda each: -each.count * each.library_s)[:_MOST]
    blocks = [
        (each.kernel, *(f"{figure:,}" for figure in (
            each.count, each.best.bm, each.best.bn, each.best.bk, each.best.group, each.best.warps, each.best.stages)),
         time_text(each.best.time_s), time_text(each.library_s))
        for each in longest
    ]  # fmt: skip
    if blocks:
        yield from ("", table("<matmul|runs|bm|bn|bk|?group|?warps|?stages|takes|library", blocks), "")
        yield Text("takes: the fastest schedule; library: its own choice; each alone, from main memory", style="dim")


def _row(before: Stage | None, stage: Stage) -> tuple[str, ...]:
    share = "" if before is None or not before.time_s else percent_of(1 - stage.time_s / before.time_s)
    expected = "" if stage.expected_s is None else time_text(stage.expected_s)
    return (stage.name, f"{stage.nodes:,}", f"{stage.kernels:,}", size_text(stage.bytes), size_text(stage.memory_bytes),
            time_text(stage.time_s), share, expected)  # fmt: skip


def percent_of(share: float) -> str:
    """Return a share of the time that is saved, or with a minus what is added."""
    return percent(share) if share >= 0 else f"-{percent(-share)}"
