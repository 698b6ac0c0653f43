"""A plan as a file: what to do, for which program and chip, what it is to bring, and what was checked.

The file is TOML of at most 1 MiB with numbers and words; nothing in it is run but the passes of
:data:`~roofline.optimization.steps.PASSES`. A plan is replayed on the program that it was made for and on no other.
"""

from __future__ import annotations

import importlib.metadata as metadata
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from roofline.frontends.source import Program, as_graph
from roofline.hardware.cluster import cluster as find_cluster
from roofline.ir.datafile import read_toml
from roofline.ir.errors import RooflineError, UsageError
from roofline.ir.files import user_path, whole_file
from roofline.ir.graph import Graph
from roofline.ir.numbers import whole_number
from roofline.ir.report import Report, plain
from roofline.ir.sizes import one_of
from roofline.ir.text import shown
from roofline.optimization.identity import chip_hash, differences, identity
from roofline.optimization.steps import MAX_STEPS, MAX_TEXT, RUN, State, Step, replay
from roofline.optimization.target import OBJECTIVES
from roofline.programs.library import models
from roofline.programs.modelfile import first_fault

#: Packages whose versions a plan names, where they are installed.
PACKAGES = ("numpy", "torch", "onnx", "jax", "transformers")
#: The version of the file's keys.
FORMAT = 1
Word = Annotated[str, Field(max_length=MAX_TEXT)]
Plain = bool | int | float | Word
Figure = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=False)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Program(_Table):
    title: Word
    phase: Word
    dtype: Word
    hash: Word
    parameters: int
    sizes: list[Word]
    kernels: int
    ops: dict[Word, int]
    tensors: dict[Word, int]
    given: Word | None = None
    phase_given: Word | None = None
    dtype_given: Word | None = None


class _Figures(_Table):
    time_s: Figure
    low_s: Figure
    high_s: Figure
    memory_bytes: Figure
    items_per_s: Figure
    devices: int
    batch: int | None = None
    noise: Figure
    bound: Word
    calibrated: Word


class _File(_Table):
    """The tables of a plan's file."""

    format: Annotated[int, Field(ge=1, le=FORMAT)]
    program: _Program
    chip: dict[Word, Word]
    versions: dict[Word, Word] = {}
    objective: Word
    limits: dict[Word, Plain] = {}
    sizes: dict[Word, int] = {}
    start: dict[Word, Plain] = {}
    steps: Annotated[list[dict[Word, Plain | list[Plain]]], Field(max_length=MAX_STEPS)] = []
    figures: Annotated[list[_Figures], Field(max_length=MAX_STEPS + 1)] = []
    validation: dict[Word, Plain | list[Plain]]
    remarks: Annotated[list[Word], Field(max_length=MAX_STEPS)] = []


