"""What blocks of a matmul move on a GPU: a first look, by compulsory traffic and arithmetic done by hand."""

from __future__ import annotations

import numpy as np

from roofline.tiling.schedule import Schedule
from roofline.tiling.waves import Gpu, resident, traffic

H100 = Gpu(132, 50 * 2**20)


def test_blocks_load_their_tiles_into_shared_memory() -> None:
    moved = traffic(Schedule(64, 64, 64), 1024, 1024, 1024, H100)
    tiles = 16 * 16
    assert moved.shared == tiles * (64 + 64) * 1024 * 2 + 1024 * 1024 * 2


def test_nothing_moves_less_than_once_from_memory_and_small_results_stay_in_the_cache() -> None:
    sizes = np.array([256, 1024, 4096, 8192])[:, None]
    schedules = Schedule(np.array([32, 64, 128, 256]), 64, 64, group=np.array([1, 8, 8, 1]))
    moved = traffic(schedules, sizes, sizes, sizes, H100)
    assert np.all(moved.read >= 2 * sizes**2 * 2)
    assert np.all(moved.l2 >= moved.read)
    assert np.all((moved.written >= 0) & (moved.written <= sizes**2 * 2))
    assert traffic(Schedule(64, 64, 64), 256, 256, 256, H100).written == 0


def test_groups_of_rows_read_less_than_single_rows_where_the_cache_is_small() -> None:
    by_row, grouped = (traffic(Schedule(128, 128, 64, group, 8), 8192, 8192, 8192, H100) for group in (1, 8))
    assert grouped.read < 0.6 * by_row.read


def test_occupancy_is_what_shared_memory_and_registers_allow() -> None:
    assert resident(Schedule(128, 128, 64, warps=8), H100) == 2  # 99,328 bytes of 233,472
    assert resident(Schedule(128, 256, 64, warps=8), H100) == 1
    assert resident(Schedule(64, 64, 64, warps=4), H100) == 4
