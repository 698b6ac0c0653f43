"""Encoders of the BERT kind and text towers: one row a ``model_type``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roofline.programs.huggingface import groups
from roofline.programs.huggingface.keys import MAX_LAYERS, Keys, Kind, Reader

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
    """Labels of a classifier: their number, or as many as have names; two, as in transformers, where neither is."""
    names = c.table.get("id2label")
    c.used |= {"id2label", "label2id", "num_labels"}
    if isinstance(names, Mapping) and names and "num_labels" not in c.table:
        return len(names)
    return c.size("num_labels") or 2


def _labels(c: Keys) -> dict[str, Any]:
    return {"labels": labels_of(c)}


def _body(c: Keys) -> dict[str, Any]:
    c.needed("num_hidden_layers", MAX_LAYERS)
    c.used |= {"is_decoder", "add_cross_attention", "tie_word_embeddings"}
    for key in ("is_decoder", "add_cross_attention"):
        if c.switch(key):
            c.fail(key, "an encoder as a decoder is not understood; allowed: false")
    return {
        "hidden": c.needed("hidden_size"),
        "layers": c.needed("num_hidden_layers"),
        "heads": c.needed("num_attention_heads"),
        "vocab": c.needed("vocab_size"),
        "intermediate": c.needed("intermediate_size"),
    }


def _positions(c: Keys) -> dict[str, Any]:
    kind = c.get("position_embedding_type")
    if kind not in (None, "absolute"):
        c.fail("position_embedding_type", f"{str(kind)[:60]!r} is not understood; allowed: absolute")
    return groups.positions(c)


def _segments(c: Keys) -> dict[str, Any]:
    return {"segments": c.size("type_vocab_size", least=0) or 0}


def _narrow(c: Keys) -> dict[str, Any]:
    """A token table of another width, with a projection."""
    width = c.needed("embedding_size")
    return {"embed_width": 0 if width == c.needed("hidden_size") else width}


def _albert(c: Keys) -> dict[str, Any]:
    """Layers in groups of equal weights; the projection is there whatever the width."""
    if (c.size("inner_group_num") or 1) != 1:
        c.fail("inner_group_num", "several layers a group are not understood; allowed: 1")
    layers, groups_of = c.needed("num_hidden_layers"), c.needed("num_hidden_groups")
    if layers % groups_of:
        c.fail("num_hidden_groups", f"{groups_of} groups do not divide {layers} layers")
    return {"shared": layers // groups_of, "embed_width": c.needed("embedding_size")}


def _modernbert(c: Keys) -> dict[str, Any]:
    """Windows of ``local_attention`` but in every third layer, as listed or as a period."""
    listed, size = c.words("layer_types"), c.needed("local_attention")
    c.used |= {"classifier_activation", "deterministic_flash_attn", "global_rope_theta", "local_rope_theta"}
    step = c.size("global_attn_every_n_layers") or 3
    bias = c.switch("attention_bias")
    found = groups.layer_types(c, listed, size) if listed else {"pattern": ["full"] + ["sliding"] * (step - 1)}
    return {
        "window": size, **{key: value for key, value in found.items() if value},
        "qkv_bias": bias, "out_bias": bias, "mlp_bias": c.switch("mlp_bias"), "norm_bias": c.switch("norm_bias"),
        "head_bias": c.switch("decoder_bias"), "dense_bias": c.switch("classifier_bias"),
    }  # fmt: skip


def _sinusoidal(c: Keys) -> dict[str, Any]:
    c.get("sinusoidal_pos_embds")
    return {}


def _text_tower(c: Keys) -> dict[str, Any]:
    """The width that a text tower is projected to."""
    c.used |= {"projection_dim"}
    width = c.size("projection_size") if c.has("projection_size") else c.size("projection_dim")
    return {"labels": width or c.needed("hidden_size")}


_BERT: tuple[Reader, ...] = (_body, groups.activation, _positions, _segments, _labels)
_CLIP_TEXT = {"segments": 0, "embed_norm": False, "pre_norms": True, "pooler": False, "head_bias": False}

ENCODERS: dict[str, Kind] = {
    "bert": Kind(_BERT, family="encoder", heads=_POOLED),
    "roberta": Kind(_BERT, family="encoder", heads=_DENSE),
    "camembert": Kind(_BERT, family="encoder", heads=_DENSE),
    "xlm-roberta": Kind(_BERT, family="encoder", heads=_DENSE),
    "electra": Kind((*_BERT, _narrow), _NONE, family="encoder", heads=_DENSE),
    "albert": Kind((*_BERT, _albert), family="encoder", heads=_POOLED),
    "distilbert": Kind((_body, groups.activation, _positions, _sinusoidal, _labels), {**_NONE, "segments": 0},
                       names=_NAMED, family="encoder", heads=_DENSE),
    "mpnet": Kind((_body, groups.activation, _positions, _labels,
                   groups.count("buckets", "relative_attention_num_buckets")), {"segments": 0},
                  family="encoder", heads=_DENSE),
    "modernbert": Kind((_body, groups.activation, groups.rotary, _modernbert),
                       {**_NONE, "segments": 0, "positions": 0, "gated": True, "pre_norms": True, "first_norm": False,
                        "rope": True, "fused_qkv": True}, family="encoder",
                       heads={"Model": {}, "ForMaskedLM": {"head": "masked"}}),
    # Text towers of CLIP and SigLIP.
    "clip_text_model": Kind((_body, groups.activation, groups.positions, _text_tower), {**_CLIP_TEXT, "causal": True},
                            family="encoder", heads={"Model": {}, "WithProjection": {"head": "project"}}),
    "siglip_text_model": Kind((_body, groups.activation, groups.positions, _text_tower),
                              {**_CLIP_TEXT, "head_bias": True}, family="encoder",
                              heads={"Model": {"head": "project"}}),
}  # fmt: skip
