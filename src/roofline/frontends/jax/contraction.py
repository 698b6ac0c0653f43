"""``dot_general`` and ``conv_general_dilated``: any order of axes, as views around the registry's contractions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from roofline.frontends import emit
from roofline.frontends.jax.sizes import format_of, shape_of, size_of, total
from roofline.frontends.jax.walk import Rule, Value, Walk
from roofline.ir.sizes import prod


def dot_general(w: Walk, eqn: Any, values: list[Value]) -> Value:
    """Batch axes make a batched product, none a linear layer (or a matmul, by where the right contracts)."""
    (left, right), (left_batch, right_batch) = eqn.params["dimension_numbers"]
    x, y = w.tensor(values[0]), w.tensor(values[1])
    batch = [w.b.shape(x)[at] for at in left_batch]
    x_free, y_free = _free(w, x, left, left_batch), _free(w, y, right, right_batch)
    sizes = [w.b.shape(x)[at] for at in x_free], [w.b.shape(y)[at] for at in y_free]
    k, n = prod(w.b.shape(x)[at] for at in left), prod(sizes[1])
    rows = w.permute(x, (*left_batch, *x_free, *left))
    if batch:
        columns = w.view(w.permute(y, (*right_batch, *right, *y_free)), (*batch, k, n))
        out = w.out(eqn, "bmm", w.view(rows, (*batch, prod(sizes[0]), k)), columns)
    elif tuple(right) == tuple(range(len(w.b.shape(y)) - len(right), len(w.b.shape(y)))):
        out = w.out(eqn, "linear", w.view(rows, (*sizes[0], k)), w.view(y, (n, k)))
    else:
        table = w.view(w.permute(y, (*right, *y_free)), (k, n))
        out = w.out(eqn, "matmul", w.view(rows, (*(sizes[0] or (1,)), k)), table)
    return w.view(out, (*batch, *sizes[0], *sizes[1]))


def _free(w: Walk, x: str, contracted: Sequence[int], batch: Sequence[int]) -> list[int]:
    return [at for at in range(len(w.b.shape(x))) if at not in (*contracted, *batch)]


def ragged_dot(w: Walk, eqn: Any, values: list[Value]) -> Value:
    """Rows sorted by expert times each expert's matrix; counted are the rows, not rows times experts."""
    rows, experts = w.tensor(values[0]), w.tensor(values[1])
    if len(w.b.shape(rows)) != 2 or len(w.b.shape(experts)) != 3 or len(shape_of(eqn.outvars[0].aval)) != 2:
        return w.unknown(eqn, values)[0]
    inner = w.b.shape(rows)[1]
    order = (0, 2, 1) if w.b.shape(experts)[1] == inner else (0, 1, 2)
    return w.out(eqn, "expert_linear", rows, w.permute(experts, order), top_k=1)


# --- convolutions -----------------------------------------------------------------------------------------------------


class _Conv:
    """A convolution of jax in channels-first order.

    Attributes:
        image: Sizes ``(N, C, *sizes)`` of the left operand, as a view.
        kernel: The same of the right, ``(O, I, *window)``.
        padding: Before and behind, an axis.
        shape: Of the result ``(N, O, *sizes)``.
    """

    def __init__(self, w: Walk, eqn: Any, values: list[Value]) -> None:
        self.params = eqn.params
        self.dims = eqn.params["dimension_numbers"]
        x, kernel = w.tensor(values[0]), w.tensor(values[1])
        # The compiler folds a kernel that is turned round for a gradient into the convolution.
        kernel = w.mirrors.get(kernel, kernel)
        self.image = w.permute(x, self.dims.lhs_spec)
        self.kernel = w.permute(kernel, self.dims.rhs_spec)
        self.padding = [(size_of(a), size_of(b)) for a, b in eqn.params["padding"]]
        aval = shape_of(eqn.outvars[0].aval)
        self.shape = tuple(aval[at] for at in self.dims.out_spec)
        self.sizes, self.window, self.out = w.b.shape(self.image)[2:], w.b.shape(self.kernel)[2:], self.shape[2:]
        self.options = {
            "channels_last": self.dims.lhs_spec[1] == len(aval) - 1,
            "name": eqn.primitive.name,
            "dtype": format_of(eqn.outvars[0].aval.dtype),
        }

    @property
    def gaps(self) -> bool:
        """Whether zeros lie between the points of the image, as in a transposed convolution."""
        return not _ones(self.params["lhs_dilation"])

    @property
    def summed(self) -> bool:
        """Whether images are summed over, as for the gradient of a kernel: the batch lies where channels do."""
        return bool(self.dims.lhs_spec[0] > self.dims.lhs_spec[1])

    def products(self) -> str:
        """What the products are: of each output and window, input and window, or input and output.

        Padding counts as full products, as everywhere; but where an image has gaps, or the result is larger than what
        goes in, most of what a window sees is none, and it is the input points that are spread. A window that is
        itself as large as a result (a gradient's) over an image with gaps pairs the points of image and result.
        """
        size, window, out = total(self.sizes), total(self.window), total(self.out)
        if size is None or window is None or out is None:
            return "spread" if self.gaps else "window"
        if self.summed and (self.gaps or window > size):
            return "pairs"
        if self.gaps:
            return "pairs" if out < window else "spread"
        return "window" if self.summed or out <= size else "spread"


