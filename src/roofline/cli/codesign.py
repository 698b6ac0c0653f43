"""``roofline codesign``: the cheapest or smallest chip that meets a target over some programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from roofline.analysis.chip_sweep import POINTS
from roofline.cli import options as opt
from roofline.cli.app import PREDICT, command
from roofline.cli.tables import facts, percent, size_text, table, time_text
from roofline.codesign.search import OBJECTIVES, CoDesign, Goal, search, words
from roofline.codesign.silicon import RETICLE, YIELDS, Silicon
from roofline.ir.errors import UsageError

#: Chips of the front, and figures, that are shown.
SHOWN, MOST = 16, 8

_Goals = Annotated[list[str] | None, opt.argument(
    "GOALS...", "Programs with what a run may take: 'llama-3-8b decode batch=8 context=2048: 6ms'.")]  # fmt: skip
_Base = Annotated[str, opt.option(
    "--base CHIP", "What the chips differ from.", "Chip", complete=opt.complete_chips, default="h100-sxm")]  # fmt: skip
_Set = Annotated[list[str] | None, opt.option(
    "--set NAME=VALUES", "A figure that varies: flops=200T..2P, bandwidth=1T..8T, l2=10MiB,50MiB; again for more.",
    "Chip")]  # fmt: skip
_Points = Annotated[int, opt.option("--points N", "Values of a range.", "Chip", default=str(POINTS))]
_Objective = Annotated[str, opt.option(
    "--objective WHAT", "What is to be least.", "Silicon", complete=tuple(OBJECTIVES), default="area")]  # fmt: skip
_Node = Annotated[str, opt.option("--node NODE", "N16, N7, N6 or N5.", "Silicon", default="N5")]
_Memory = Annotated[opt.Text, opt.option(
    "--memory KIND", "hbm2, hbm2e, hbm3 or ddr5.", "Silicon", default="the node's usual")]  # fmt: skip
_Technology = Annotated[opt.Text, opt.option(
    "--technology FILE.toml", "Figures of your own over the shipped ones.", "Silicon")]  # fmt: skip
_Dies = Annotated[int, opt.option("--dies N", "Dies of equal size that the chip is cut into.", "Silicon", default="1")]
_Yield = Annotated[str, opt.option(
    "--yield MODEL", "How defects become yield.", "Silicon", complete=YIELDS, default=YIELDS[0])]  # fmt: skip


@command(PREDICT, "roofline codesign 'llama-3-8b decode batch=8 context=2048: 6ms' --set flops=200T..2P "
                  "--set bandwidth=1T..8T --objective cost")  # fmt: skip
def codesign(
    output: opt.ChartOptions,
    goals: _Goals = None,
    base: _Base = "h100-sxm",
    figures: _Set = None,
    points: _Points = POINTS,
    objective: _Objective = "area",
    node: _Node = "N5",
    memory: _Memory = None,
    technology: _Technology = None,
    yield_model: _Yield = YIELDS[0],
    dies: _Dies = 1,
) -> None:
    """Find the smallest or cheapest chip that meets a target over some programs, and what each figure of it buys."""
    if not figures:
        raise UsageError("codesign: no figure varies; give one, such as --set bandwidth=1T..8T")
    varied = dict(opt.varied_figure(text) for text in figures)
    result = search(
        list(map(Goal.read, goals or ())), varied, base=base, objective=objective, node=node, memory_kind=memory,
        own=technology, points=points, yield_model=yield_model, dies=dies,
    )  # fmt: skip
    output.write(result, _parts(result))


def _parts(result: CoDesign) -> Iterator[Any]:
    number = result.nearest
    made = result.silicon_at(number)
    met = "meets every limit" if result.best is not None else "none meets every limit; this one comes nearest"
    tech = made.technology
    dies = f"{made.dies} die{'s' * (made.dies > 1)}, yield {percent(made.yield_)}"
    yield facts([
        ("best chip", f"{result.text_at(number)}: {met}"),
        ("takes", f"{made.area:,.0f} mm2 in {tech.node}, {dies}, "
         f"{made.die_cost:,.0f} USD, and {made.memory_cost:,.0f} USD of {tech.memory}"),
        ("left out", ", ".join(made.left_out)),
        ("chips", f"{result.values.size:,}, of which {int(result.meets.sum()):,} meet every limit{_missed(result)}"),
        *_why(result, made),
    ])  # fmt: skip
    yield from ("", table("<program|limit|time|?as it is", [
        (goal.name, "" if goal.seconds is None else time_text(goal.seconds), time_text(float(time)),
         time_text(float(sweep.base.time)))
        for goal, time, sweep in zip(result.goals, result.times[:, number], result.sweeps, strict=True)
    ]))  # fmt: skip
    yield from ("", table("<part|mm2|share", [(row["part"], f"{row['area_mm2']:.1f}", percent(row["share"]))
                                              for row in made.records()]))  # fmt: skip
    whole = sorted(result.sensitivity["all"].items(), key=lambda pair: -abs(pair[1]))[:MOST]
    heads = [f"?{name.split()[0]}" for name in result.sensitivity if name != "all"] if len(result.goals) > 1 else []
    yield from ("", table("|".join(["<figure", "all", *heads]), [
        [name, f"{value:.2f}", *(f"{own.get(name, 0.0):.2f}" for goal, own in result.sensitivity.items()
                                 if goal != "all" and heads)]
        for name, value in whole if abs(value) >= 0.005
    ], "time that one per cent more of a figure saves [%]"))  # fmt: skip
    yield from ("", _front(result))


def _missed(result: CoDesign) -> str:
    """Say how many chips miss each limit."""
    words = {"die": "are larger than a scanner exposes", "memory": "have too little memory"}
    said = [f"{int(missed.sum()):,} {words.get(name, f'are too slow for {name}')}"
            for name, missed in result.misses if missed.any()]  # fmt: skip
    return "".join(f"; {text}" for text in said)


def _why(result: CoDesign, made: Silicon) -> Iterator[tuple[str, str]]:
    """Say which limits the nearest chip misses, and what makes a die of it."""
    words = {"die": f"a die of {made.area / made.dies:,.0f} mm2, where a scanner exposes {RETICLE:,.0f}: "
                    f"--dies {-(-made.area // RETICLE):.0f}",
             "memory": f"memory, of which it has {size_text(made.chip.capacity)}"}  # fmt: skip
    missed = [words.get(name, f"the time of {name}") for name in result.missed_at(result.nearest)]
    yield from [("misses", "; ".join(missed))] * bool(missed)


def _front(result: CoDesign) -> Any:
    """Return chips of the front, the least first, thinned out where there are many."""
    front = list(zip(result.front, result.records(), strict=True))
    apart = max(1, -(-len(front) // SHOWN))
    rows = [[*result.figures_at(number).values(), words(float(result.values[number]), result.objective),
             f"{row['area_mm2']:,.0f}", f"{row['cost_usd']:,.0f}", f"{row['pace']:.3g}",
             ", ".join(dict.fromkeys(name if name in ("die", "memory") else "time" for name in row["misses"]))]
            for at, (number, row) in enumerate(front) if at % apart == 0 or number == result.nearest]  # fmt: skip
    heads = "|".join(result.figures_at(result.nearest))
    return table(f"{heads}|{result.objective}|?mm2|?USD|worst/limit|misses", rows, "front")
