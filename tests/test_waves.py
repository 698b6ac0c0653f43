"""What blocks of a matmul move on a GPU: a first look, by compulsory traffic and arithmetic done by hand."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from roofline.tiling.schedule import Schedule
from roofline.tiling.waves import Gpu, library_traffic, resident, traffic

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


def test_rows_that_are_not_aligned_ask_for_a_sector_for_each_element() -> None:
    """Measured on an H200: 6000 x 1111 x 1500 moved 3.2 GB at the cache, whose blocks load 0.48 GB."""
    odd, even = (traffic(Schedule(128, 64, 64, 8, 4, 3), 6000, n, 1504, H100).l2 for n in (1111, 1104))
    assert 5 * even < odd
    assert odd < 2 * (32 / 2) * 47 * 1504 * 1111 * 2  # sixteen times its columns, and little else


def test_larger_caches_never_read_more_and_caches_see_what_main_memory_gives() -> None:
    draw = np.random.default_rng(7)
    m, n, k = np.floor(2 ** draw.uniform(0, 15.5, (3, 500)))
    powers = (2.0 ** draw.integers(low, high, 500) for low, high in ((4, 9), (4, 9), (4, 8), (0, 6), (2, 4)))
    schedule = Schedule(*powers, 3)
    for cores in (1, 132):
        for move in (lambda gpu: traffic(schedule, m, n, k, gpu), lambda gpu: library_traffic(m, n, k, gpu)):
            every = [move(Gpu(cores, cache)) for cache in (0.0, 1e6, 1e7, 5e7, 1e9)]
            for moved in every:
                assert np.all(moved.read >= (m + n) * k * 2 * (1 - 1e-9))
                assert np.all(moved.l2 >= moved.read * (1 - 1e-9))
            for small, large in pairwise(every):
                assert np.all(large.read <= small.read * (1 + 1e-9))
