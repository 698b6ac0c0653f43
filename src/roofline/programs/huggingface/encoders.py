"""Encoders of the BERT kind and text towers: one row per ``model_type``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from roofline.ir.graph import Graph
from roofline.programs.architectures import encoder
from roofline.programs.architectures.config import Count, Model
from roofline.programs.huggingface import groups
from roofline.programs.huggingface.keys import Keys, Kind, Reader, row
from roofline.programs.layers.attention import RelativeBias

_NONE: dict[str, Any] = {"pooler": False}
#: Heads by the end of the class's name; ``None`` for ends that another one contains and that are not understood.
_SHARED: dict[str, Mapping[str, Any] | None] = {
    "Model": {},
    "ForMaskedLM": {**_NONE, "head": "masked"},
    "ForTokenClassification": {**_NONE, "head": "each"},
    "ForQuestionAnswering": {**_NONE, "head": "each", "labels": 2},
    "LMHeadModel": None,
}
_POOLED = {**_SHARED, "ForSequenceClassification": {"head": "pooled"}}
_DENSE = {**_SHARED, "ForSequenceClassification": {**_NONE, "head": "dense"}}
_NAMED = {"hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads",
          "intermediate_size": "hidden_dim", "hidden_act": "activation"}  # fmt: skip


def labels_of(c: Keys) -> int:
    """Return the labels of a classifier: their number, or as many as have names; two as in transformers by default."""
    names = c.table.get("id2label")
    c.ignore("id2label", "label2id", "num_labels")
    if isinstance(names, Mapping) and names and "num_labels" not in c.table:
        return len(names)
    return c.size("num_labels") or 2


def _labels(c: Keys) -> dict[str, Any]:
    return {"labels": labels_of(c)}


def body(c: Keys) -> dict[str, Any]:
    """Width, depth, heads, vocabulary and inner size of an encoder."""
    c.ignore("tie_word_embeddings")
    for key in ("is_decoder", "add_cross_attention"):
        if c.switch(key):
            c.fail(key, "an encoder as a decoder is not understood; allowed: false")
    return {"layers": len(c.layers), **c.needs(hidden="hidden_size", heads="num_attention_heads", vocab="vocab_size",
                                               intermediate="intermediate_size")}  # fmt: skip


def _positions(c: Keys) -> dict[str, Any]:
    kind = c.get("position_embedding_type")
    if kind not in (None, "absolute"):
        c.fail("position_embedding_type", f"{str(kind)[:60]!r} is not understood; allowed: absolute")
    return groups.positions(c)


def _after_padding(c: Keys) -> dict[str, Any]:
    """Read a table whose rows up to that of the padding token stand for no position, as in fairseq."""
    return {"max_positions": c.needed("max_position_embeddings") - 2}


def _narrow(c: Keys) -> dict[str, Any]:
    """A token table of another width, with a projection."""
    width = c.needed("embedding_size")
    return {"embed_width": 0 if width == c.needed("hidden_size") else width}


def _albert(c: Keys) -> dict[str, Any]:
    """Layers in groups of equal weights; the projection is there whatever the width."""
    if (c.size("inner_group_num") or 1) != 1:
        c.fail("inner_group_num", "several layers per group are not understood; allowed: 1")
    layers, number = c.needed("num_hidden_layers"), c.needed("num_hidden_groups")
    if layers % number:
        c.fail("num_hidden_groups", f"{number} groups do not divide {layers} layers")
    return {"shared": layers // number, "embed_width": c.needed("embedding_size")}


def _text_tower(c: Keys) -> dict[str, Any]:
    """The width that a text tower is projected to."""
    c.ignore("projection_dim")
    width = c.size("projection_size") if c.has("projection_size") else c.size("projection_dim")
    return {"labels": width or c.needed("hidden_size")}


_BERT: tuple[Reader, ...] = (body, groups.activation, _positions,
                             lambda c: {"segments": c.size("type_vocab_size", least=0) or 0}, _labels)  # fmt: skip
_CLIP_TEXT: dict[str, Any] = {"segments": 0, "embed_norm": False, "pre_norms": True, "pooler": False}
_ENCODER = encoder.FAMILIES["encoder"]


class AlbertConfig(encoder.EncoderConfig):
    """An encoder's keys and ALBERT's own."""

    shared: Count = 0  #: Layers that have the same weights as the one before, in groups of so many; 0 for none.


def _albert_model(c: AlbertConfig) -> Model:
    model = encoder.encoder(c)
    return lambda b, phase: _share(model(b, phase), c)


def _share(graph: Graph, c: AlbertConfig) -> Graph:
    """Let layers of a group read the weights of its first."""
    if not c.shared:
        return graph
    first = {
        name: name.replace(f"layers.{layer}.", f"layers.{layer // c.shared * c.shared}.", 1)
        for layer in range(c.layers)
        for name, tensor in graph.tensors.items()
        if tensor.kind == "weight" and name.startswith(f"layers.{layer}.")
    }
    nodes = tuple(replace(node, inputs=tuple(first.get(name, name) for name in node.inputs)) for node in graph.nodes)
    tensors = {name: tensor for name, tensor in graph.tensors.items() if first.get(name, name) == name}
    return replace(graph, tensors=tensors, nodes=nodes)


class MPNetConfig(encoder.EncoderConfig):
    """An encoder's keys and MPNet's own."""

    buckets: Count = 0  #: Rows of a table of relative positions that all layers add to their scores, 0 for none.


def _mpnet(c: MPNetConfig) -> Model:
    return encoder.encoder(c, relative=RelativeBias(c.buckets, c.heads) if c.buckets else None)


ENCODERS: dict[str, Kind] = {
    "bert": row(*_BERT, family=_ENCODER, ends=_POOLED),
    **dict.fromkeys(("roberta", "camembert", "xlm-roberta"), row(*_BERT, _after_padding, family=_ENCODER, ends=_DENSE)),
    "data2vec-text": row(*_BERT, _after_padding, family=_ENCODER, ends=_DENSE),
    "roberta-prelayernorm": row(*_BERT, _after_padding, pre_norms=True, family=_ENCODER, ends=_DENSE),
    "xlm-roberta-xl": row(*_BERT, _after_padding, pre_norms=True, embed_norm=False, family=_ENCODER, ends=_DENSE),
    "megatron-bert": row(*_BERT, pre_norms=True, embed_norm=False, family=_ENCODER, ends=_POOLED),
    "electra": row(*_BERT, _narrow, **_NONE, family=_ENCODER, ends=_DENSE),
    "albert": row(*_BERT, _albert, family=replace(_ENCODER, config=AlbertConfig, compose=_albert_model), ends=_POOLED),
    "distilbert": row(body, groups.activation, _positions, groups.ignored("sinusoidal_pos_embds"), _labels, **_NONE,
        segments=0, names=_NAMED, family=_ENCODER, ends=_DENSE),
    "mpnet": row(body, groups.activation, _positions, _after_padding, _labels,
        lambda c: {"buckets": c.size("relative_attention_num_buckets", least=0)}, segments=0,
        family=replace(_ENCODER, config=MPNetConfig, compose=_mpnet), ends=_DENSE),
    # Text towers of CLIP and SigLIP.
    "clip_text_model": row(body, groups.activation, groups.positions, _text_tower, **_CLIP_TEXT, causal=True,
        head_bias=False, family=_ENCODER, ends={"Model": {}, "WithProjection": {"head": "project"}}),
    "siglip_text_model": row(body, groups.activation, groups.positions, _text_tower, **_CLIP_TEXT, family=_ENCODER,
        ends={"Model": {"head": "project"}}),
}  # fmt: skip
