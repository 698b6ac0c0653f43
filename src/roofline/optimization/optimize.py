"""``rl.optimize``: the best plan for a program on a chip within limits, with what each of its steps gains."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from roofline.analysis.estimates import Mode
from roofline.cost import REGIME
from roofline.diagnosis.advice import WORTH
from roofline.diagnosis.certainty import gain
from roofline.frontends.source import Program, as_graph
from roofline.hardware.cluster import Cluster
from roofline.hardware.cluster import cluster as find_cluster
from roofline.hardware.library import AnyChip
from roofline.ir.errors import DoesNotFit
from roofline.ir.graph import Graph, sizes_of
from roofline.ir.numbers import as_list, finite_number, whole_number
from roofline.ir.report import Report, subject
from roofline.ir.sizes import one_of
from roofline.ir.units import format_bytes, format_si, limit
from roofline.ir.units import share as parse_share
from roofline.optimization.identity import chip_hash
from roofline.optimization.measured import MeasuredPlan, carried_out
from roofline.optimization.moves import KINDS, TRAINING, Kind, Move, pruned
from roofline.optimization.plans import Plan, about_chip, about_program, versions
from roofline.optimization.policies import Policy, kinds_by
from roofline.optimization.rounding import error_class
from roofline.optimization.search import BEAM, Point, Search, bound, pareto, plan_of, rank, search, simplest, stages
from roofline.optimization.steps import RUN, State, Step
from roofline.optimization.target import OBJECTIVES, Figures, Target
from roofline.optimization.validation import Validation, validate

#: Objectives for which the batch is chosen where none is given, and the batches that are tried then.
PER_ITEM, BATCHES = ("throughput", "energy", "cost"), tuple(2**k for k in range(11))
#: What matmuls in 8 bits cause, and those in 4 bits exceed.
ERROR_BUDGET = 0.05
#: One that takes 4 bits.
LOOSER = 0.2
#: Kinds of moves for a program that has its backward already.
_CAPTURED_STEP = ("run", "kernels")


@dataclass(frozen=True)
class Optimization(Report):
    """The best plan within the limits, from :func:`roofline.optimize`.

    Attributes:
        target: What was asked.
        plan: What to do, as :meth:`save` writes it.
        moves: The move of each step.
        program: The program after the plan.
        stages: What it takes at the start and after each step.
        front: Plans within the limits that no other beats in objective, memory and error at once.
        tried: How many plans were estimated.
        gap: How much faster any plan of these moves could be than this one, at most; 0 where all were tried, infinite
            where nothing bounds it: of a step of training.
        validation: Whether the plan computes the same.
        remarks: What a reader should know.
    """

    schema = "optimize"

    target: Target
    plan: Plan
    moves: tuple[Move, ...]
    program: Graph
    stages: tuple[Figures, ...]
    front: tuple[Point, ...]
    tried: int
    gap: float
    validation: Validation | None
    remarks: tuple[str, ...] = ()

    @property
    def before(self) -> Figures:
        """The program as given."""
        return self.stages[0]

    @property
    def after(self) -> Figures:
        """The program after the plan."""
        return self.stages[-1]

    @property
    def gain(self) -> float:
        """The objective before over after."""
        return self.target.value(self.before) / self.target.value(self.after)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the plan's file, whole or not at all.

        Args:
            path: Such as ``plan.toml``; :func:`roofline.optimization.load_plan` reads it.

        Raises:
            UsageError: It cannot be written there.
        """
        return self.plan.save(path)

    def measured(self, module: Any, *args: Any, budget: float = 1.0, seed: int = 0) -> MeasuredPlan:
        """Carry the plan out on its PyTorch module, and time it after each step.

        Done is what PyTorch does to a module by itself: compilation, CUDA graphs, 16 bits, tf32, images channels last,
        folded batch norms, batches. Other steps are rows that say why not, and predictions are without them.

        Args:
            module: The ``torch.nn.Module`` that was planned for; it stays as it is.
            args: Its arguments, on the device where it is to run.
            budget: Time for the timed runs of each step [s].
            seed: Of random numbers.

        Returns:
            Measured and predicted times and gains by step, and the error of the outputs.

        Raises:
            MissingExtra: PyTorch is not installed.
            UsageError: Another module than the plan is for.

        Example:
            >>> import torch
            >>> import roofline as rl
            >>> net, x = torch.nn.Linear(64, 64), torch.zeros(8, 64)
            >>> best = rl.optimize(rl.from_torch(net, x), "epyc-9654", without="run")
            >>> best.measured(net, x, budget=0.02).rows[0].step
            'as given'
        """
        return carried_out(self.target, self.plan, module, args, budget=budget, seed=seed)

    def subject(self) -> dict[str, Any]:
        """Return the program as given, where it runs and how, and its sizes."""
        sizes = {**self.target.sizes, **({"B": self.before.batch} if self.before.batch else {})}
        mode = str(self.plan.start.get("mode", "eager"))
        return {**subject(self.target.before, self.target.chip.name, mode, sizes), "objective": self.target.objective}

    def summary(self) -> dict[str, Any]:
        """Return figures before and after, the limits, the front, and how sure all of it is."""
        value = self.target.value
        return {
            "before": self._figures(self.before), "after": self._figures(self.after), "improvement": self.gain,
            "limits": dict(self.plan.limits), "gap": self.gap, "tried": self.tried,
            "validation": self.validation.record() if self.validation else {},
            "front": [{"plan": [repr(step) for step in point.state.steps], "value": value(point.figures),
                       **self._figures(point.figures)} for point in self.front],
            "remarks": list(self.remarks),
        }  # fmt: skip

    def _figures(self, figures: Figures) -> dict[str, Any]:
        return {**asdict(figures), "error_class": error_class(figures.noise), "fits": self.target.allows(figures)}

    def records(self) -> list[dict[str, Any]]:
        """Return one dictionary per step: what it does, what it may change, what it saves by itself, and how sure."""
        rows = []
        for at, step in enumerate(self.plan.steps):
            before, after = self.stages[at], self.stages[at + 1]
            share = (before.items_per_s * before.time_s) / (after.items_per_s * after.time_s)
            now = [share * each for each in (after.time_s, after.low_s, after.high_s)]
            saved, move = gain((before.time_s, before.low_s, before.high_s), now), self.moves[at]
            rows.append({
                "step": repr(step), "move": move.name, "changes": move.changes, "needs": move.needs,
                "saves_s": saved.saves_s, "saves_low_s": saved.low_s, "saves_high_s": saved.high_s,
                "certainty": saved.certainty, "improvement": self.target.value(before) / self.target.value(after),
                **self._figures(after),
            })  # fmt: skip
        return rows

    def __repr__(self) -> str:
        times = " to ".join(format_si(each.time_s, "s") for each in (self.before, self.after))
        where = f"{self.target.before.name} on {self.target.chip.name}"
        return f"<Optimization of {where}: {times}, {len(self.plan.steps)} steps>"


