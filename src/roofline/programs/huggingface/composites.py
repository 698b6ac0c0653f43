"""Models of several towers: which language model and which vision tower they hold, and what joins the two.

One row a ``model_type``; the projector that brings patches to the width of the language model is built at the end of
the vision tower.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import isqrt
from typing import Any

from roofline.programs.huggingface import groups
from roofline.programs.huggingface.checkpoints import mllama
from roofline.programs.huggingface.keys import Keys, Kind

#: Outer config, options of the language model, keys of the vision tower -> options of the vision tower.
Join = Callable[[Keys, Mapping[str, Any], Keys], dict[str, Any]]


@dataclass(frozen=True)
class Composite:
    """A model of two towers."""

    text: str  #: The ``model_type`` of the language model where the config does not say.
    vision: str  #: That of the vision tower.
    join: Join  #: What follows the vision tower.
    text_fixed: Mapping[str, Any] = field(default_factory=dict)  #: Options of the text tower.
    vision_fixed: Mapping[str, Any] = field(default_factory=dict)  #: Options of the vision tower.
    tower: str = "text"  #: What is built when nothing is asked for.
    text_width: str = ""  #: The key of the width that the text tower is projected to, empty for none.
    defaults: Mapping[str, Any] = field(default_factory=dict)  #: What absent keys of the outer config mean.
    #: What the vision tower's keys say of the language model.
    given: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda vision: {}


#: How the outer config is read; its keys belong to no family.
OUTER = Kind(())


def _act(outer: Keys) -> str:
    return str(outer.one_of("projector_hidden_act", groups.ACTIVATIONS))


def _tokens(**project: Any) -> dict[str, Any]:
    """Return the options of a tower that ends in a projector."""
    return {"head": "tokens", "project": project}


def _llava(outer: Keys, text: Mapping[str, Any], vision: Keys) -> dict[str, Any]:
    """Two linear layers on the patches of one layer of the tower."""
    if not isinstance(outer.get("vision_feature_layer"), int):
        outer.fail("vision_feature_layer", "several layers are not understood; allowed: a whole number")
    project = _tokens(
        widths=[text["hidden"]] * 2, bias=outer.switch("multimodal_projector_bias"), activation=_act(outer),
        prefix=outer.get("vision_feature_select_strategy") == "full",
    )  # fmt: skip
    # CLIP's tower norms its class token at the end.
    usual = "normed" if vision.table.get("model_type") == "clip_vision_model" else ""
    return {**project, "also": "attention" if _pools(vision) else usual}


def _llava_next(outer: Keys, text: Mapping[str, Any], vision: Keys) -> dict[str, Any]:
    """The same, and a learned token at the end of each row of patches."""
    return {**_llava(outer, text, vision), "idle": text["hidden"]}


def _pools(vision: Keys) -> bool:
    """SigLIP's attention at the end runs whether its output is used or not."""
    return vision.table.get("model_type", "siglip_vision_model") == "siglip_vision_model" and (
        vision.get("vision_use_head") is not False
    )


def _paligemma(outer: Keys, text: Mapping[str, Any], vision: Keys) -> dict[str, Any]:
    width = outer.size("projection_dim") or vision.size("projection_dim") or text["hidden"]
    return {**_tokens(widths=[width]), "also": "attention" if _pools(vision) else ""}