@dataclass(frozen=True)
class Plan:
    """Steps for a program on a chip, with what they are to bring.

    From :func:`roofline.optimize` (:attr:`Optimization.plan`) or :func:`roofline.optimization.load_plan`.

    Attributes:
        program: Which program: how it was given, and its identity.
        chip: Which chip: its name and a hash of its figures; the cluster.
        versions: Of roofline, Python, and the frameworks that are installed.
        objective: What was improved.
        limits: What was to be kept: memory [byte], latency [s], error (noise over signal), devices.
        sizes: Of the program, by symbol.
        start: Settings of the run before the first step.
        steps: What to do, first to last.
        figures: What it takes before the first step and after each: times and their ranges [s], memory [byte], items a
            second, batch, error.
        validation: What was compared in numpy.
        remarks: What a reader should know.
    """

    program: Mapping[str, Any]
    chip: Mapping[str, Any]
    versions: Mapping[str, str]
    objective: str
    limits: Mapping[str, float]
    sizes: Mapping[str, int]
    start: Mapping[str, Any]
    steps: tuple[Step, ...]
    figures: tuple[Mapping[str, Any], ...]
    validation: Mapping[str, Any]
    remarks: tuple[str, ...] = ()

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the plan's file, whole or not at all.

        Args:
            path: Such as ``plan.toml``.

        Returns:
            The path.

        Raises:
            UsageError: It cannot be written there.
        """
        import tomli_w

        with whole_file(path) as stream:
            stream.write(tomli_w.dumps(_without_none(plain(self.record()))))
        return Path(path)

    def record(self) -> dict[str, Any]:
        """Return the tables of the file."""
        steps = [step.record() for step in self.steps]
        return {"format": FORMAT, **{name: getattr(self, name) for name in _File.model_fields if name != "format"},
                "steps": steps}  # fmt: skip

    def rollback(self, steps: int = 1) -> Plan:
        """Return the plan without its last steps.

        Args:
            steps: How many are taken back.

        Raises:
            UsageError: More than there are.
        """
        left = len(self.steps) - whole_number("rollback", steps, 0, len(self.steps))
        remark = f"rolled back by {steps} of {len(self.steps)} steps; the validation is of the whole plan"
        return replace(self, steps=self.steps[:left], figures=self.figures[: left + 1],
                       remarks=(*self.remarks, *([remark] if steps else [])))  # fmt: skip

    def replay(self, program: Program | None = None) -> State:
        """Apply the steps to the program that they were planned for.

        Args:
            program: That program; found by how it was given where absent.

        Returns:
            The graph, and the settings of its run.

        Raises:
            UsageError: Another program: says what changed; or one that was given as a graph, and now is not.
        """
        graph = self.given(program)
        now = identity(graph)
        if now["hash"] != self.program.get("hash"):
            raise UsageError(f"the plan was made for another program than this {graph.name}: "
                             f"{'; '.join(differences(self.program, now))}; plan again")  # fmt: skip
        devices = any(step.name == "shard" for step in self.steps)
        state = replay(graph, self.steps, cluster=find_cluster(self.where) if devices else None)
        return replace(state, run={**self.start, **state.run})

    @property
    def where(self) -> str:
        """The cluster, or the chip where none was named."""
        return str(self.chip.get("cluster") or self.chip.get("name", ""))

    def named(self) -> Graph:
        """Return the program, by how it was given.

        Raises:
            UsageError: It is no name of a model that ships.
        """
        name = self.program.get("given")
        if name not in models():  # a file may be a script, which would run
            raise UsageError(f"the plan was made for {shown(self.program.get('title'))}, not by a name that ships; "
                             "give it again: plan.replay(program), or MODEL on the command line")  # fmt: skip
        return as_graph(name, self.program.get("phase_given"), self.program.get("dtype_given"))

    def given(self, program: Program | None) -> Graph:
        """Return the program, given again; where that is by its own name, in the phase of the plan."""
        if program is None:
            return self.named()
        if program != self.program.get("title"):
            return as_graph(program)
        return as_graph(program, self.program.get("phase"), self.program.get("dtype_given"))

    def diff(self, other: Plan) -> PlanDiff:
        """Compare this plan with another one.

        Args:
            other: The other plan.
        """
        return PlanDiff(self, other)

    def __repr__(self) -> str:
        steps = ", ".join(map(repr, self.steps)) or "nothing to do"
        return f"<Plan for {self.program.get('title')} on {self.where}: {steps}>"


def _without_none(value: Any) -> Any:
    """Return data without what TOML has no word for."""
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return [_without_none(item) for item in value if item is not None] if isinstance(value, list) else value


def load_plan(path: str | os.PathLike[str]) -> Plan:
    """Read a plan's file.

    Args:
        path: The file.

    Returns:
        The plan; nothing of it has been done.

    Raises:
        UsageError: No such file, or one that holds no plan.

    Example:
        >>> import roofline as rl, tempfile, pathlib
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "plan.toml"
        >>> _ = rl.optimize("gpt2", "h100-sxm", batch=1, seq=128, error_budget=0, without="kernels").save(path)
        >>> load_plan(path).replay().run
        {'mode': 'graph'}
    """
    where = user_path(path)
    try:
        data = _File(**read_toml(where, UsageError)).model_dump(exclude_none=True)
        del data["format"]
        Step.of(RUN, **data["start"])
        one_of("objective", data["objective"], tuple(OBJECTIVES))
        steps = tuple(Step.of(_name(step), **step) for step in data.pop("steps"))
    except ValidationError as error:
        raise UsageError(f"{where}: no plan: {first_fault(error, _File)}") from None
    except RooflineError as error:
        text = str(error)
        raise UsageError(text if text.startswith(str(where)) else f"{where}: no plan: {text}") from None
    lists = {name: tuple(data[name]) for name in ("figures", "remarks")}
    return Plan(**{**data, **lists}, steps=steps)


def _name(step: dict[str, Any]) -> str:
    name = step.pop("step", None)
    if not isinstance(name, str):
        raise UsageError('a step needs its name: step = "quantize"')
    if any(not isinstance(key, str) or not key.isidentifier() for key in step):
        raise UsageError(f"{name}: options are words")
    return name


def about_program(graph: Graph, program: Program, phase: str | None, dtype: str | None) -> dict[str, Any]:
    """Return which program a plan is for: its identity, and how it was given where that was by name."""
    named = {"given": program, "phase_given": phase, "dtype_given": dtype} if isinstance(program, str) else {}
    return {**identity(graph), **{key: value for key, value in named.items() if value is not None}}


def about_chip(cluster: Any) -> dict[str, Any]:
    """Return which chip a plan is for."""
    named = {} if cluster.implied else {"cluster": cluster.name}
    return {"name": cluster.device.name, "hash": chip_hash(cluster.device), **named}


def versions() -> dict[str, str]:
    """Return the versions of all that had a part in a plan."""
    known = {"roofline": str(sys.modules["roofline"].__version__), "python": platform.python_version()}
    for name in PACKAGES:
        try:
            known[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return known


# --- two plans --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlanDiff(Report):
    """In what two plans differ.

    From :meth:`Plan.diff` of a plan of :func:`roofline.optimization.load_plan`.

    Attributes:
        first: One plan.
        second: The other one.
    """

    schema = "plan_diff"

    first: Plan
    second: Plan

    def subject(self) -> dict[str, Any]:
        """Return the program and the chip of the first."""
        return {"model": self.first.program.get("title"), "chip": self.first.where}

    def summary(self) -> dict[str, Any]:
        """Return what the plans are about where they differ, and their figures at the end."""
        return {"differs": self.about(), "first": self.end(self.first), "second": self.end(self.second)}

    @staticmethod
    def end(plan: Plan) -> dict[str, Any]:
        """Return the figures of a plan at its end."""
        return dict(plan.figures[-1]) if plan.figures else {}

    def about(self) -> list[str]:
        """Say in what the plans differ beside their steps."""
        a, b = self.first, self.second
        said = differences(a.program, b.program) if a.program.get("hash") != b.program.get("hash") else []
        for name in ("chip", "versions", "limits", "sizes", "start"):
            was, now = getattr(a, name), getattr(b, name)
            said += [f"{name} {key}: {_short(was.get(key))}, {_short(now.get(key))}"
                     for key in dict.fromkeys((*was, *now)) if was.get(key) != now.get(key)]  # fmt: skip
        if a.steps != b.steps and a.figures and self.end(a) == self.end(b):
            said.append("figures: those of both files are the same, of other steps; replay them")
        return said + [f"objective: {a.objective}, {b.objective}"] * (a.objective != b.objective)

    def records(self) -> list[dict[str, Any]]:
        """Return one dictionary per step of either: ``both``, ``first`` or ``second``."""
        a, b = self.first.steps, self.second.steps
        places = [("both" if step in b else "first", step) for step in a]
        places += [("second", step) for step in b if step not in a]
        return [{"of": place, "step": repr(step)} for place, step in places]


def _short(value: Any) -> str:
    return "none" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)[:24]
