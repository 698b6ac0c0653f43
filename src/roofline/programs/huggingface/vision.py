"""Vision transformers, alone or as towers: one row per ``model_type``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from roofline.programs.architectures import convnet
from roofline.programs.architectures.vit import FAMILIES
from roofline.programs.huggingface import groups
from roofline.programs.huggingface.checkpoints import mllama
from roofline.programs.huggingface.encoders import labels_of
from roofline.programs.huggingface.keys import Keys, Kind, Reader, row

#: Height and width of an image where the model takes any.
IMAGE = 448


def _edge(c: Keys, key: str) -> int | None:
    """One size of a square, given as a number or as two equal ones."""
    value = c.get(key)
    if isinstance(value, list | tuple) and len(value) == 2 and value[0] == value[1]:
        value = value[0]
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 2**16:
        c.fail(key, f"expected the edge of a square, given {str(c.get(key))[:60]!r}")
    return value


def _body(c: Keys) -> dict[str, Any]:
    patch = _edge(c, "patch_size")
    if patch is None:
        c.fail("patch_size", "missing")
    c.ignore("is_decoder", "add_cross_attention")
    return {
        "layers": len(c.layers), **c.needs(hidden="hidden_size", heads="num_attention_heads"), "patch": patch,
        "image": _edge(c, "image_size") or IMAGE, "channels": c.size("num_channels") or 3, "crop": True,
    }  # fmt: skip


def _activation(c: Keys) -> dict[str, Any]:
    return {"activation": c.one_of("hidden_act", groups.ACTIVATIONS)}


def _classes(c: Keys) -> dict[str, Any]:
    c.ignore("pooler_output_size", "pooler_act", "reshape_hidden_states")
    width = c.size("pooler_output_size")
    if width not in (None, c.needed("hidden_size")):
        c.fail("pooler_output_size", f"{width} is not understood; allowed: hidden_size")
    return {"classes": labels_of(c)}


def _dino(c: Keys) -> dict[str, Any]:
    """A mask token that only training uses, scales of the branches, perhaps a gated feed-forward block."""
    hidden, inner = c.needed("hidden_size"), c.needed("hidden_size") * c.needed("mlp_ratio")
    gated = c.switch("use_swiglu_ffn")
    masked = c.switch("use_mask_token") if c.has("use_mask_token") else True
    c.get("layerscale_value")
    return {
        "gated": gated, "intermediate": (int(inner * 2 / 3) + 7) // 8 * 8 if gated else inner,
        "idle": hidden if masked else 0, "tokens": c.size("num_register_tokens", least=0) or 0,
        "classes": labels_of(c), **({"activation": "silu"} if gated else {}),
    }  # fmt: skip


def _dino_rows(c: Keys) -> dict[str, Any]:
    """Registers have no positions."""
    patches = ((_edge(c, "image_size") or IMAGE) // (_edge(c, "patch_size") or 1)) ** 2
    return {"position_rows": patches + 1}


def _beit(c: Keys) -> dict[str, Any]:
    """Positions and relative biases that are off by default."""
    for key in ("use_relative_position_bias", "use_shared_relative_position_bias"):
        if c.switch(key):
            c.fail(key, "a learned bias of window positions is not understood; allowed: false")
    hidden = c.needed("hidden_size")
    c.ignore("vocab_size")
    pooled = c.switch("use_mean_pooling")
    return {
        "position_rows": None if c.switch("use_absolute_position_embeddings") else 0,
        "idle": hidden if c.switch("use_mask_token") else 0,
        "layer_scale": c.number("layer_scale_init_value") > 0, "final_norm": not pooled, "classes": labels_of(c),
    }  # fmt: skip


def _head_width(c: Keys) -> dict[str, Any]:
    """Heads that together are as wide as the tower."""
    width, heads, hidden = c.size("head_dim"), c.needed("num_attention_heads"), c.needed("hidden_size")
    if width not in (None, hidden // heads):
        c.fail("head_dim", f"{width} is not understood; allowed: hidden_size / num_attention_heads")
    return {}


def _siglip(c: Keys) -> dict[str, Any]:
    """Attention of a learned query at the end, unless it is switched off."""
    on = c.get("vision_use_head") is not False
    c.ignore("projection_dim")
    return {"head": "attention" if on else "none"}


def _internvl(c: Keys) -> dict[str, Any]:
    kinds = {"layer_norm": "layernorm", "rms_norm": "rmsnorm"}
    hidden = c.needed("hidden_size")
    c.ignore("projection_dropout", "use_mean_pooling", "layer_scale_init_value")
    return {
        "norm": c.one_of("norm_type", kinds), "qkv_bias": c.switch("attention_bias"), "layer_scale": True,
        "qk_norm": c.switch("use_qk_norm"), "idle": hidden if c.switch("use_mask_token") else 0,
        "position_rows": None if c.switch("use_absolute_position_embeddings") else 0,
        "final_norm": not c.switch("use_mean_pooling"),
    }  # fmt: skip


def _frames(c: Keys) -> dict[str, Any]:
    """A patch of Qwen's towers spans two frames, of which a still image fills both."""
    return {"channels": (c.size("in_channels") or 3) * c.needed("temporal_patch_size")}


