"""What all tests share: how hypothesis draws."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# The same examples on every machine, and no failure because a busy one was slow.
settings.register_profile("steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")
