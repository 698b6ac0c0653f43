"""Matrix products and convolutions, forwards and backwards."""

from __future__ import annotations

from roofline.frontends import emit
from roofline.frontends.torch.lower import Result, Rule, Site
from roofline.ir.sizes import prod


def _product(site: Site, left: str, right: str, bias: str | None = None) -> str:
    """``left @ right``; against a matrix that is stored the other way round a linear layer."""
    stored = site.lowering.turned.get(right)
    extra = [bias] if bias else []
    if stored is not None and len(site.b.shape(stored)) == 2:
        return site.op("linear", left, stored, *extra)
    return emit.matmul(site.b, left, right, bias, name=site.name)


def _mm(site: Site) -> Result:
    return _product(site, site.tensor(), site.tensor("mat2"))


def _addmm(site: Site) -> Result:
    added = site.tensor()
    columns = site.out.shape[-1:]
    if site.b.shape(added) == columns:
        return _product(site, site.tensor("mat1"), site.tensor("mat2"), added)
    return site.op("add", _product(site, site.tensor("mat1"), site.tensor("mat2")), added, name="add")


def _bmm(site: Site) -> Result:
    return site.op("bmm", site.tensor(), site.tensor("mat2"))


def _addbmm(site: Site) -> Result:
    """All products of a batch in one sum."""
    product = site.op("bmm", site.tensor("batch1"), site.tensor("batch2"))
    total = emit.reduce(site.b, "sum", product, (0,), name="sum")
    return total if site.get("beta") == 0 else site.op("add", total, site.tensor(), name="add")


def _baddbmm(site: Site) -> Result:
    product = site.op("bmm", site.tensor("batch1"), site.tensor("batch2"))
    return product if site.get("beta") == 0 else site.op("add", product, site.tensor(), name="add")


def _matmul(first: str, second: str) -> Rule:
    def rule(site: Site) -> Result:
        return emit.matmul(site.b, site.tensor(first), site.tensor(second), name=site.name)

    return rule


def _linear(site: Site) -> Result:
    bias = site.maybe("bias")
    return site.op("linear", site.tensor("input"), site.tensor("weight"), *([bias] if bias else []))


def _scaled_mm(site: Site) -> Result:
    return _product(site, site.tensor(), site.tensor("mat2"), site.maybe("bias"))


def _solve(site: Site) -> Result:
    return site.op("triangular_solve", site.tensor(), site.tensor("B"))


def _by_row(site: Site, matrices: str) -> str:
    """``(experts, k, n)`` as linear layers store it, ``(experts, n, k)``."""
    stored = site.lowering.turned.get(matrices)
    if stored is not None:
        return stored
    experts, k, n = site.b.shape(matrices)
    return site.b.op("view", matrices, name="by_row", shape=(experts, n, k))


def _grouped_mm(rows: str, matrices: str) -> Rule:
    """Rows sorted by expert against one matrix an expert, ``(rows, k) @ (experts, k, n)``."""

    def rule(site: Site) -> Result:
        return site.op("expert_linear", site.tensor(rows), _by_row(site, site.tensor(matrices)), top_k=1)

    return rule


def _grouped_mm_backward(site: Site) -> Result:
    """Gradient of the rows by the same matrices; that of each matrix from the rows of its expert."""
    grad, rows, matrices = (site.tensor(key) for key in ("grad", "rows", "matrices"))
    first = site.op("expert_linear", grad, matrices, name="grad_rows", top_k=1)
    second = site.op("expert_linear_grad", grad, rows, name="grad_matrices", experts=site.b.shape(matrices)[0])
    return first, site.b.op("view", second, name="by_column", shape=site.b.shape(matrices))


def _convolution(site: Site) -> Result:
    image = site.value("input")
    return emit.convolution(
        site.b, site.tensor("input"), site.tensor("weight"), site.maybe("bias"),
        stride=site.get("stride"), padding=site.get("padding"), dilation=site.get("dilation"),
        groups=site.get("groups", 1), transposed=site.get("transposed", False),
        output_padding=site.get("output_padding", ()), channels_last=bool(image and image.channels_last),
        name=site.name,
    )  # fmt: skip


def _plane(site: Site, name: str) -> str:
    """An array of any number of image axes as one of two: all but the last are joined."""
    first, second, *axes = site.b.shape(name)
    return emit.view(site.b, name, (first, second, prod(axes[:-1]), axes[-1]), "plane")


def _convolution_backward(site: Site) -> Result:
    """Gradients of image, kernel and bias: each of the first two sums the products of the forward."""
    wanted = site.get("output_mask", (True, True, True))
    ways = (_image_gradient, _kernel_gradient, _bias_gradient)
    return tuple(way(site) if is_wanted else None for way, is_wanted in zip(ways, wanted, strict=True))


def _image_gradient(site: Site) -> str:
    """Of a transposed convolution it is a plain one."""
    grad, image, weight = site.tensor("grad_output"), site.tensor("input"), site.tensor("weight")
    groups = site.get("groups", 1)
    if site.get("transposed"):
        return emit.convolution(
            site.b, grad, weight, stride=site.get("stride"), padding=site.get("padding"),
            dilation=site.get("dilation"), groups=groups, name="grad_input",
        )  # fmt: skip
    planes = [_plane(site, name) for name in (grad, image, weight)]
    sizes = site.b.shape(planes[1])[1:]
    found = site.op("conv2d_grad_input", planes[0], planes[2], name="grad_input", image=sizes, groups=groups)
    return emit.view(site.b, found, site.b.shape(image), "image")


def _kernel_gradient(site: Site) -> str:
    """Image and gradient change places where the convolution is transposed."""
    grad, image, weight = (_plane(site, site.tensor(key)) for key in ("grad_output", "input", "weight"))
    inner, outer = (grad, image) if site.get("transposed") else (image, grad)
    sizes = site.b.shape(weight)[1:]
    found = site.op("conv2d_grad_weight", inner, outer, name="grad_weight", kernel=sizes, groups=site.get("groups", 1))
    return emit.view(site.b, found, site.shape("weight"), "kernel")


def _bias_gradient(site: Site) -> str:
    grad = site.tensor("grad_output")
    axes = [at for at in range(len(site.b.shape(grad))) if at != 1]
    return emit.reduce(site.b, "sum", grad, axes, name="grad_bias")


RULES: dict[str, Rule] = {
    "mm": _mm, "_int_mm": _mm, "addmm": _addmm, "bmm": _bmm, "baddbmm": _baddbmm, "addbmm": _addbmm, "linear": _linear,
    "matmul": _matmul("self", "other"), "mv": _matmul("self", "vec"), "dot": _matmul("self", "tensor"),
    "vdot": _matmul("self", "other"), "_scaled_mm": _scaled_mm, "grouped_mm": _grouped_mm("rows", "matrices"),
    "grouped_mm_fallback": _grouped_mm("input", "weight"),
    "linalg_solve_triangular": _solve,
    "grouped_mm_backward": _grouped_mm_backward,
    "_weight_int8pack_mm": _scaled_mm, "convolution": _convolution, "_convolution": _convolution,
    "cudnn_convolution": _convolution, "mkldnn_convolution": _convolution,
    "convolution_backward": _convolution_backward,
}  # fmt: skip
