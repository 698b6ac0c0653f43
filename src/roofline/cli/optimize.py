"""``roofline optimize``: the best plan for a program on a chip within limits; plans again, apart, and taken back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isfinite
from pathlib import Path
from typing import Annotated, Any

from rich.text import Text

from roofline.cli import options as opt
from roofline.cli.app import PREDICT, command
from roofline.cli.output import note
from roofline.cli.tables import facts, heading, percent, size_text, table, time_text
from roofline.frontends.source import Program
from roofline.ir.errors import UsageError
from roofline.ir.units import format_si
from roofline.optimization.moves import KINDS, TRAINING
from roofline.optimization.optimize import ERROR_BUDGET, Optimization, Replayed, replayed
from roofline.optimization.optimize import optimize as search
from roofline.optimization.plans import PlanDiff, load_plan
from roofline.optimization.target import OBJECTIVES

_Model = Annotated[str | None, opt.argument("[MODEL]", "As for estimate; of a plan, its program.", opt.complete_models)]
_Chip = Annotated[str | None, opt.argument("[CHIP]", "A chip, or a cluster where devices share.", opt.complete_chips)]
_Objective = Annotated[str, opt.option(
    "--objective NAME", f"What to improve: {', '.join(OBJECTIVES)}.", "Search", complete=tuple(OBJECTIVES),
    default="time")]  # fmt: skip
_Error = Annotated[str | None, opt.limit(
    "--error-budget SHARE", "Noise over signal that number formats may add, such as 1%; 0 for none. 5% takes 8 bits "
    "and refuses 4.", default=f"{ERROR_BUDGET:.0%}")]  # fmt: skip
_Devices = Annotated[int, opt.option("--devices N", "Devices that may share it, at most.", "Search", default="1")]
_Price = Annotated[float | None, opt.option("--price X", "Of a device for an hour, for --objective cost.", "Search")]
_Watts = Annotated[float | None, opt.option(
    "--watts W", "Of a device, for --objective energy.", "Search", default="its power limit")]  # fmt: skip
_May = Annotated[list[str] | None, opt.option(
    "--may-prune WHAT", "Allow to prune, such as heads=0.25; anew for more.", "Search",
    default="nothing")]  # fmt: skip
_Without = Annotated[str | None, opt.option(
    "--without KINDS", f"Kinds of moves to leave out: {', '.join({**KINDS, **TRAINING})}.", "Search")]  # fmt: skip
_Policy = Annotated[str | None, opt.option("--policy NAME", "An installed policy; doctor lists them.", "Search")]
_Plan = Annotated[Path | None, opt.option("--output -o PLAN.toml", "Write the plan here.", "Plans")]
_Replay = Annotated[str | None, opt.option("--replay PLAN.toml", "Estimate a plan again, step by step.", "Plans")]
_Diff = Annotated[tuple[str, str] | None, opt.option("--diff A.toml B.toml", "Compare two plans.", "Plans")]
_Rollback = Annotated[int, opt.option(
    "--rollback N", "Take back the last steps of the plan of --replay.", "Plans", default="0")]  # fmt: skip
#: Plans of the front that are listed.
_MOST = 8


@command(PREDICT, "roofline optimize llama-3-8b h100-sxm --phase decode -B 8 -S 2048 -o plan.toml")
def optimize(
    program: opt.ProgramOptions,
    sizes: opt.SizeOptions,
    limits: opt.LimitOptions,
    run: opt.RunOptions,
    output: opt.ChartOptions,
    model: _Model = None,
    chip: _Chip = None,
    objective: _Objective = "time",
    error_budget: _Error = None,
    devices: _Devices = 1,
    price: _Price = None,
    watts: _Watts = None,
    may_prune: _May = None,
    without: _Without = None,
    policy: _Policy = None,
    plan: _Plan = None,
    replay: _Replay = None,
    diff: _Diff = None,
    rollback: _Rollback = 0,
) -> None:
    """Find the passes and settings that improve a program on a chip most, within limits; keep them as a plan."""
    opt.exclusive(replay=replay is not None, diff=diff is not None)
    if diff is not None:
        apart = load_plan(diff[0]).diff(load_plan(diff[1]))
        return output.write(apart, _apart(apart))
    if replay is not None:
        stored = load_plan(replay).rollback(rollback)
        program_given = None if model is None else _given(model, chip, program, run, replay=True)
        anew = replayed(stored, program_given, None if chip is None else run.cluster(chip))
        _save(stored, plan)
        return output.write(anew, _again(anew))
    if model is None or chip is None:
        raise UsageError("expected MODEL and CHIP, such as: optimize gpt2 h100-sxm -S 128; or --replay, or --diff")
    memory, latency = limits.limits()
    subject, cluster = _given(model, chip, program, run), run.cluster(chip)
    graph = program.graph(model, cluster, step=False) if isinstance(subject, str) else subject
    point = sizes.of(graph)  # type: ignore[arg-type]
    batch = point.pop("B", None) if sizes.batch is not None else point.pop("B", None) and None
    result = search(
        subject, cluster, objective, memory_limit=memory, latency_limit=latency,
        error_budget=ERROR_BUDGET if error_budget is None else error_budget, batch=batch, devices=devices,
        prune=may_prune or (), price=price, watts=watts, **run.keywords,
        without=opt.names(without) if without else (), policy=policy,
        phase=program.phase if isinstance(subject, str) else None,
        dtype=program.dtype if isinstance(subject, str) else None, **point,
    )  # fmt: skip
    _save(result.plan, plan)
    output.write(result, _parts(result))


def _given(
    model: str, chip: str | None, program: opt.ProgramOptions, run: opt.RunOptions, *, replay: bool = False
) -> Program:
    """Return a program by its name where nothing is changed about it, so that a plan can find it anew."""
    graph = program.graph(model, None if chip is None else run.cluster(chip), step=False)
    passes = [step for step in graph.history if step.name != "cast" or program.dtype is None]
    return graph if passes or (replay and (program.phase or program.dtype)) else model


def _save(plan: Any, path: Path | None) -> None:
    if path is not None:
        note(f"plan written to {plan.save(path)}")


def _parts(result: Optimization) -> Iterator[Any]:
    """Show what the plan gains, step by step, what is known of it, and the front."""
    yield heading(result)
    gains = "saves" if result.target.objective == "time" else "gains"
    yield from ("", table(f"<step|time|?range|{gains}|<sure|memory|error", _steps(result)), "")
    yield facts(_facts(result))
    yield from ("", table("<plans that no other beats|time|?batch|memory|error", _front(result)))
    for text in result.remarks:
        yield Text(text, style="yellow")


def _steps(result: Optimization) -> Iterator[Sequence[Any]]:
    first = result.before
    yield ("as given", time_text(first.time_s), *_range(first), "", "", size_text(first.memory_bytes), "")
    objective = result.target.objective
    for row, figures in zip(result.records(), result.stages[1:], strict=True):
        gains = time_text(row["saves_s"]) if objective == "time" else _times(row["improvement"])
        sure = row["certainty"] if objective != "memory" else ""  # how sure the time is, which memory is not
        yield (row["move"], time_text(figures.time_s), *_range(figures), gains, sure,
               size_text(figures.memory_bytes), percent(figures.noise))  # fmt: skip


def _times(factor: float) -> str:
    return f"{factor:,.0f}x" if factor >= 1000 else f"{factor:.3g}x"


def _range(figures: Any) -> tuple[str]:
    return (f"{time_text(figures.low_s)} to {time_text(figures.high_s)}",)


def _facts(result: Optimization) -> list[tuple[str, Any]]:
    objective, target = OBJECTIVES[result.target.objective], result.target
    before, after = (format_si(target.value(each), objective.unit) for each in (result.before, result.after))
    limits = [f"{name} {text}" for name, text in (
        ("memory", size_text(target.memory_limit) if target.memory_limit < float("inf") else ""),
        ("latency", time_text(target.latency_limit) if target.latency_limit < float("inf") else ""),
        ("error", percent(target.error_budget))) if text]  # fmt: skip
    most = f"no plan of these moves is more than {1 + result.gap:.2g}x faster"
    rest = (
        f"a beam; {most if isfinite(result.gap) and target.objective != 'memory' else 'it left others out'}"
        if result.gap
        else "all there are"
    )
    needs = dict.fromkeys(move.needs for move in result.moves if move.needs)
    changes = dict.fromkeys(move.changes for move in result.moves)
    return [
        (objective.what, f"{before} before, {after} after: {_times(result.gain)}"), ("limits", ", ".join(limits)),
        ("needs", "; ".join(needs)), ("changes", "; ".join(changes)), ("checked", _checked(result)),
        ("tried", f"{result.tried:,} plans, {rest}"),
        ("efficiencies", f"{result.after.calibrated}; {result.after.bound}-bound after"),
    ]  # fmt: skip


def _checked(result: Optimization) -> Any:
    check = result.validation
    if check is None or check.agrees is None:
        return "; ".join(check.remarks) if check else "not in numpy: a step of training"
    text = f"in numpy, on a smaller program: the same to {check.difference:.2g}"
    if check.noise:
        text += f"; rounded, with random weights: {percent(check.noise)} noise"
    text = "; ".join([text, *check.remarks])
    return text if check.agrees else Text(text, style="bold red")


def _front(result: Optimization) -> list[Sequence[Any]]:
    return [
        (", ".join(move.name for move in point.moves) or "as given", time_text(point.figures.time_s),
         point.figures.batch or "", size_text(point.figures.memory_bytes), percent(point.figures.noise))
        for point in result.front[:_MOST]
    ]  # fmt: skip


def _again(anew: Replayed) -> Iterator[Any]:
    """Show a plan step by step, as planned and now."""
    yield heading(anew)
    rows = [(row["step"], time_text(row["planned_s"]) if row["planned_s"] else "-", time_text(row["time_s"]),
             size_text(row["memory_bytes"]), percent(row["noise"])) for row in anew.records()]  # fmt: skip
    yield from ("", table("<step|planned|now|memory|error", rows))
    yield from anew.summary()["remarks"]


def _apart(apart: PlanDiff) -> Iterator[Any]:
    """Show in what two plans differ."""
    yield heading(apart)
    yield from ("", table("<of|<step", [(row["of"], row["step"]) for row in apart.records()]))
    ends = [apart.end(plan) for plan in (apart.first, apart.second)]
    yield facts([(word, f"{time_text(end['time_s'])}, {size_text(end['memory_bytes'])}, {percent(end['noise'])} error")
                 for word, end in zip(("first", "second"), ends, strict=True) if end])  # fmt: skip
    yield from apart.about()
