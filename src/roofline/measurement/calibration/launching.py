"""How long the machine at hand takes for a call of an operator in eager PyTorch: its host's figure."""

from __future__ import annotations

from typing import Any

from roofline.cost.host import seconds
from roofline.counting.counts import kernels
from roofline.frontends.torch import from_torch
from roofline.ir.errors import MissingExtra
from roofline.measurement.calibration import torch_cpu
from roofline.measurement.calibration.timing import repeat

#: A call in a program against one in a loop over this little network, which the CPU's caches hold: on the host of an
#: H200, 11 programs of measurements/h100-sxm/zoo took 0.79 times what a call of 21.7 us gives, and the network 0.53.
IN_PROGRAM = 1.5
BLOCKS, WIDTH = 12, 64


def host_figure(budget: float = 0.3) -> float:
    """Time a small network of modules, views and kernels, on the GPU where PyTorch sees one [s].

    Args:
        budget: Time for it [s].

    Returns:
        What ``host`` in the ``[efficiency]`` of a chip's file means: one call of an operator within a program.

    Raises:
        MissingExtra: PyTorch is not installed.
    """
    if not torch_cpu.available():
        raise MissingExtra('measuring a host needs torch: pip install "roofline[torch]"')
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    graph = from_torch(_network("meta"), torch.empty(1, 8, WIDTH, device="meta"))
    rows = tuple(kernel.at({}) for kernel in kernels(graph))
    launches = sum(row.kernel.count for row in rows) if device == "cuda" else 0
    network, x = _network(device), torch.zeros(1, 8, WIDTH, device=device)

    def run() -> None:
        for _ in range(5):
            network(x)
        if device == "cuda":
            torch.cuda.synchronize()

    once = repeat([torch_cpu.inference(run)], budget).typical / 5
    return IN_PROGRAM * once / float(seconds(graph, rows, launches, 1.0, 0.0))


def _network(device: str) -> Any:
    import torch
    from torch.nn import functional

    class Block(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.norm = torch.nn.LayerNorm(WIDTH)
            self.up, self.down = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Any) -> Any:
            heads = functional.gelu(self.up(self.norm(x))).view(1, 8, 4, WIDTH // 4).transpose(1, 2)
            return x + self.down(heads.transpose(1, 2).reshape(1, 8, WIDTH))

    with torch.device(device), torch.random.fork_rng(devices=[]):
        return torch.nn.Sequential(*(Block() for _ in range(BLOCKS))).eval().requires_grad_(False)
