"""``dot_general`` and ``conv_general_dilated``: any order of axes, as views around the registry's contractions."""

from __future__ import annotations

from collections.abc import Sequence

from roofline.frontends import emit
from roofline.frontends.jax.sizes import size_of, total
from roofline.frontends.jax.walk import Call, Result, Rule
from roofline.ir.sizes import prod


def dot_general(call: Call) -> Result:
    """With batch axes a batched matmul, else a linear layer (or a matmul, by the contracted axis on the right)."""
    (left, right), (left_batch, right_batch) = call.params["dimension_numbers"]
    x, y = call.tensor(0), call.tensor(1)
    x_shape, y_shape = call.b.shape(x), call.b.shape(y)
    batch = [x_shape[at] for at in left_batch]
    x_free = [at for at in range(len(x_shape)) if at not in (*left, *left_batch)]
    y_free = [at for at in range(len(y_shape)) if at not in (*right, *right_batch)]
    rows, columns = [x_shape[at] for at in x_free], [y_shape[at] for at in y_free]
    k, n = prod(x_shape[at] for at in left), prod(columns)
    x = call.permute(x, (*left_batch, *x_free, *left))
    if batch:
        y = call.view(call.permute(y, (*right_batch, *right, *y_free)), (*batch, k, n))
        out = call.op("bmm", call.view(x, (*batch, prod(rows), k)), y)
    elif tuple(right) == tuple(range(len(y_shape) - len(right), len(y_shape))):
        out = call.op("linear", call.view(x, (*rows, k)), call.view(y, (n, k)))
    else:
        y = call.view(call.permute(y, (*right, *y_free)), (k, n))
        out = call.op("matmul", call.view(x, (*(rows or (1,)), k)), y)
    return call.view(out, (*batch, *rows, *columns))


def ragged_dot(call: Call) -> Result:
    """Rows sorted by expert times each expert's matrix; counted are the rows, not rows times experts."""
    rows, experts = call.tensor(0), call.tensor(1)
    shape, matrices = call.b.shape(rows), call.b.shape(experts)
    if len(shape) != 2 or len(matrices) != 3 or len(call.out_shape()) != 2:
        return call.unknown()[0]
    order = (0, 2, 1) if matrices[1] == shape[1] else (0, 1, 2)
    return call.op("expert_linear", rows, call.permute(experts, order), top_k=1)


# --- convolutions -----------------------------------------------------------------------------------------------------


class _Conv:
    """A convolution of jax in channels-first order.

    Attributes:
        image: Sizes ``(N, C, *sizes)`` of the left operand, as a view.
        kernel: The same of the right, ``(O, I, *window)``.
        padding: Before and behind, per axis.
        shape: Of the result ``(N, O, *sizes)``.
    """

    def __init__(self, call: Call) -> None:
        self.params = call.params
        self.dims = call.params["dimension_numbers"]
        x, kernel = call.tensor(0), call.tensor(1)
        # The compiler folds a kernel that is reversed for a gradient into the convolution.
        kernel = call.walk.mirrors.get(kernel, kernel)
        self.image = call.permute(x, self.dims.lhs_spec)
        self.kernel = call.permute(kernel, self.dims.rhs_spec)
        self.padding = [(size_of(a), size_of(b)) for a, b in call.params["padding"]]
        aval = call.out_shape()
        self.shape = tuple(aval[at] for at in self.dims.out_spec)
        self.sizes, self.window = call.b.shape(self.image)[2:], call.b.shape(self.kernel)[2:]
        self.options = {"channels_last": self.dims.lhs_spec[1] == len(aval) - 1, "name": call.name}

    @property
    def gaps(self) -> bool:
        """Tell whether zeros lie between the points of the image, as in a transposed convolution."""
        return not _ones(self.params["lhs_dilation"])

    @property
    def summed(self) -> bool:
        """Tell whether images are summed over, as for the gradient of a kernel: the batch lies where channels do."""
        return bool(self.dims.lhs_spec[0] > self.dims.lhs_spec[1])

    def pairs(self) -> str:
        """Return what is multiplied with what: each output and window, input and window, or input and output.

        Padding counts in full, as everywhere; but where an image has gaps, or the result is larger than what
        goes in, most of what a window sees is none, and it is the input points that are spread. A window that is
        itself as large as a result (a gradient's) over an image with gaps pairs the points of image and result.
        """
        size, window, out = total(self.sizes), total(self.window), total(self.shape[2:])
        if size is None or window is None or out is None:
            return "spread" if self.gaps else "window"
        if self.summed and (self.gaps or window > size):
            return "pairs"
        if self.gaps:
            return "pairs" if out < window else "spread"
        return "window" if self.summed or out <= size else "spread"


