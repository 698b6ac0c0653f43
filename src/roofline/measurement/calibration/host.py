"""The machine at hand: its CPU, caches, memory and threads, as the operating system tells them."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


@dataclass(frozen=True, slots=True)
class Cache:
    """A cache level.

    Attributes:
        level: 1 is nearest to the core.
        size: Of one instance [byte].
        shared: Hardware threads that share an instance.
    """

    level: int
    size: int
    shared: int


@dataclass(frozen=True, slots=True)
class Host:
    """A machine.

    Attributes:
        name: The CPU's, as its vendor writes it.
        vendor: Who makes it.
        threads: Threads that programs run on, by ``OMP_NUM_THREADS`` or what the process may use.
        caches: Data caches from the inside out; empty where the system does not tell.
        memory: Of the whole machine [byte]; 0 where the system does not tell.
        system: Operating system and architecture.
    """

    name: str
    vendor: str
    threads: int
    caches: tuple[Cache, ...]
    memory: int
    system: str

    @property
    def last_level(self) -> int:
        """All of the outermost cache that the threads can use; 32 MiB where the system does not tell [byte]."""
        return self.total(self.caches[-1]) if self.caches else 32 * 2**20

    def total(self, cache: Cache) -> int:
        """All instances of a cache level that the threads can use [byte]."""
        return cache.size * max(1, -(-self.threads // cache.shared))

    @property
    def slug(self) -> str:
        """A short name for files.

        Example:
            >>> Host("AMD EPYC 9654 96-Core Processor", "AMD", 2, (), 0, "").slug
            'amd-epyc-9654-2-threads'
        """
        words = re.sub(r"\(R\)|\(TM\)|\bCPU\b|\bProcessor\b|\d+-Core|@.*", " ", self.name, flags=re.IGNORECASE)
        short = re.sub(r"[^a-z0-9.]+", "-", words.lower()).strip("-.")[:60]
        return f"{short or 'cpu'}-{self.threads}-threads"


def this_host() -> Host:
    """Look at this machine."""
    name = _name()
    known = {"amd": "AMD", "intel": "Intel", "apple": "Apple", "neoverse": "Arm", "graviton": "AWS"}
    vendor = next((maker for word, maker in known.items() if word in name.lower()), "")
    return Host(name, vendor, threads(), _caches(), _memory(), f"{platform.system()} {platform.machine()}")


def threads() -> int:
    """Threads that numerical libraries use here: ``OMP_NUM_THREADS``, or what the process may run on."""
    setting = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if setting.isdigit() and int(setting) > 0:
        return int(setting)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def host_load() -> float:
    """Programs that ran on this machine on average over the last minute; 0 where the system does not tell."""
    try:
        return os.getloadavg()[0]
    except (OSError, AttributeError):
        return 0.0


def _name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("model name", "Model", "cpu model") and value.strip():
                return value.strip()
    except OSError:
        pass
    return _sysctl("machdep.cpu.brand_string") or platform.processor() or platform.machine() or "CPU"


def _sysctl(key: str) -> str:
    if platform.system() != "Darwin":
        return ""
    try:
        done = subprocess.run(["sysctl", "-n", key], capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def _caches() -> tuple[Cache, ...]:
    caches = {}
    for folder in sorted(_CACHES.glob("index*")):
        cache = _cache(folder)
        if cache:
            caches[cache.level] = cache
    for level, key in ((1, "hw.perflevel0.l1dcachesize"), (2, "hw.perflevel0.l2cachesize")):
        size = _sysctl(key)
        if size.isdigit():
            caches.setdefault(level, Cache(level, int(size), 1 if level == 1 else 4))
    return tuple(caches[level] for level in sorted(caches))


def _cache(folder: Path) -> Cache | None:
    """One of Linux' descriptions of a cache; none where it is of instructions or not to be read."""
    try:
        if (folder / "type").read_text().strip() == "Instruction":
            return None
        size = re.fullmatch(r"(\d+)([KMG]?)", (folder / "size").read_text().strip())
        level = int((folder / "level").read_text())
        shared = _listed((folder / "shared_cpu_list").read_text())
    except (OSError, ValueError):
        return None
    if size is None:
        return None
    return Cache(level, int(size[1]) * {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}[size[2]], max(shared, 1))


def _listed(text: str) -> int:
    """Count the CPUs in a list such as ``0-3,8``."""
    spans = [part.split("-") for part in text.strip().split(",") if part]
    return sum(int(span[-1]) - int(span[0]) + 1 for span in spans)


def _memory() -> int:
    try:
        return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (ValueError, OSError, AttributeError):
        return 0
