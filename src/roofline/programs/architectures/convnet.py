"""Convolutional networks: ResNet and its wide and grouped kin, VGG, U-Net, MobileNetV2, ConvNeXt, as in torchvision."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

from pydantic import Field, model_validator

from roofline.ir.graph import Graph, Info, Node
from roofline.ir.sizes import Size, symbol
from roofline.ops.builder import Builder
from roofline.programs.architectures.config import Config, Family, Layers, Positive
from roofline.programs.layers.base import Run
from roofline.programs.layers.convolution import batchnorm, channel_norm, conv
from roofline.programs.layers.feedforward import MLP
from roofline.programs.layers.primitives import cross_entropy, linear, norm

#: Lays a network down from its config.
Build = Callable[[Builder, Any], Graph]


def images(b: Builder, channels: int, side: int) -> str:
    """Declare the input: a batch of square images."""
    return b.input("image", (symbol("B"), channels, side, side))


def trained(b: Builder, graph: Graph) -> Graph:
    """Return the training form of a network that ends in logits: norms take the batch's statistics, a loss follows."""
    logits = graph.outputs[0]
    if len(b.shape(logits)) > 2:  # a map of classes: channels come first
        logits = b.op("permute", logits, name="classes_last", axes=(0, 2, 3, 1))
    for node in b.nodes:
        if node.op == "batchnorm2d":
            _track(b, node)
    graph = b.graph([cross_entropy(b, logits)], graph.items, graph.item, graph.info)
    return replace(graph, nodes=tuple(
        replace(node, op="batchnorm_train", inputs=node.inputs[:3]) if node.op == "batchnorm2d" else node
        for node in graph.nodes
    ))  # fmt: skip


def _track(b: Builder, norm: Node) -> None:
    """Update the running statistics and the number of batches, as a norm in training does."""
    mean, variance = norm.inputs[3:]
    with b.kernel(f"{norm.name}.track"):
        for name in (mean, variance):
            b.op("update", name, name=f"{name}_new", flops=3)
    b.op("update", b.source(f"{norm.name}.batches", (1,), "buffer", "int64"), name=f"{norm.name}.batches_new", flops=1)


def finish(b: Builder, outputs: Sequence[str], layers: int) -> Graph:
    """Return the graph of a network that takes ``B`` images."""
    return b.graph(list(outputs), symbol("B"), "image", Info(layers=layers))


# --- ResNet (He et al. 2015; v1.5 puts the stride of a bottleneck in its 3x3 convolution) -----------------------


class ResNetConfig(Config):
    """Sizes and options of a ResNet."""

    image: Positive  #: Height and width of the image.
    depths: tuple[Layers, ...] = Field(min_length=1, max_length=8)  #: Blocks of each stage.
    width: Positive = 64  #: Channels of the first stage.
    #: ``basic`` (two 3x3 convolutions) or ``bottleneck`` (1x1, 3x3, 1x1, four times wider outside).
    block: Literal["basic", "bottleneck"] = "bottleneck"
    groups: Positive = 1  #: Groups of the 3x3 convolution in a bottleneck.
    base_width: Positive = 64  #: Channels of a group in the first stage.
    classes: Positive = 1000  #: Outputs of the head.

    @model_validator(mode="after")
    def _consistent(self) -> ResNetConfig:
        if self.block == "basic" and (self.groups != 1 or self.base_width != 64):
            raise ValueError("groups and base_width belong to bottleneck blocks")
        return self


def _resnet(b: Builder, c: ResNetConfig) -> Graph:
    x = images(b, 3, c.image)
    x = b.op("relu", batchnorm(b, conv(b, x, c.width, 7, "conv1", stride=2, padding=3), "bn1"), name="relu1")
    x = b.op("maxpool2d", x, name="pool", r=3, stride=2, padding=1)
    for stage, depth in enumerate(c.depths):
        for block in range(depth):
            with b.scope(f"stage{stage + 1}.{block}"):
                stride = 2 if stage and not block else 1
                x = _BLOCKS[c.block](b, c, x, c.width * 2**stage, stride)
    x = b.op("global_avgpool", x, name="avgpool")
    return finish(b, [linear(b, x, c.classes, "head", bias=True)], sum(c.depths))


def _join(b: Builder, x: str, y: str, stride: int) -> str:
    """Add the input, through a 1x1 convolution where its shape differs, and rectify."""
    if stride != 1 or b.shape(x)[1] != b.shape(y)[1]:
        out = b.tensor(y).shape[1]
        assert isinstance(out, int)
        x = batchnorm(b, conv(b, x, out, 1, "downsample", stride=stride), "downsample_bn")
    return b.op("relu", b.op("add", y, x, name="residual"), name="relu_out")


