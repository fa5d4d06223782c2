"""What an accelerator's rank pays for moving rows and gradients, and how much of it is hidden.

    python -m benchmarks.device --device cuda

Copies of one micro-batch's rows by the code that training uses, from pinned and from pageable
memory, and a matrix product with and without copies alongside. For a machine with an accelerator;
elsewhere it says so and ends.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.record import Report
from heterps_hpc.runtime.device import Device, visible_devices

_ROWS, _WIDTH = 4096, 416  # 26 slots of 16 numbers
_REPEATS = 30


def seconds(work: Callable[[], object]) -> float:
    """The median time of some work, all of it done on the device."""
    times = []
    for _ in range(_REPEATS):
        torch.accelerator.synchronize()
        began = time.perf_counter()
        work()
        torch.accelerator.synchronize()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def measure(report: Report, device: Device) -> None:
    """Copies alone, a computation alone, and both at once."""
    pinned = device.buffer(_ROWS, _WIDTH, torch.float32)
    pageable = torch.zeros(_ROWS, _WIDTH)
    there = device.upload(pinned)
    weight = torch.randn(_WIDTH, 4096, device=device.device)

    def compute() -> None:
        for _ in range(8):
            there @ weight

    def both() -> None:
        compute()
        device.upload(pinned)
        device.download(there, pinned)

    size = pinned.numel() * pinned.element_size() / 1e9
    copies = seconds(lambda: (device.upload(pinned), device.download(there, pinned)))
    alone, together = seconds(compute), seconds(both)
    report.add("upload, pinned", size / seconds(lambda: device.upload(pinned)), "GB/s")
    report.add("upload, pageable", size / seconds(lambda: device.upload(pageable)), "GB/s")
    download = seconds(lambda: device.download(there, pinned))
    report.add("download, pinned", size / download, "GB/s")
    hidden = (alone + copies - together) / copies
    report.add("copies hidden behind computing", 100 * hidden, "%", ">= 80")


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the same: it takes seconds")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if not visible_devices(options.device):
        print(f"torch sees no {options.device} device here; nothing was measured")
        return
    report = Report("device", f"Moving rows to and from {options.device}")
    measure(report, Device(torch.device(options.device, 0)))
    report.finish(options.json)


if __name__ == "__main__":
    main()