def _batch_move(point: Point, first: Figures) -> tuple[Move, ...]:
    """Return the move to the batch that a plan is best at, which comes before all else; none where it is the first."""
    batch = point.figures.batch
    return (Move(f"batch {batch}", "batch", Step.of(RUN, batch=batch)),) if batch != first.batch else ()


def optimize(
    program: Program, chip: AnyChip | Cluster, objective: str = "time", *,
    memory_limit: str | float | None = None, latency_limit: str | float | None = None,
    error_budget: str | float = ERROR_BUDGET, batch: int | Sequence[int] | None = None, devices: int = 1,
    prune: str | Sequence[str] = (), price: float | None = None, watts: float | None = None, mode: Mode = "eager",
    tf32: bool | None = None, regime: str = REGIME, without: str | Sequence[str] = (),
    policy: Policy | str | None = None, check: bool = True, beam: int = BEAM, phase: str | None = None,
    dtype: str | None = None, **sizes: int,
) -> Optimization:  # fmt: skip
    """Search for the passes and settings that improve a program on a chip most, within limits.

    Tried are how it runs, devices, formats, folded batch norms, layouts, joined layers, fusion, the batch; of training
    layouts over devices, precision, recomputation, micro-batches. Numpy checks that it stays the same program.

    Args:
        program: A graph, a shipped name, or the path of a model file, workload, config or script.
        chip: A name, a path or a chip; a cluster where devices share the program.
        objective: ``time`` of a run, ``memory`` or ``throughput`` of a device, ``energy`` or ``cost`` of an item.
        memory_limit: Of a device, such as ``"72 GiB"`` [byte]; the chip's capacity by default.
        latency_limit: Of one run, such as ``"50 ms"`` [s].
        error_budget: Noise over signal that formats may add; 0 for none. 5 % takes 8 bits and refuses 4.
        batch: Of one run, or those to choose among, the present one first; 1 by default, of an item 1 to 1024.
        devices: Devices that may share it, at most.
        prune: What may be pruned, such as ``"heads=0.25"``, or several of these; nothing by default.
        price: Of a device for an hour, in any currency.
        watts: Of a device [W]; its power limit by default.
        mode: How it runs now, as for :func:`roofline.estimate`.
        tf32: Likewise.
        regime: Likewise.
        without: Kinds of moves to leave out, such as ``"run"`` or ``["formats", "cache"]``.
        policy: A function that adds moves or orders their kinds, or the name of an installed one.
        check: Compare the program before and after in numpy.
        beam: Plans that go on from one kind of moves to the next.
        phase: Of a program given by name; its default when absent.
        dtype: Number format of a program given by name; its own when absent.
        sizes: ``seq``, ``context`` and any other size of the program, single numbers.

    Returns:
        The best plan, what each of its steps gains, and the front of time against memory and error.

    Raises:
        UsageError: An unknown objective, a limit that is none, a size that is missing.
        DoesNotFit: No plan is within the limits; says which comes nearest.

    Example:
        >>> best = optimize("gpt2", "h100-sxm", batch=1, seq=128, error_budget=0)
        >>> best.plan.steps, best.gain > 2, best.validation.agrees
        ((run(mode='graph'), fuse(policy='inductor')), True, True)
    """
    graph, cluster = as_graph(program, phase, dtype), find_cluster(chip)
    limits = (memory_limit, latency_limit, error_budget)
    target = _checked_target(graph, cluster, objective, sizes, batch, limits, watts, price, devices)
    run = {"mode": mode, "tf32": tf32, "regime": None if regime == REGIME or target.training else regime}
    start = State(target.before, {name: value for name, value in run.items() if value is not None})
    target.value(target.start(start))  # what is missing is said before the search
    kinds, remark = _kinds(target, prune, without, policy)
    searched = search(target, start, kinds, whole_number("beam", beam, 2))
    best = simplest(target, start, kinds, _best(target, start, kinds, searched))
    about = about_program(graph, program, phase, dtype)
    return _result(target, start, searched, best, about, check, [remark] if remark else [])