def _basic(b: Builder, c: ResNetConfig, x: str, width: int, stride: int) -> str:
    y = b.op("relu", batchnorm(b, conv(b, x, width, 3, "conv1", stride=stride, padding=1), "bn1"), name="relu1")
    y = batchnorm(b, conv(b, y, width, 3, "conv2", padding=1), "bn2")
    return _join(b, x, y, stride)


def _bottleneck(b: Builder, c: ResNetConfig, x: str, width: int, stride: int) -> str:
    inner = width * c.base_width // 64 * c.groups
    y = b.op("relu", batchnorm(b, conv(b, x, inner, 1, "conv1"), "bn1"), name="relu1")
    y = conv(b, y, inner, 3, "conv2", stride=stride, padding=1, groups=c.groups)
    y = b.op("relu", batchnorm(b, y, "bn2"), name="relu2")
    y = batchnorm(b, conv(b, y, 4 * width, 1, "conv3"), "bn3")
    return _join(b, x, y, stride)


_BLOCKS = {"basic": _basic, "bottleneck": _bottleneck}


# --- VGG (Simonyan and Zisserman 2014) --------------------------------------------------------------------------


class VGGConfig(Config):
    """Sizes of a VGG network."""

    image: Positive  #: Height and width of the image.
    depths: tuple[Layers, ...] = Field(min_length=1, max_length=8)  #: 3x3 convolutions of each stage.
    channels: tuple[Positive, ...] = (64, 128, 256, 512, 512)  #: Channels of each stage.
    hidden: Positive = 4096  #: Width of the two dense layers.
    classes: Positive = 1000  #: Outputs of the head.

    @model_validator(mode="after")
    def _consistent(self) -> VGGConfig:
        if len(self.depths) != len(self.channels):
            raise ValueError(f"depths has {len(self.depths)} stages and channels {len(self.channels)}")
        if self.image % (7 * 2 ** len(self.depths)):
            raise ValueError(f"image = {self.image} must be a multiple of {7 * 2 ** len(self.depths)}")
        return self


def _vgg(b: Builder, c: VGGConfig) -> Graph:
    x = images(b, 3, c.image)
    for stage, (depth, channels) in enumerate(zip(c.depths, c.channels, strict=True)):
        with b.scope(f"stage{stage + 1}"):
            for number in range(depth):
                y = conv(b, x, channels, 3, f"conv{number + 1}", padding=1, bias=True)
                x = b.op("relu", y, name=f"relu{number + 1}")
            x = b.op("maxpool2d", x, name="pool", r=2, stride=2)
    # torchvision pools to 7x7 whatever the image; at 224 the window is 1.
    window = c.image // 2 ** len(c.depths) // 7
    x = b.op("avgpool2d", x, name="avgpool", r=window, stride=window)
    x = b.op("view", x, name="flat", shape=(symbol("B"), 49 * c.channels[-1]))
    for name in ("fc1", "fc2"):
        x = b.op("relu", linear(b, x, c.hidden, name, bias=True), name=f"{name}_relu")
    return finish(b, [linear(b, x, c.classes, "head", bias=True)], sum(c.depths) + 3)


# --- U-Net (Ronneberger et al. 2015) ---------------------------------------------------------------------------


class UNetConfig(Config):
    """Sizes and options of a U-Net."""

    image: Positive  #: Height and width of the image.
    in_channels: Positive = 1  #: Channels of the image.
    #: Channels of each level, down to the bottom.
    channels: tuple[Positive, ...] = Field((64, 128, 256, 512, 1024), min_length=2, max_length=10)
    classes: Positive = 2  #: Channels of the map that comes out.
    padding: Literal[0, 1] = 0  #: Padding of the 3x3 convolutions; the paper has none and crops instead.


def _unet(b: Builder, c: UNetConfig) -> Graph:
    x, skips = images(b, c.in_channels, c.image), []
    for level, channels in enumerate(c.channels):
        with b.scope(f"down{level + 1}"):
            x = _double_conv(b, c, x, channels)
            if level < len(c.channels) - 1:
                skips.append(x)
                x = b.op("maxpool2d", x, name="pool", r=2, stride=2)
    for channels, skip in zip(reversed(c.channels[:-1]), reversed(skips), strict=True):
        with b.scope(f"up{c.channels.index(channels) + 1}"):
            x = _double_conv(b, c, _rise(b, x, skip, channels), channels)
    return finish(b, [conv(b, x, c.classes, 1, "head", bias=True)], 2 * len(c.channels) - 1)


