"""``roofline chips`` and ``roofline models``: what ships, every figure with its source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from roofline.cli import options as opt
from roofline.cli.app import LOOK_UP, command
from roofline.cli.output import note
from roofline.cli.tables import facts, heading, known, percent, table, time_text
from roofline.frontends.source import load_program
from roofline.hardware.chip import Chip
from roofline.hardware.library import chip as find_chip
from roofline.hardware.library import chips as chip_names
from roofline.ir.errors import RooflineError, UnknownModel
from roofline.ir.report import Report
from roofline.programs.architectures import family
from roofline.programs.library import find_model
from roofline.programs.library import models as model_names
from roofline.programs.modelfile import ModelFile, load_model_file


def _name(complete: Any) -> Any:
    return typer.Argument(
        metavar="[NAME]", autocompletion=complete, help="Show this one with every figure.", show_default=False
    )


_ChipName = Annotated[str | None, _name(opt.complete_chips)]
_ModelName = Annotated[str | None, _name(opt.complete_models)]


@command(LOOK_UP, "roofline chips h100-sxm")
def chips(output: opt.OutputOptions, name: _ChipName = None) -> None:
    """List the chips, or show one with every figure and its source."""
    if name is not None:
        sheet = ChipSheet(find_chip(name))
        return output.write(sheet, sheet.parts())
    table = ChipList(tuple(chip for one in chip_names() if (chip := _or_note(find_chip, one))))
    return output.write(table, table.parts())


@command(LOOK_UP, "roofline models llama-3-8b")
def models(output: opt.OutputOptions, name: _ModelName = None) -> None:
    """List the models, or show one with every figure and its source."""
    if name is not None:
        sheet = ModelSheet(name)
        return output.write(sheet, sheet.parts())
    table = ModelList(tuple(row for one in model_names() if (row := _or_note(_model_row, one))))
    return output.write(table, table.parts())


def _or_note(function: Any, name: str) -> Any:
    """Return the result, or say that this entry of a list is broken."""
    try:
        return function(name)
    except RooflineError as error:
        return note(f"{name} is left out: {error}")


# --- chips ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ChipList(Report):
    """The chips, one per row."""

    schema = "chips"

    chips: tuple[Chip, ...]

    def records(self) -> list[dict[str, Any]]:
        """Return the figures of each chip that a list shows."""
        return [
            {
                "chip": chip.name, "vendor": chip.vendor, "year": chip.year, "capacity_bytes": chip.main.capacity,
                "bandwidth_bytes_per_s": chip.main.bandwidth,
                "matrix_flops_per_s": {name: peak.flops for name, peak in chip.matrix.items()},
                "vector_flops_per_s": {name: peak.flops for name, peak in chip.vector.items()},
                "aliases": list(chip.aliases),
            }
            for chip in self.chips
        ]  # fmt: skip

    def parts(self) -> Iterator[Any]:
        """Show the chips with the dense peak of 16-bit matmuls."""
        rows = []
        for chip in self.chips:
            peaks = {**chip.vector, **chip.matrix}
            half = next((name for name in ("bf16", "fp16") if name in peaks), "")
            memory = chip.main.vendor.partition(" (")[0] or known(chip.main.capacity, "B")
            peak = known(peaks[half].flops, "FLOP/s") if half else "-"
            rows.append((chip.name, chip.vendor, memory, known(chip.main.bandwidth, "B/s"), peak, half))
        yield table("<chip|?<vendor|memory|bandwidth|matmul|<in", rows)


@dataclass(frozen=True)
class ChipSheet(Report):
    """One chip with every figure, each with its source."""

    schema = "chip"

    chip: Chip

    def subject(self) -> dict[str, Any]:
        """Return the chip."""
        return {"chip": self.chip.name}

    def summary(self) -> dict[str, Any]:
        """Return the chip as its file has it."""
        return self.chip.model_dump(mode="json")

    def records(self) -> list[dict[str, Any]]:
        """Return one row per figure."""
        names = ("figure", "value", "unit", "source", "note")
        return [dict(zip(names, figure, strict=True)) for figure in _figures(self.chip)]

    def parts(self) -> Iterator[Any]:
        """Show the figures, each with the number of its source below."""
        chip, figures = self.chip, self.records()
        sources = list(dict.fromkeys(row["source"] for row in figures))
        yield heading(chip.name)
        yield facts([
            ("vendor", chip.vendor), ("year", chip.year), ("form", chip.form), ("aliases", ", ".join(chip.aliases)),
            ("cores", f"{chip.cores} {chip.core_name}" if chip.cores else ""),
            ("clock", known(chip.clock, "Hz")), ("power", known(chip.tdp, "W")), ("notes", chip.notes),
        ])  # fmt: skip
        rows = [
            (row["figure"], _value(row["value"], row["unit"]),
             f"[{sources.index(row['source']) + 1}]" if row["source"] else "", row["note"])
            for row in figures
        ]  # fmt: skip
        yield from ("", table("<figure|value|<source|?<note", rows), "")
        yield facts((f"[{number}]", source) for number, source in enumerate(sources, 1) if source)


def _value(value: Any, unit: str) -> str:
    if isinstance(value, str):
        return f"runs as {value}"
    if unit == "share":
        return percent(value)
    return time_text(value) if unit == "s" else known(value, unit)


def _figures(chip: Chip) -> Iterator[tuple[str, Any, str, str, str]]:
    """Name, value, unit, source and note of every figure."""
    for unit in ("matrix", "vector"):
        for name, peak in getattr(chip, unit).items():
            details = [
                f"sums in {peak.accumulate}" * bool(peak.accumulate),
                f"at {known(peak.clock, 'Hz')}" * bool(peak.clock),
                f"2:4-sparse {known(peak.sparse, 'FLOP/s')}, for 2:4 weights alone" if peak.sparse else "",
                peak.note,
            ]
            yield f"{name} {unit}", peak.flops, "FLOP/s", peak.source, "; ".join(filter(None, details))
    for level in chip.memory:
        each = "" if level.shared_by == "chip" else "sum over the cores"
        details = [part for part in (level.vendor, each, level.note) if part]
        yield f"{level.name} capacity", level.capacity, "B", level.source, "; ".join(details)
        yield f"{level.name} bandwidth", level.bandwidth, "B/s", level.source, ""
    for link in chip.links:
        details = [part for part in ("one direction", link.note) if part]
        yield f"{link.name} ({link.kind})", link.bandwidth, "B/s", link.source, "; ".join(details)
    for name, fallback in chip.fallback.items():
        yield name, fallback.runs_as, "", fallback.source, fallback.reason
    share = chip.efficiency
    yield (
        "share of compute", share.compute, "share", share.source,
        f"{share.calibrated}; range {share.low:g} to {share.high:g}",
    )  # fmt: skip
    yield "share of bandwidth", share.memory, "share", share.source, ""
    yield "least kernel time", share.launch, "s", share.source, ""
    yield "host time per op", share.host, "s", share.source, ""


# --- models -----------------------------------------------------------------------------------------------------------


def _model_row(name: str) -> dict[str, Any]:
    """Return a line of the list, from the model's file alone."""
    file = load_model_file(find_model(name))
    return {
        "model": name, "family": file.family or "layers", "dtype": file.dtype, "parameters": file.parameters,
        "phases": _phases(file), "aliases": list(file.aliases),
    }  # fmt: skip