def convolution(call: Call) -> Result:
    """A convolution, a transposed one, or a kernel's gradient, by which operands are paired."""
    conv = _Conv(call)
    how, axes = conv.pairs(), len(conv.sizes)
    if axes not in (1, 2, 3) or (how == "pairs" and axes != 2):
        what = f"conv_general_dilated over {axes} axes{', of gradients' if how == 'pairs' else ''}"
        return call.unknown(what)[0]
    plane = axes == 2 and conv.params["feature_group_count"] == 1
    if plane and (how == "pairs" or (how == "window" and conv.summed)):
        out = _kernel_gradient(call, conv, swap=how == "pairs")
    elif how == "spread" and _ones(conv.params["window_strides"]):
        out = _spread(call, conv)
    else:
        out = _plain(call, conv)
    order = sorted(range(len(conv.shape)), key=lambda at: conv.dims.out_spec[at])
    return call.permute(call.view(out, conv.shape), order)


def _grouped(call: Call, conv: _Conv) -> str:
    """Return images with groups of them as groups of channels."""
    groups = conv.params["batch_group_count"]
    n, channels, *sizes = call.b.shape(conv.image)
    return call.view(conv.image, (n // groups, groups * channels, *sizes)) if groups > 1 else conv.image


def _plain(call: Call, conv: _Conv) -> str:
    """Every output point sums its window, padding included."""
    spread = [(size - 1) * (gap - 1) for size, gap in zip(conv.sizes, conv.params["lhs_dilation"], strict=True)]
    # Gaps between the points of the image count as padding behind it.
    padding = [(a, b + more) for (a, b), more in zip(conv.padding, spread, strict=True)]
    return emit.convolution(
        call.b, _grouped(call, conv), conv.kernel, stride=conv.params["window_strides"],
        padding=[pad[0] if pad[0] == pad[1] else pad for pad in padding], dilation=conv.params["rhs_dilation"],
        groups=max(conv.params["batch_group_count"], conv.params["feature_group_count"]), **conv.options,
    )  # fmt: skip


def _spread(call: Call, conv: _Conv) -> str:
    """Every input point spreads its window."""
    groups = conv.params["feature_group_count"] * conv.params["batch_group_count"]
    image = _grouped(call, conv)
    kernel = call.permute(conv.kernel, (1, 0, *range(2, len(call.b.shape(conv.kernel)))))
    inner, outer, *window = call.b.shape(kernel)
    kernel = call.view(kernel, (inner * groups, outer // groups, *window))
    reach = [gap * (size - 1) for gap, size in zip(conv.params["rhs_dilation"], window, strict=True)]
    return emit.convolution(
        call.b, image, kernel, stride=conv.params["lhs_dilation"], transposed=True,
        padding=[each - a for each, (a, _) in zip(reach, conv.padding, strict=True)],
        output_padding=[b - a for a, b in conv.padding],
        dilation=conv.params["rhs_dilation"], groups=groups, **conv.options,
    )  # fmt: skip


def _kernel_gradient(call: Call, conv: _Conv, swap: bool) -> str:
    """Images ``(C, N, h, w)`` times gradients ``(O, N, p, q)``, or the other way round."""
    order = (1, 0, 2, 3)
    images, gradients = call.permute(conv.image, order), call.permute(conv.kernel, order)
    if swap:
        images, gradients = gradients, images
    rows, columns, *window = conv.shape
    # Groups stand in the rows of the result already; in the columns not yet.
    kernel = (columns // conv.params["batch_group_count"] if swap else rows, *window)
    out = call.op("conv2d_grad_weight", images, gradients, kernel=kernel)
    return out if swap else call.permute(out, order)


def _ones(steps: Sequence[int]) -> bool:
    return all(step == 1 for step in steps)


RULES: dict[str, Rule] = {
    "dot_general": dot_general,
    "ragged_dot_general": ragged_dot,
    "ragged_dot": ragged_dot,
    "conv_general_dilated": convolution,
}