def _checked_target(
    graph: Graph, cluster: Cluster, objective: str, sizes: Mapping[str, Any], batch: int | Sequence[int] | None,
    limits: tuple[str | float | None, str | float | None, str | float], watts: float | None, price: float | None,
    devices: int,
) -> Target:  # fmt: skip
    """Read what is asked of a plan."""
    one_of("objective", objective, tuple(OBJECTIVES))
    memory, latency, error = limits
    return _target(
        graph, cluster, sizes, batch, objective=objective,
        training=graph.info.phase == "train" and graph.backward_start is None,
        memory_limit=limit("memory_limit", memory, "B", cluster.device.main.capacity or math.inf),
        latency_limit=limit("latency_limit", latency, "s"), error_budget=parse_share(error, "error_budget", none=True),
        watts=watts and finite_number("watts", watts, 1e-9), price=price and finite_number("price", price, 1e-9),
        devices=whole_number("devices", devices, most=cluster.devices),
    )  # fmt: skip


def _target(
    graph: Graph, cluster: Cluster, sizes: Mapping[str, Any], batch: int | Sequence[int] | None, *, objective: str,
    training: bool, **limits: Any,
) -> Target:  # fmt: skip
    """Return what is asked for, of a copy of the program, so that nothing of the search stays with the original."""
    at = sizes_of(graph, sizes)
    for name, size in at.items():
        whole_number(name, size)
    batches: tuple[int, ...] = ()
    if "B" in graph.symbols:
        usual = BATCHES if objective in PER_ITEM and not training else BATCHES[:1]
        every = usual if batch is None else [batch] if isinstance(batch, int) else as_list("batch", batch)
        batches = tuple(dict.fromkeys(whole_number("batch", each) for each in every))
    elif batch is not None:
        sizes_of(graph, {"batch": batch})  # says what to do about a batch that was fixed
    fixed = {name: size for name, size in at.items() if name != "B"}
    return Target(replace(graph), cluster, objective, fixed, batches, training=training, **limits)