def _double_conv(b: Builder, c: UNetConfig, x: str, channels: int) -> str:
    for number in (1, 2):
        y = conv(b, x, channels, 3, f"conv{number}", padding=c.padding, bias=True)
        x = b.op("relu", y, name=f"relu{number}")
    return x


def _rise(b: Builder, x: str, skip: str, channels: int) -> str:
    """Double the image by a 2x2 transposed convolution and join the cropped image from the way down."""
    below: Size = b.shape(x)[1]
    weights = (b.weight("rise.weight", (below, channels, 2, 2)), b.weight("rise.bias", (channels,)))
    x = b.op("conv_transpose2d", x, *weights, name="rise", stride=2)
    cropped = b.op("slice", skip, name="crop", shape=(*b.shape(skip)[:2], *b.shape(x)[2:]))
    return b.op("cat", cropped, x, name="join", axis=1)


# --- MobileNetV2 (Sandler et al. 2018) ----------------------------------------------------------------------------

#: Expansion, channels, blocks and stride of the first block of each stage (Table 2).
_MOBILENET_STAGES = (
    (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
)  # fmt: skip


class MobileNetV2Config(Config):
    """Sizes of MobileNetV2."""

    image: Positive  #: Height and width of the image.
    classes: Positive = 1000  #: Outputs of the head.


def _mobilenet(b: Builder, c: MobileNetV2Config) -> Graph:
    x = _conv_bn(b, images(b, 3, c.image), 32, 3, "stem", stride=2)
    for stage, (expansion, channels, depth, stride) in enumerate(_MOBILENET_STAGES):
        for block in range(depth):
            with b.scope(f"stage{stage + 1}.{block}"):
                x = _inverted(b, x, expansion, channels, 1 if block else stride)
    x = b.op("global_avgpool", _conv_bn(b, x, 1280, 1, "last"), name="avgpool")
    logits = linear(b, x, c.classes, "head", bias=True)
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


# --- ConvNeXt (Liu et al. 2022) -----------------------------------------------------------------------------------


class ConvNeXtConfig(Config):
    """Sizes of a ConvNeXt."""

    image: Positive  #: Height and width of the image.
    depths: tuple[Layers, ...] = Field(min_length=1, max_length=8)  #: Blocks of each stage.
    channels: tuple[Positive, ...]  #: Channels of each stage.
    classes: Positive = 1000  #: Outputs of the head.

    @model_validator(mode="after")
    def _consistent(self) -> ConvNeXtConfig:
        if len(self.depths) != len(self.channels):
            raise ValueError(f"depths has {len(self.depths)} stages and channels {len(self.channels)}")
        return self


def _convnext(b: Builder, c: ConvNeXtConfig) -> Graph:
    x = conv(b, images(b, 3, c.image), c.channels[0], 4, "stem", stride=4, bias=True)
    x = channel_norm(b, x, "layernorm2d", "stem_norm")
    for stage, (depth, channels) in enumerate(zip(c.depths, c.channels, strict=True)):
        with b.scope(f"stage{stage + 1}"):
            if stage:
                x = conv(b, channel_norm(b, x, "layernorm2d", "down_norm"), channels, 2, "down", stride=2, bias=True)
            for block in range(depth):
                with b.scope(str(block)):
                    x = _convnext_block(b, x, channels)
    x = b.op("global_avgpool", x, name="avgpool")
    x = norm(b, x, "layernorm", "norm")
    return finish(b, [linear(b, x, c.classes, "head", bias=True)], sum(c.depths))


def _convnext_block(b: Builder, x: str, channels: int) -> str:
    _, _, height, width = b.shape(x)
    y = conv(b, x, channels, 7, "depthwise", padding=3, groups=channels, bias=True)
    y = b.op("view", y, name="channels_last", shape=(symbol("B"), height, width, channels))
    y = norm(b, y, "layernorm", "norm")
    y = MLP(4 * channels, "gelu", gated=False, bias=True)(Run(b), y)
    y = b.op("view", y, name="channels_first", shape=(symbol("B"), channels, height, width))
    y = b.op("mul", y, b.weight("layer_scale", (channels, 1, 1)), name="scaled")
    return b.op("add", y, x, name="residual")


def _family(name: str, config: type[Config], build: Build) -> Family:
    return Family(name, config, lambda c: lambda b, phase: trained(b, build(b, c)) if phase == "train" else build(b, c))


FAMILIES = {
    "resnet": _family("resnet", ResNetConfig, _resnet),
    "vgg": _family("vgg", VGGConfig, _vgg),
    "unet": _family("unet", UNetConfig, _unet),
    "mobilenet_v2": _family("mobilenet_v2", MobileNetV2Config, _mobilenet),
    "convnext": _family("convnext", ConvNeXtConfig, _convnext),
}
