"""Convolutional networks built on depthwise convolutions: MobileNetV2 and ConvNeXt; torchvision's layers."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from roofline.ir.graph import Graph
from roofline.ir.sizes import symbol
from roofline.ops.builder import Builder
from roofline.programs.families import blocks
from roofline.programs.families.config import Config, Family, Layers, Positive
from roofline.programs.families.convnet import batchnorm, conv, finish, images, trained

#: Expansion, channels, blocks and stride of the first block of each stage (Sandler et al. 2018, Table 2).
_MOBILENET_STAGES = (
    (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
)  # fmt: skip


class MobileNetV2Config(Config):
    """Sizes of MobileNetV2.

    Attributes:
        image: Height and width of the image.
        classes: Outputs of the head.
    """

    image: Positive
    classes: Positive = 1000


def _mobilenet(b: Builder, c: MobileNetV2Config) -> Graph:
    x = _conv_bn(b, images(b, 3, c.image), 32, 3, "stem", stride=2)
    for stage, (expansion, channels, depth, stride) in enumerate(_MOBILENET_STAGES):
        for block in range(depth):
            with b.scope(f"stage{stage + 1}.{block}"):
                x = _inverted(b, x, expansion, channels, 1 if block else stride)
    x = b.op("global_avgpool", _conv_bn(b, x, 1280, 1, "last"), name="avgpool")
    logits = blocks.linear(b, x, c.classes, "head", bias=True)
    return finish(b, [logits], sum(depth for _, _, depth, _ in _MOBILENET_STAGES))


def _conv_bn(b: Builder, x: str, out: int, kernel: int, name: str, *, stride: int = 1, groups: int = 1) -> str:
    y = conv(b, x, out, kernel, name, stride=stride, padding=kernel // 2, groups=groups)
    return b.op("relu6", batchnorm(b, y, f"{name}_bn"), name=f"{name}_relu6")


def _inverted(b: Builder, x: str, expansion: int, out: int, stride: int) -> str:
    """Widen by 1x1, depthwise 3x3, narrow by 1x1; add the input where the shape is the same."""
    channels: Any = b.shape(x)[1]
    wide = channels * expansion
    y = x if expansion == 1 else _conv_bn(b, x, wide, 1, "expand")
    y = _conv_bn(b, y, wide, 3, "depthwise", stride=stride, groups=wide)
    y = batchnorm(b, conv(b, y, out, 1, "project"), "project_bn")
    return b.op("add", x, y, name="residual") if stride == 1 and channels == out else y


class ConvNeXtConfig(Config):
    """Sizes of a ConvNeXt (Liu et al. 2022).

    Attributes:
        image: Height and width of the image.
        depths: Blocks of each stage.
        channels: Channels of each stage.
        classes: Outputs of the head.
    """

    image: Positive
    depths: tuple[Layers, ...] = Field(min_length=1, max_length=8)
    channels: tuple[Positive, ...]
    classes: Positive = 1000

    @model_validator(mode="after")
    def _consistent(self) -> ConvNeXtConfig:
        if len(self.depths) != len(self.channels):
            raise ValueError(f"depths has {len(self.depths)} stages and channels {len(self.channels)}")
        return self


def _convnext(b: Builder, c: ConvNeXtConfig) -> Graph:
    x = conv(b, images(b, 3, c.image), c.channels[0], 4, "stem", stride=4, bias=True)
    x = _norm2d(b, x, "stem_norm")
    for stage, (depth, channels) in enumerate(zip(c.depths, c.channels, strict=True)):
        with b.scope(f"stage{stage + 1}"):
            if stage:
                x = conv(b, _norm2d(b, x, "down_norm"), channels, 2, "down", stride=2, bias=True)
            for block in range(depth):
                with b.scope(str(block)):
                    x = _convnext_block(b, x, channels)
    x = b.op("global_avgpool", x, name="avgpool")
    x = blocks.norm(b, x, "layernorm", "norm")
    return finish(b, [blocks.linear(b, x, c.classes, "head", bias=True)], sum(c.depths))


def _norm2d(b: Builder, x: str, name: str) -> str:
    channels = b.shape(x)[1:2]
    return b.op("layernorm2d", x, b.weight(f"{name}.weight", channels), b.weight(f"{name}.bias", channels), name=name)


def _convnext_block(b: Builder, x: str, channels: int) -> str:
    _, _, height, width = b.shape(x)
    y = conv(b, x, channels, 7, "depthwise", padding=3, groups=channels, bias=True)
    y = b.op("view", y, name="channels_last", shape=(symbol("B"), height, width, channels))
    y = blocks.norm(b, y, "layernorm", "norm")
    y = blocks.mlp(b, y, 4 * channels, "gelu", bias=True)
    y = b.op("view", y, name="channels_first", shape=(symbol("B"), channels, height, width))
    y = b.op("mul", y, b.weight("layer_scale", (channels, 1, 1)), name="scaled")
    return b.op("add", y, x, name="residual")


FAMILIES = {
    "mobilenet_v2": Family("mobilenet_v2", MobileNetV2Config, {"forward": _mobilenet, "train": trained(_mobilenet)}),
    "convnext": Family("convnext", ConvNeXtConfig, {"forward": _convnext, "train": trained(_convnext)}),
}