def convolution(w: Walk, eqn: Any, values: list[Value]) -> Value:
    """By which of its operands the products are counted: a convolution, a transposed one, or a kernel's gradient."""
    c = _Conv(w, eqn, values)
    how = c.products()
    if len(c.sizes) not in (1, 2, 3) or (how == "pairs" and len(c.sizes) != 2):
        what = f"conv_general_dilated over {len(c.sizes)} axes{', of gradients' if how == 'pairs' else ''}"
        return w.unknown(eqn, values, what)[0]
    plane = len(c.sizes) == 2 and c.params["feature_group_count"] == 1
    if plane and (how == "pairs" or (how == "window" and c.summed)):
        out = _kernel_gradient(w, c, swap=how == "pairs")
    elif how == "spread" and _ones(c.params["window_strides"]):
        out = _spread(w, c)
    else:
        out = _plain(w, c)
    order = sorted(range(len(c.shape)), key=lambda at: c.dims.out_spec[at])
    return w.permute(w.view(out, c.shape), order)


def _plain(w: Walk, c: _Conv) -> str:
    """Every output point sums its window, padding as full products; groups of images are groups of channels."""
    groups = c.params["batch_group_count"]
    image = c.image
    if groups > 1:
        n, channels, *sizes = w.b.shape(image)
        image = w.view(image, (n // groups, groups * channels, *sizes))
    gaps = c.params["lhs_dilation"]
    sizes = [(size - 1) * (gap - 1) for size, gap in zip(c.sizes, gaps, strict=True)]
    # Gaps between the points of the image count as padding behind it.
    padding = [(a, b + more) for (a, b), more in zip(c.padding, sizes, strict=True)]
    return emit.convolution(
        w.b, image, c.kernel, stride=c.params["window_strides"], padding=[_even(pad) for pad in padding],
        dilation=c.params["rhs_dilation"], groups=max(groups, c.params["feature_group_count"]), **c.options,
    )  # fmt: skip


def _spread(w: Walk, c: _Conv) -> str:
    """Every input point spreads its window."""
    groups = c.params["feature_group_count"] * c.params["batch_group_count"]
    n, channels, *sizes = w.b.shape(c.image)
    batches = c.params["batch_group_count"]
    image = w.view(c.image, (n // batches, batches * channels, *sizes))
    kernel = w.permute(c.kernel, (1, 0, *range(2, len(w.b.shape(c.kernel)))))
    inner, outer, *window = w.b.shape(kernel)
    kernel = w.view(kernel, (inner * groups, outer // groups, *window))
    reach = [gap * (size - 1) for gap, size in zip(c.params["rhs_dilation"], window, strict=True)]
    return emit.convolution(
        w.b, image, kernel, stride=c.params["lhs_dilation"], transposed=True,
        padding=[each - a for each, (a, _) in zip(reach, c.padding, strict=True)],
        output_padding=[b - a for a, b in c.padding],
        dilation=c.params["rhs_dilation"], groups=groups, **c.options,
    )  # fmt: skip


def _kernel_gradient(w: Walk, c: _Conv, swap: bool) -> str:
    """Images ``(C, N, h, w)`` times gradients ``(O, N, p, q)``, or the other way round."""
    turn = (1, 0, 2, 3)
    images, gradients = w.permute(c.image, turn), w.permute(c.kernel, turn)
    if swap:
        images, gradients = gradients, images
    rows, columns, *window = c.shape
    # Groups stand in the rows of the result already; in the columns not yet.
    kernel = (columns // c.params["batch_group_count"] if swap else rows, *window)
    node = {"name": c.options["name"], "dtype": c.options["dtype"]}
    out = w.op("conv2d_grad_weight", images, gradients, kernel=kernel, **node)
    return out if swap else w.permute(out, turn)


def _even(pad: tuple[Any, Any]) -> Any:
    return pad[0] if pad[0] == pad[1] else pad


def _ones(steps: Sequence[int]) -> bool:
    return all(step == 1 for step in steps)


RULES: dict[str, Rule] = {
    "dot_general": dot_general,
    "ragged_dot_general": ragged_dot,
    "ragged_dot": ragged_dot,
    "conv_general_dilated": convolution,
}