def _kinds(
    target: Target, prune: str | Sequence[str], without: str | Sequence[str], policy: Policy | str | None
) -> tuple[Mapping[str, Kind], str]:
    """Return the kinds of moves to try, and what a policy did wrong."""
    kinds = dict(TRAINING if target.training else KINDS)
    if target.before.backward_start is not None:
        kinds = {name: KINDS[name] for name in _CAPTURED_STEP}
    for name in [without] if isinstance(without, str) else without:
        one_of("without", name, tuple(kinds))
        kinds.pop(name)
    amounts = [prune] if isinstance(prune, str) else list(prune)
    if amounts:
        kinds = {"prune": pruned(amounts), **kinds}
    return (kinds, "") if policy is None else kinds_by(policy, target.before, target.chip, kinds)


def _best(target: Target, start: State, kinds: Mapping[str, Kind], searched: Search) -> Point:
    """Return the best plan within the limits: of those that are as good, the one that is least noisy.

    Raises:
        DoesNotFit: There is none.
    """
    best = min(searched.points, key=lambda point: rank(target, point))
    broken, most = target.broken(best.figures), (1 + WORTH) * target.value(best.figures)
    if not broken:
        near = (each for each in searched.points if target.value(each.figures) <= most and target.allows(each.figures))
        return min(near, key=lambda point: (point.figures.noise, point.figures.high_s, *rank(target, point)))
    figures = best.figures
    words = {"memory": f"{format_bytes(figures.memory_bytes)} of {format_bytes(target.memory_limit)}",
             "latency": f"{format_si(figures.time_s, 's')} of {format_si(target.latency_limit, 's')}",
             "error": f"an error of {figures.noise:.2g} of {target.error_budget:.2g}"}  # fmt: skip
    how = ", ".join(move.name for move in best.moves) or "the program as given"
    raise DoesNotFit(
        f"{target.before.name} on {target.chip.name}: no plan is within the limits; the nearest ({how}) takes "
        f"{' and '.join(words[name] for name in broken)}; " + _remedy(target, start, kinds, searched, best)
    )


def _remedy(target: Target, start: State, kinds: Mapping[str, Kind], searched: Search, best: Point) -> str:
    """Name what brings a plan within the limits: each was tried."""
    options = list[str]()
    others = [move for move in best.moves if move.kind != "devices"]
    for more in (each * target.devices for each in (2, 4, 8) if each * target.devices <= target.cluster.devices):
        wider = replace(target, devices=more)
        made = (
            plan_of(wider, start, kinds, [move, *others])
            for name, kind in kinds.items()
            if name == "devices"
            for move in kind(start, wider)
        )
        if any(point is not None and wider.allows(point.figures) for point in made):
            options.append(f"devices={more} (--devices {more})")
            break
    looser = replace(target, error_budget=LOOSER)
    if target.error_budget < LOOSER and any(looser.allows(point.figures) for point in searched.points):
        options.append(f"error_budget={LOOSER} (--error-budget {LOOSER:.0%}) for formats of 4 bits")
    if max(target.batches, default=1) > 1:
        one = replace(target, batches=(1,), known={})
        options += ["a smaller batch"] * one.allows(one.best(best.state))
    broken = ", ".join(target.broken(best.figures))
    return f"what helps: {', '.join(options)}" if options else f"only other limits help: relax that of {broken}"


def _result(
    target: Target, start: State, searched: Search, best: Point, about: Mapping[str, Any], check: bool,
    remarks: Sequence[str],
) -> Optimization:  # fmt: skip
    chosen = _batch_move(best, target.start(start))
    moves = (*chosen, *best.moves)
    rows = stages(target, start, [move.step for move in moves])
    steps, figures = rows[-1][0].steps, tuple(each for _, each in rows)
    validation = validate(target.before, steps) if check and not target.training else None
    if validation and (noise := validation.noise or 0.0) > target.error_budget:
        remarks = [
            *remarks,
            f"over the error budget of {target.error_budget:.3g}: numpy measured noise of {noise:.3g} "
            "in a layer with random weights; the budget is of formats by themselves, so measure the accuracy",
        ]
    least = best.figures.time_s if searched.exhaustive else bound(target, searched.last, best.figures)
    gap = best.figures.time_s / least - 1 if least else math.inf
    limits = {"memory_bytes": target.memory_limit, "latency_s": target.latency_limit, "error": target.error_budget,
              "devices": target.devices}  # fmt: skip
    plan = Plan(
        program=about, chip=about_chip(target.cluster), versions=versions(), objective=target.objective,
        limits={name: most for name, most in limits.items() if math.isfinite(most)}, sizes=dict(target.sizes),
        start=dict(start.run), steps=steps, figures=tuple(asdict(each) for each in figures),
        validation=validation.record() if validation else {}, remarks=tuple(remarks),
    )  # fmt: skip
    front = tuple(pareto(target, (point for point in searched.points if target.allows(point.figures))))
    return Optimization(target, plan, moves, rows[-1][0].graph, figures, front, len(searched.points), gap, validation,
                        tuple(remarks))  # fmt: skip