def _windows(c: Keys) -> dict[str, Any]:
    c.ignore("tokens_per_second")
    if c.size("window_size") and c.sizes("fullatt_block_indexes") is not None:
        c.notes.append("window_size: attention of the vision tower is counted over the whole image in all layers")
    return {}


def _rows(c: Keys) -> dict[str, Any]:
    return {"position_rows": c.needed("num_position_embeddings"),
            "deepstack": len(c.sizes("deepstack_visual_indexes") or [])}  # fmt: skip


_CLASSES = {"Model": {"head": "pooler"}, "ForImageClassification": {"head": "classes"}}
_TOWER: tuple[Reader, ...] = (_body, _activation, groups.inner)
_CLIP: dict[str, Any] = {"embed_norm": True, "patch_bias": False, "final_norm": False}
_PIXTRAL: dict[str, Any] = {
    "class_token": False, "patch_bias": False, "embed_norm": True, "norm": "rmsnorm", "gated": True, "qkv_bias": False,
    "out_bias": False, "mlp_bias": False, "rope": True, "position_rows": 0, "final_norm": False, "head": "none",
}  # fmt: skip
_QWEN: dict[str, Any] = {"class_token": False, "patch_bias": False, "rope": True, "final_norm": False, "head": "none"}
_QKV_BIAS = groups.options(qkv_bias="qkv_bias")
_DINO: tuple[Reader, ...] = (_body, _activation, _QKV_BIAS, _dino)
_MEAN = {"Model": {"head": "none"}, "ForImageClassification": {"head": "classes_mean"}}


def _stages(c: Keys) -> dict[str, Any]:
    """Read the blocks of each stage and their channels; an image of the usual size where the config has none."""
    depths, channels = c.sizes("depths") or [], c.sizes("hidden_sizes") or []
    if not depths or len(depths) != len(channels) or not all(depths):
        c.fail("depths", f"expected blocks for each of {len(channels)} hidden_sizes, given {str(depths)[:60]}")
    if (colours := c.size("num_channels")) not in (None, 3):
        c.fail("num_channels", f"{colours} is not understood; allowed: 3")
    size = _edge(c, "image_size")
    if size is None:
        c.notes.append("the config names no image_size: 224 is assumed")
    return {"image": size or 224, "depths": depths, "classes": labels_of(c)}


def _resnet(c: Keys) -> dict[str, Any]:
    """ResNet 1.5: twice the channels in each stage, the step in the 3x3 convolution."""
    block, width = c.one_of("layer_type", {"basic": "basic", "bottleneck": "bottleneck"}), c.needed("embedding_size")
    usual = [width * (4 if block == "bottleneck" else 1) * 2**i for i in range(len(c.sizes("hidden_sizes") or []))]
    if (own := c.sizes("hidden_sizes")) != usual:
        c.fail("hidden_sizes", f"expected {usual}, given {str(own)[:60]}")
    for key in ("downsample_in_first_stage", "downsample_in_bottleneck"):
        if c.switch(key):
            c.fail(key, "allowed: false")
    if c.get("hidden_act") not in (None, "relu"):
        c.fail("hidden_act", "allowed: relu")
    return {"block": block, "width": width}


def _convnext(c: Keys) -> dict[str, Any]:
    """ConvNeXt with patches of four pixels and scaled branches."""
    if c.needed("patch_size") != 4 or not c.number("layer_scale_init_value"):
        c.fail("patch_size", "other than patches of 4 and scaled branches is not understood; allowed: 4")
    c.ignore("num_stages", "hidden_act", "drop_path_rate")
    return {"channels": c.sizes("hidden_sizes")}