def _phases(file: ModelFile) -> list[str]:
    return list(family(file.family).phases) if file.family else [file.phase]


@dataclass(frozen=True)
class ModelList(Report):
    """The models, one per row."""

    schema = "models"

    rows: tuple[dict[str, Any], ...]

    def records(self) -> list[dict[str, Any]]:
        """Return what each model's file says."""
        return list(self.rows)

    def parts(self) -> Iterator[Any]:
        """Show the models."""
        rows = [
            (row["model"], row["family"], known(row["parameters"], "").strip(), row["dtype"], ", ".join(row["phases"]))
            for row in self.rows
        ]
        yield table("<model|?<family|parameters|<format|?<phases", rows)


@dataclass(frozen=True)
class ModelSheet(Report):
    """Everything about one model, with what its layers count to."""

    schema = "model"

    name: str

    def summary(self) -> dict[str, Any]:
        """Return the model's figures."""
        graph, file = load_program(self.name), _file(self.name)
        active = graph.info.active_parameters
        own = {key: getattr(file, key) for key in ("description", "aliases", "sizes", "options")} if file else {}
        return {
            "model": graph.title,
            "family": graph.info.family or "workload",
            "dtype": graph.info.dtype,
            "phases": _phases(file) if file else [],
            "parameters": graph.parameters,
            "active_parameters": graph.parameters if active is None else active,
            "parameters_published": graph.info.parameters_published,
            "parameters_source": graph.info.parameters_source,
            "operators": len(graph.nodes),
            "sizes_needed": sorted(graph.symbols),
            "source": graph.info.source or "",
            **own,
        }

    def records(self) -> list[dict[str, Any]]:
        """Return one row per size or option of its file."""
        file = _file(self.name)
        figures = {**file.sizes, **file.options} if file else {}
        return [{"option": name, "value": value} for name, value in figures.items()]

    def parts(self) -> Iterator[Any]:
        """Show the model with every figure and its source."""
        record = self.summary()
        published = record["parameters_published"]
        yield heading(record["model"])
        yield facts([
            ("description", record.get("description", "")), ("family", record["family"]), ("format", record["dtype"]),
            ("phases", ", ".join(record["phases"])), ("needs", ", ".join(record["sizes_needed"])),
            ("aliases", ", ".join(record.get("aliases", ()))),
            ("parameters", f"{record['parameters']:,} counted from the layers, {record['active_parameters']:,} active"),
            ("published", f"{published:,} ({record['parameters_source']})" if published else ""),
            ("operators", f"{record['operators']:,}"), ("source", record["source"]),
        ])  # fmt: skip
        rows = [(row["option"], row["value"]) for row in self.records()]
        if rows:
            yield from ("", table("<size or option|value", rows))


def _file(name: str) -> ModelFile | None:
    """Return the model's file, where it has one."""
    try:
        path = find_model(name)
    except UnknownModel:
        return None
    return load_model_file(path) if path.suffix == ".toml" else None
