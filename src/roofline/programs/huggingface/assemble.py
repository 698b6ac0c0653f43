"""A table of keys to a graph: read, checked, built by its family, stored as its checkpoint is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from roofline.ir.errors import UsageError, did_you_mean
from roofline.ir.graph import Graph
from roofline.programs.huggingface.composites import OUTER
from roofline.programs.huggingface.keys import Keys
from roofline.programs.huggingface.quantised import quantise
from roofline.programs.huggingface.select import Parts, head_options, vision_keys
from roofline.programs.joining import beside
from roofline.programs.modelfile import build_model, check_model_file

#: Keys by which configs name their number format, now and before.
_DTYPES = ("dtype", "torch_dtype")
#: What an absent key of these means is worth saying.
_SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")


def build_one(
    keys: Keys,
    outer: Mapping[str, Any],
    name: str,
    phase: str | None,
    overrides: Mapping[str, Any],
    extra: Mapping[str, Any] | None = None,
) -> Graph:
    """Build one model.

    Args:
        keys: Its config.
        outer: The config that it is nested in, or itself.
        name: What to call it.
        phase: As for :func:`~roofline.programs.huggingface.from_config`.
        overrides: Sizes and options that win over the config's.
        extra: Options of a tower that follow from what it is joined with, instead of from its ``architectures``.

    Raises:
        ModelDataError: A key that is not understood; names it.
    """
    values = options_of(keys)
    number_format = _dtype(keys, outer)
    values |= head_options(outer, keys.kind, keys.where) if extra is None else extra
    quantised = outer.get("quantization_config") or keys.get("quantization_config")
    keys.ignore("quantization_config", "model_type", "architectures")
    if quantised and not isinstance(quantised, Mapping):
        keys.fail("quantization_config", f"wanted a table of keys, given {str(quantised)[:60]!r}")
    ignored = keys.unread()
    absent = [key for key in _SIZES if key in keys.used and keys.name(key) not in keys.table and keys.get(key)]
    if absent and keys.table is outer:  # a nested config leaves defaults out as a rule
        said = ", ".join(f"{keys.name(key)} = {keys.get(key)}" for key in absent)
        keys.notes.append(f"absent from the config, so the default of {keys.table['model_type']}: {said}")
    file = check_model_file(
        {
            "name": name,
            "family": keys.kind.family.name,
            "dtype": number_format,
            "source": keys.where,
            "options": values,
        },
        keys.where,
    )
    graph = quantise(build_model(file, keys.where, phase, overrides, keys.kind.family), keys, quantised or {})
    return graph.with_info(notes=tuple(keys.notes), ignored=ignored)


def build_parts(parts: Parts, tower: str | None, name: str, phase: str | None, overrides: Mapping[str, Any]) -> Graph:
    """Build the parts of a config that are asked for.

    Raises:
        UsageError: No such part.
        ModelDataError: A part that is not modelled.
    """
    chosen = tower or (parts.composite.tower if parts.composite else "text")
    if chosen not in ("text", "vision", "all"):
        raise UsageError(f"tower: {str(chosen)[:60]!r}; allowed: text, vision, all{did_you_mean(chosen, _PARTS)}")
    if chosen == "text":
        graph = build_one(parts.text, parts.outer, name, phase, overrides, _text_extra(parts, None))
        return _without(graph, parts, parts.towers)
    where = parts.text.where
    vision = vision_keys(parts, where)
    outer = Keys(where, parts.outer, parts.composite.defaults if parts.composite else {}, OUTER)
    options = _vision_extra(parts, outer, vision)
    if chosen == "vision":
        return build_one(vision, parts.outer, f"{name} vision", phase, overrides, options)
    text = build_one(parts.text, parts.outer, name, phase, overrides, _text_extra(parts, outer))
    tower_graph = build_one(vision, _plain(parts.outer), f"{name} vision", None, {}, options)
    text = _without(text, parts, [key for key in parts.towers if key != "vision_config"])
    return beside(text, {"vision": tower_graph}, run=text.info.phase != "decode")


_PARTS = ("text", "vision", "all")


def _without(graph: Graph, parts: Parts, towers: Iterable[str]) -> Graph:
    """Say which towers are not built, and how to have the one that could be."""
    known = {"vision_config"} if parts.composite else set()
    notes = (
        f'{key} is left out; rl.from_config(..., tower="all") builds both' if key in known else f"{key} is not modelled"
        for key in towers
    )
    return graph.with_notes(*notes)


def _plain(outer: Mapping[str, Any]) -> dict[str, Any]:
    """The outer config without its quantisation, which language models alone have as a rule."""
    return {key: value for key, value in outer.items() if key != "quantization_config"}


def _text_extra(parts: Parts, outer: Keys | None) -> dict[str, Any] | None:
    """Options of the text tower of a composite; ``None`` where ``architectures`` decides."""
    if parts.composite is None or not parts.composite.text_fixed:
        return None
    width = outer.size(parts.composite.text_width) if outer and parts.composite.text_width else None
    return {**parts.composite.text_fixed, **({"labels": width} if width else {})}


def _vision_extra(parts: Parts, outer: Keys, vision: Keys) -> dict[str, Any]:
    assert parts.composite is not None
    text = options_of(replace(parts.text, used=set(), notes=[]))
    fixed = parts.composite.vision_fixed
    joined = parts.composite.join(outer, text, vision)
    idle = joined.pop("idle", 0) + options_of(replace(vision, used=set(), notes=[])).get("idle", 0)
    return {**fixed, **joined, **({"idle": idle} if idle else {})}


def options_of(keys: Keys) -> dict[str, Any]:
    """The options of the family, as the readers of its row find them."""
    values: dict[str, Any] = {}
    for reader in keys.kind.readers:
        values |= {key: value for key, value in reader(keys).items() if value is not None}
    return values | dict(keys.kind.fixed)


def _dtype(c: Keys, outer: Mapping[str, Any]) -> str:
    """The checkpoint's number format; either level and either spelling may have it."""
    c.ignore(*_DTYPES)
    values = (level.get(key) for level in (c.table, outer) for key in _DTYPES)
    named = next((value for value in values if value not in (None, "auto")), None)
    if named is None:
        c.notes.append("the config names no dtype: bf16 is assumed")
    return str(named or "bf16")
