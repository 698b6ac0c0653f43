"""A Hugging Face ``config.json`` to a graph, without transformers.

A row of :data:`KINDS` says how the config of a ``model_type`` is read: its keys are translated to those of a family
(decoder, encoder, seq2seq, vit) and built by the same code as a model file. What an absent key means is the default of
the class in the transformers library. A key that the cost depends on and that is not translated is an error, never
ignored; any other is listed in ``info.ignored``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from roofline.ir.graph import Graph
from roofline.passes.formats.cast import cast
from roofline.programs.huggingface.assemble import KINDS, build_parts, parts_of, read_source
from roofline.programs.huggingface.composites import COMPOSITES
from roofline.programs.huggingface.quantised import QUANTISED

__all__ = ["COMPOSITES", "KINDS", "QUANTISED", "from_config"]


def from_config(
    source: str | os.PathLike[str] | Mapping[str, Any] | object,
    phase: str | None = None,
    dtype: str | None = None,
    weights: str | None = None,
    cache: str | None = None,
    tower: str | None = None,
    **overrides: Any,
) -> Graph:
    """Build the model that a Hugging Face config describes.

    Args:
        source: A ``config.json``, its folder, its contents, a config object of transformers or a loaded model.
        phase: ``forward``, ``prefill`` or ``decode``; the default of the model's family when absent.
        dtype: Number format of weights, activations and cache; the config's when absent.
        weights: Number format of the weights alone.
        cache: Number format of the KV cache alone.
        tower: Of a model with several: ``text`` (what a language model's default is), ``vision`` with the projector
            behind it, or ``all`` beside each other.
        overrides: Sizes and options of the model's family, such as ``layers=8`` or ``attention="naive"``.

    Returns:
        The graph; ``info.notes`` says what the config left open, ``info.ignored`` which keys no cost depends on.

    Raises:
        ModelDataError: Not a config, an unknown ``model_type``, or a key that is not understood; names it.
        UsageError: A phase or an override that the model does not have.

    Example:
        >>> from_config({"model_type": "llama", "hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 4,
        ...              "num_attention_heads": 8, "vocab_size": 1000}).parameters
        341568
    """
    table, where, name = read_source(source)
    graph = build_parts(parts_of(table, where), tower, name, phase, overrides)
    return cast(graph, dtype=dtype, weights=weights, cache=cache) if dtype or weights or cache else graph