def _gemma3(outer: Keys, text: Mapping[str, Any], vision: Keys) -> dict[str, Any]:
    """Patches averaged to a fixed number of tokens, normed and projected."""
    edge = vision.needed("image_size") // vision.needed("patch_size")
    tokens = isqrt(outer.needed("mm_tokens_per_image"))
    project = _tokens(pool=max(edge // tokens, 1), norm="rmsnorm", widths=[text["hidden"]], bias=False)
    return {**project, "also": "attention" if _pools(vision) else ""}


def _mistral3(outer: Keys, text: Mapping[str, Any], vision: Keys) -> dict[str, Any]:
    """Normed patches, merged and projected back, then two linear layers."""
    return _tokens(norm="rmsnorm", merge=outer.needed("spatial_merge_size"), reduce=True, widths=[text["hidden"]] * 2,
                   activation=_act(outer), bias=outer.switch("multimodal_projector_bias"))  # fmt: skip


def _idefics3(outer: Keys, text: Mapping[str, Any], vision: Keys) -> dict[str, Any]:
    return _tokens(merge=outer.needed("scale_factor"), widths=[text["hidden"]], bias=False)


def _internvl(outer: Keys, text: Mapping[str, Any], vision: Keys) -> dict[str, Any]:
    merge = _merged(outer, "downsample_ratio")
    return _tokens(merge=merge, norm="layernorm", norm_merged=True, widths=[text["hidden"]] * 2, activation=_act(outer))


def _merged(c: Keys, key: str) -> int:
    """Return the patches along an edge that become one token, from a share of the edge."""
    ratio = c.number(key)
    if not 0 < ratio <= 1:
        c.fail(key, f"expected a share up to 1, given {ratio}")
    return round(1 / ratio)


def _qwen(out: str, norm: str) -> Join:
    """Normed patches, merged, then two linear layers; the first keeps the merged width."""

    def join(outer: Keys, text: Mapping[str, Any], vision: Keys) -> dict[str, Any]:
        merge = vision.needed("spatial_merge_size")
        own = vision.needed("embed_dim") if out == "hidden_size" else vision.needed("hidden_size")
        target = vision.defaults["hidden_size"] if "hidden_size" not in vision.table else vision.table["hidden_size"]
        width = target if out == "hidden_size" else vision.needed(out)
        return _tokens(norm=norm, merge=merge, widths=[own * merge**2, width])

    return join


def _llama4(outer: Keys, text: Mapping[str, Any], vision: Keys) -> dict[str, Any]:
    """Patches side by side, the adapter's two linear layers with activations after both, then one to the text."""
    merge, width = _merged(vision, "pixel_shuffle_ratio"), vision.needed("projector_output_dim")
    same = {"projector_input_dim": width, "vision_output_dim": width,
            "intermediate_size": vision.needed("hidden_size") * merge**2}  # fmt: skip
    for key, size in same.items():
        if (own := vision.needed(key)) != size:
            vision.fail(key, f"expected {size}, as what comes before the adapter's layers gives, given {own}")
    return _tokens(merge=merge, widths=[width, width, text["hidden"]], bias=False)


def _mllama(outer: Keys, text: Mapping[str, Any], vision: Keys) -> dict[str, Any]:
    """One linear layer on the last output beside those kept."""
    layers = vision.sizes("intermediate_layers_indices")
    width = vision.needed("hidden_size") * (1 + (5 if layers is None else len(layers)))
    if (own := vision.needed("vision_output_dim")) != width:
        vision.fail("vision_output_dim", f"expected {width}, hidden_size times the outputs that are kept, given {own}")
    return _tokens(widths=[text["hidden"]])


def _contrastive(extra: int) -> Join:
    """Both towers projected to one width, and the learned scalars of the loss."""

    def join(outer: Keys, text: Mapping[str, Any], vision: Keys) -> dict[str, Any]:
        width = outer.size("projection_dim")
        return {"idle": extra, **({"classes": width} if width else {})}

    return join


_LLAVA = {"projector_hidden_act": "gelu", "vision_feature_layer": -2, "multimodal_projector_bias": True,
          "vision_feature_select_strategy": "default"}  # fmt: skip

_TIED = {"tie_word_embeddings": True}

COMPOSITES: dict[str, Composite] = {
    "llava": Composite("llama", "clip_vision_model", _llava, defaults=_LLAVA),
    "llava_next": Composite("llama", "clip_vision_model", _llava_next, defaults=_LLAVA),
    "llava_onevision": Composite("qwen2", "siglip_vision_model", _llava_next,
                                 defaults={**_LLAVA, "vision_feature_select_strategy": "full"}),
    "paligemma": Composite("gemma", "siglip_vision_model", _paligemma, defaults={"projection_dim": 2048, **_TIED}),
    "gemma3": Composite("gemma3_text", "siglip_vision_model", _gemma3, defaults={"mm_tokens_per_image": 256, **_TIED}),
    "mistral3": Composite("mistral", "pixtral", _mistral3,
                          defaults={"spatial_merge_size": 2, "projector_hidden_act": "gelu", **_TIED}),
    "idefics3": Composite("llama", "idefics3_vision", _idefics3, defaults={"scale_factor": 2}),
    "smolvlm": Composite("llama", "smolvlm_vision", _idefics3, defaults={"scale_factor": 2}),
    "internvl": Composite("qwen2", "internvl_vision", _internvl,
                          defaults={"downsample_ratio": 0.5, "projector_hidden_act": "gelu", **_TIED}),
    "llama4": Composite("llama4_text", "llama4_vision_model", _llama4),
    "mllama": Composite("mllama_text_model", "mllama_vision_model", _mllama, given=mllama.image_positions),
    "qwen2_vl": Composite("qwen2_vl_text", "qwen2_vl_vision", _qwen("hidden_size", "layernorm")),
    "qwen2_5_vl": Composite("qwen2_5_vl_text", "qwen2_5_vl_vision", _qwen("out_hidden_size", "rmsnorm")),
    "qwen3_vl": Composite("qwen3_vl_text", "qwen3_vl_vision", _qwen("out_hidden_size", "layernorm")),
    "qwen3_vl_moe": Composite("qwen3_vl_moe_text", "qwen3_vl_vision", _qwen("out_hidden_size", "layernorm")),
    "qwen3_5": Composite("qwen3_5_text", "qwen3_5_vision", _qwen("out_hidden_size", "layernorm")),
    "qwen3_5_moe": Composite("qwen3_5_moe_text", "qwen3_5_vision", _qwen("out_hidden_size", "layernorm")),
    "clip": Composite("clip_text_model", "clip_vision_model", _contrastive(1), {"head": "project"},
                      {"head": "project"}, "all", "projection_dim", {"projection_dim": 512}),
    "siglip": Composite("siglip_text_model", "siglip_vision_model", _contrastive(2), {"head": "project"}, {}, "all"),
}  # fmt: skip

#: What a vision config calls itself, where that is the name of the whole model.
VISION_TYPES = {"qwen2_vl": "qwen2_vl_vision", "qwen2_5_vl": "qwen2_5_vl_vision", "qwen3_vl": "qwen3_vl_vision",
                "qwen3_vl_moe": "qwen3_vl_vision", "qwen3_vl_moe_vision": "qwen3_vl_vision",
                "qwen3_5": "qwen3_5_vision", "qwen3_5_moe": "qwen3_5_vision", "qwen3_5_moe_vision": "qwen3_5_vision",
                "idefics3": "idefics3_vision", "smolvlm": "smolvlm_vision"}  # fmt: skip