_QWEN_NAMES = {"num_hidden_layers": "depth", "num_attention_heads": "num_heads", "num_channels": "in_channels"}
_VIT: dict[str, Any] = {"family": FAMILIES["vit"]}
_SPLIT: dict[str, Any] = {**_VIT, "fused_qkv": False}  #: Three projections for q, k and v.
_BARE: dict[str, Any] = {"Model": {}}
#: The projector's keys.
_PROJECTOR = groups.ignored("spatial_merge_size", "out_hidden_size", "spatial_patch_size")
#: Those of Llama 4's adapter; the activation is GELU whatever the config says.
_LLAMA4 = groups.ignored(
    "hidden_act", "vision_output_dim", "pixel_shuffle_ratio", "projector_input_dim", "projector_output_dim",
    "multi_modal_projector_bias", "projector_dropout",
)  # fmt: skip

_PICTURES: dict[str, Mapping[str, Any] | None] = {"ForImageClassification": {}, "Model": None, "Backbone": None}

VISION: dict[str, Kind] = {
    "resnet": row(_stages, _resnet, family=convnet.FAMILIES["resnet"], ends=_PICTURES),
    "convnext": row(_stages, _convnext, family=convnet.FAMILIES["convnext"], ends=_PICTURES),
    "vit": row(*_TOWER, _QKV_BIAS, _classes, **_SPLIT, ends=_CLASSES),
    "deit": row(*_TOWER, _QKV_BIAS, _classes, tokens=1, **_SPLIT, ends=_CLASSES),
    "dinov2": row(*_DINO, layer_scale=True, **_SPLIT, ends=_MEAN),
    "dinov2_with_registers": row(*_DINO, _dino_rows, layer_scale=True, **_SPLIT, ends=_MEAN),
    "beit": row(*_TOWER, _beit, k_bias=False, **_SPLIT,
        ends={"Model": {"head": "mean_only"}, "ForImageClassification": {"head": "mean"}}, idle={"use_auxiliary_head"}),
    "clip_vision_model": row(*_TOWER, lambda c: {"classes": c.size("projection_dim")}, **_CLIP,
        **_SPLIT, ends={"Model": {"head": "normed"}, "WithProjection": {"head": "project"}}, idle={"vocab_size"}),
    "siglip_vision_model": row(*_TOWER, _siglip, class_token=False, **_SPLIT, ends=_BARE),
    "idefics3_vision": row(*_TOWER, class_token=False, head="none", **_SPLIT, ends=_BARE),
    "smolvlm_vision": row(*_TOWER, class_token=False, head="none", **_SPLIT, ends=_BARE,
        idle={"max_image_size"}),
    "pixtral": row(*_TOWER, groups.rotary, _head_width, **_PIXTRAL, **_SPLIT, ends=_BARE),
    "internvl_vision": row(*_TOWER, _internvl, head="none", **_SPLIT, ends=_BARE),
    "mllama_vision_model": row(*_TOWER, mllama.vision, groups.ignored("vision_output_dim"), head="tokens",
        names={"num_attention_heads": "attention_heads"},
        family=replace(FAMILIES["vit"], config=mllama.TilesConfig, compose=mllama.tower), ends=_BARE),
    "llama4_vision_model": row(_body, groups.inner, groups.rotary, _LLAMA4, patch_bias=False,
        embed_norm=True, rope=True, head="none", **_SPLIT, ends=_BARE),
    "qwen2_vl_vision": row(_body, _activation, _frames, _PROJECTOR, groups.rotary,
        lambda c: {"intermediate": int(c.needed("hidden_size") * c.number("mlp_ratio"))}, **_QWEN, position_rows=0,
        **_VIT, names={**_QWEN_NAMES, "hidden_size": "embed_dim"}, ends=_BARE),
    "qwen2_5_vl_vision": row(*_TOWER, _frames, _windows, _PROJECTOR, groups.rotary, **_QWEN, position_rows=0,
        norm="rmsnorm", gated=True, **_VIT, names=_QWEN_NAMES, ends=_BARE),
    **dict.fromkeys(("qwen3_vl_vision", "qwen3_5_vision"), row(*_TOWER, _frames, _rows, _PROJECTOR, groups.rotary,
        **{**_QWEN, "patch_bias": True}, **_VIT, names=_QWEN_NAMES, ends=_BARE)),
}  # fmt: skip