# --- a plan again -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Replayed(Report):
    """A plan on its program again, from :func:`roofline.optimization.replayed`.

    Attributes:
        plan: The plan.
        program: The program after it.
        chip: Where it was estimated again.
        stages: What it takes now, at the start and after each step.
    """

    schema = "plan_replay"

    plan: Plan
    program: Graph
    chip: str
    stages: tuple[Figures, ...]

    def subject(self) -> dict[str, Any]:
        """Return the program, the chip and the passes."""
        return {**subject(self.program, self.chip, None, self.plan.sizes), "objective": self.plan.objective}

    def summary(self) -> dict[str, Any]:
        """Return what the plan's file says about itself."""
        plan = self.plan
        return {"versions": dict(plan.versions), "limits": dict(plan.limits), "validation": dict(plan.validation),
                "remarks": [*plan.remarks, *self.changed()]}  # fmt: skip

    def changed(self) -> list[str]:
        """Say what is not as it was when the plan was made."""
        now = versions()
        said = [f"made with {name} {version}, this is {now.get(name, 'none')}"
                for name, version in self.plan.versions.items() if now.get(name) != version]  # fmt: skip
        at = self.stages[-1]
        reached = {"memory_bytes": at.memory_bytes, "latency_s": at.time_s, "error": at.noise}
        said += [f"beyond its own limit: {name} {reached[name]:.4g} of {most:.4g}"
                 for name, most in self.plan.limits.items() if reached.get(name, 0.0) > most]  # fmt: skip
        other = find_cluster(self.chip).device
        if other.name != self.plan.chip.get("name"):
            return [*said, f"made for {self.plan.where}"]
        return said + [f"figures of {other.name} have changed"] * (chip_hash(other) != self.plan.chip.get("hash"))

    def records(self) -> list[dict[str, Any]]:
        """Return one dictionary per step, the start first: what was predicted, and what is now."""
        steps = ["as given", *map(repr, self.plan.steps)]
        then = [*self.plan.figures, *[{}] * len(steps)]
        return [
            {"step": step, "planned_s": was.get("time_s"), **asdict(now), "error_class": error_class(now.noise)}
            for step, was, now in zip(steps, then, self.stages, strict=False)
        ]


def replayed(plan: Plan, program: Program | None = None, chip: AnyChip | Cluster | None = None) -> Replayed:
    """Replay a plan on its program and estimate each step again.

    Args:
        plan: The plan.
        program: Its program; found by its name where that ships.
        chip: Where to estimate it; the plan's own where absent.

    Returns:
        The program after the plan, and what each step takes.

    Raises:
        UsageError: Another program than the plan was made for, or sizes that it has not.

    Example:
        >>> made = optimize("gpt2", "h100-sxm", batch=1, seq=128, without="kernels")
        >>> again = replayed(made.plan)
        >>> again.program == made.program, again.stages[-1].time_s == made.after.time_s
        (True, True)
    """
    cluster = find_cluster(plan.where if chip is None else chip)
    state = plan.replay(program)
    graph = plan.given(program)
    first = plan.figures[0].get("batch") if plan.figures else 1
    batches = [each.get("batch") or 1 for each in plan.figures] if first else None
    target = _target(graph, cluster, plan.sizes, batches if "B" in graph.symbols else None, objective="time",
                     training=graph.info.phase == "train", memory_limit=math.inf, latency_limit=math.inf,
                     error_budget=math.inf, watts=None, price=None, devices=cluster.devices)  # fmt: skip
    rows = stages(target, State(target.before, dict(plan.start)), plan.steps)
    return Replayed(plan, state.graph, cluster.device.name, tuple(each for _, each in rows))
