"""Settings, counters, and each thread's current device and streams."""

from __future__ import annotations

import os
import threading
from collections import Counter
from dataclasses import dataclass, fields
from typing import Any

import torch

NAME = "sim"


@dataclass
class Settings:
    """How many devices, and how strict they are."""

    devices: int = 2  # per node
    granted_only: bool = False  # only as many as Slurm granted this process
    # "off": copies are done at once. "stream": as on a GPU, a copy marked non_blocking waits in its
    # stream until a later operator or wait of that stream comes to it. "sync": stricter than any
    # GPU, nothing is delivered before a wait, not even to the same stream.
    late: str = "stream"
    pinned_only: bool = True  # only copies from or to pinned memory are late
    bf16: bool = True  # whether autocast can use it
    limit: int = 0  # bytes per device; 0: no limit
    check_order: bool = True  # streams must wait before they touch each other's memory
    raise_hazards: bool = True  # what is wrong on a device: raise, or only count

    @classmethod
    def parse(cls, text: str) -> Settings:
        """From `late=sync,limit=1000`."""
        settings = cls()
        types = {field.name: type(getattr(settings, field.name)) for field in fields(cls)}
        for part in filter(None, text.split(",")):
            name, _, value = part.partition("=")
            made: Any = value == "True" if types[name] is bool else types[name](value)
            setattr(settings, name, made)
        return settings


settings = Settings.parse(os.environ.get("HETERPS_SIM_DEVICE", ""))
# Slurm names the GPUs that it grants to a job step in a variable; the others of a node have none
_granted = list(filter(None, os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")))
NUM_DEVICES = len(_granted) if settings.granted_only else settings.devices
# ops; h2d, d2h, d2d with _bytes and _async; sync (asked for) and implicit_sync (.item(), .cpu(),
# blocking copies …); stream_waits; hazards; oom
stats: Counter[str] = Counter()


class ThreadState(threading.local):
    """What each thread has of its own."""

    def __init__(self) -> None:
        self.device = 0
        self.streams: dict[int, Any] = {}
        self.in_backward = False
        self.error: BaseException | None = None
        self.hazard: str | None = None  # found where nothing could be raised


thread = ThreadState()


def device_index(device: Any = None) -> int:
    """The index that a device, its name or its number means; none: the current one."""
    found = torch.device(device) if isinstance(device, str) else device
    if isinstance(found, torch.device):
        found = found.index if found.type == NAME else -1
    found = thread.device if found is None else int(found)
    if 0 <= found < NUM_DEVICES:
        return found
    raise RuntimeError(f"{NAME}: invalid device {device}, there are {NUM_DEVICES}")


def set_device(device: Any) -> int:
    """Make a device the current one; returns the one before."""
    before, thread.device = thread.device, device_index(device)
    return before
