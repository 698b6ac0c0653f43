"""``roofline chips`` and ``roofline models``: what ships, every figure with its source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from roofline.cli import options as opt
from roofline.cli.app import LOOK_UP, command
from roofline.cli.output import note
from roofline.cli.tables import Rows, facts, heading, known, table
from roofline.frontends.source import load_program
from roofline.hardware.chip import Chip
from roofline.hardware.library import chip as find_chip
from roofline.hardware.library import chips as chip_names
from roofline.hardware.sheet import ChipFigure, figures_of
from roofline.ir.errors import RooflineError, UnknownModel
from roofline.programs.architectures import family
from roofline.programs.library import find_model
from roofline.programs.library import models as model_names
from roofline.programs.modelfile import ModelFile, load_model_file

_ChipName = Annotated[str | None, opt.argument("[NAME]", "Show this one with every figure.", opt.complete_chips)]
_ModelName = Annotated[str | None, opt.argument("[NAME]", "Show this one with every figure.", opt.complete_models)]


@command(LOOK_UP, "roofline chips h100-sxm")
def chips(output: opt.OutputOptions, what_if: opt.ChipOptions, name: _ChipName = None) -> None:
    """List the chips, or show one with every figure and its source."""
    if name is None:
        what_if.need(name)
        all_chips = [chip for one in chip_names() if (chip := _or_note(find_chip, one))]
        return output.write(Rows("chips", [_chip_row(chip) for chip in all_chips]), _chip_list(all_chips))
    chip = what_if.chip(name)
    figures = list(figures_of(chip))
    names = ("figure", "value", "unit", "source", "note")
    rows = [dict(zip(names, figure, strict=True)) for figure in figures]
    about = {"chip": chip.name, **chip.model_dump(mode="json")}
    if output.as_csv:
        about = {"chip": chip.name}  # the figures are the rows
    return output.write(Rows("chip", rows, about), _chip_sheet(chip, figures))


@command(LOOK_UP, "roofline models llama-3-8b")
def models(output: opt.OutputOptions, name: _ModelName = None) -> None:
    """List the models, or show one with every figure and its source."""
    if name is None:
        rows = [row for one in model_names() if (row := _or_note(_model_row, one))]
        return output.write(Rows("models", rows), _model_list(rows))
    about = _model(name)
    figures = [
        {"option": key, "value": value} for part in ("sizes", "options") for key, value in about.get(part, {}).items()
    ]
    if output.as_csv:
        about = {"model": about["model"]}
    return output.write(Rows("model", figures, about), _model_sheet(about, figures))


def _or_note(function: Any, name: str) -> Any:
    """Return the result, or say that this entry of a list is broken."""
    try:
        return function(name)
    except RooflineError as error:
        return note(f"{name} is left out: {error}")


# --- chips ------------------------------------------------------------------------------------------------------------


def _chip_row(chip: Chip) -> dict[str, Any]:
    """Return the figures of a chip that a list shows."""
    return {
        "chip": chip.name, "vendor": chip.vendor, "year": chip.year, "capacity_bytes": chip.main.capacity,
        "bandwidth_bytes_per_s": chip.main.bandwidth,
        "matrix_flops_per_s": {name: peak.flops for name, peak in chip.matrix.items()},
        "vector_flops_per_s": {name: peak.flops for name, peak in chip.vector.items()},
        "aliases": list(chip.aliases),
    }  # fmt: skip


def _chip_list(chips: Sequence[Chip]) -> Iterator[Any]:
    """Show the chips with the dense peak of 16-bit matmuls."""
    rows = []
    for chip in chips:
        peaks = {**chip.vector, **chip.matrix}
        half = next((name for name in ("bf16", "fp16") if name in peaks), "")
        memory = chip.main.vendor.partition(" (")[0] or known(chip.main.capacity, "B")
        peak = known(peaks[half].flops, "FLOP/s") if half else "-"
        rows.append((chip.name, chip.vendor, memory, known(chip.main.bandwidth, "B/s"), peak, half))
    yield table("<chip|?<vendor|memory|bandwidth|matmul|<in", rows)


def _chip_sheet(chip: Chip, figures: Sequence[ChipFigure]) -> Iterator[Any]:
    """Show the figures, each with the number of its source below."""
    sources = list(dict.fromkeys(figure.source for figure in figures))
    yield heading(chip.name)
    yield facts([
        ("vendor", chip.vendor), ("year", chip.year), ("form", chip.form), ("aliases", ", ".join(chip.aliases)),
        ("cores", f"{chip.cores} {chip.core_name}" if chip.cores else ""),
        ("clock", known(chip.clock, "Hz")), ("power", known(chip.tdp, "W")), ("notes", chip.notes),
    ])  # fmt: skip
    rows = [
        (one.name, one.text, f"[{sources.index(one.source) + 1}]" if one.source else "", one.note) for one in figures
    ]
    yield from ("", table("<figure|value|<source|?<note", rows), "")
    yield facts((f"[{number}]", source) for number, source in enumerate(sources, 1) if source)


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


def _model_list(models: Sequence[Mapping[str, Any]]) -> Iterator[Any]:
    rows = [
        (row["model"], row["family"], known(row["parameters"], "").strip(), row["dtype"], ", ".join(row["phases"]))
        for row in models
    ]
    yield table("<model|?<family|parameters|<format|?<phases", rows)


def _model(name: str) -> dict[str, Any]:
    """Return everything about one model, with what its layers count to."""
    graph, file = load_program(name), _file(name)
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
        "positions": graph.info.positions.most if graph.info.positions else None,
        "notes": list(graph.info.notes),
        **own,
    }


def _file(name: str) -> ModelFile | None:
    """Return the model's file, where it has one."""
    try:
        path = find_model(name)
    except UnknownModel:
        return None
    return load_model_file(path) if path.suffix == ".toml" else None


def _model_sheet(about: Mapping[str, Any], figures: Sequence[Mapping[str, Any]]) -> Iterator[Any]:
    """Show the model with every figure and its source."""
    yield heading(about["model"])
    yield facts(_model_facts(about))
    if figures:
        yield from ("", table("<size or option|value", [(row["option"], row["value"]) for row in figures]))


def _model_facts(about: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    published = about.get("parameters_published")
    yield from (("description", about.get("description")), ("family", about["family"]), ("format", about["dtype"]))
    yield from (("phases", ", ".join(about["phases"])), ("needs", ", ".join(about["sizes_needed"])))
    yield "aliases", ", ".join(about.get("aliases", ()))
    yield "parameters", f"{about['parameters']:,} counted from the layers, {about['active_parameters']:,} active"
    yield "published", f"{published:,} ({about['parameters_source']})" if published else ""
    yield "positions", f"{about['positions']:,}" if about["positions"] else ""
    yield from (("operators", f"{about['operators']:,}"), ("source", about["source"]))
    yield from (("note", text) for text in about["notes"])
