"""Every layout learns the same with its dense stages on an accelerator, to the last digits.

By default on the simulated one, a case for each layout; with HETERPS_FULL=1 all cases of the
short form. HETERPS_TEST_DEVICE=cuda (make test-gpu) runs them on a real one, if torch sees it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from heterps_hpc.runtime.device import visible_devices
from tests.equivalence.cases import LAYOUTS, SUMMED, Case
from tests.equivalence.compare import differences, load, same_bits
from tests.equivalence.oracle import Learned
from tests.equivalence.suite import pairwise, rounded, skipping, summed
from tests.equivalence.worlds import MAX_RANKS, Worlds, selected_cases
from tests.sim_device import environment

FULL = os.environ.get("HETERPS_FULL") == "1"
DEVICE = os.environ.get("HETERPS_TEST_DEVICE", "sim")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600 if FULL else 1200)]


def cases() -> list[Case]:
    """One per layout, each with another model, staleness and optimizer; then the odd ones."""
    every = pairwise() + rounded(False)
    if DEVICE != "sim":  # where autocast rounds is a device's own affair: the simulated one is like
        every = [case for case in every if case.precision != "bf16"]  # the host, others are not
    if FULL or DEVICE != "sim":  # a real one is fast, and perhaps alone: few layouts fit on it
        return every + skipping() + summed()
    chosen = {}
    for case in reversed(pairwise()):
        wanted = 4 if list(LAYOUTS).index(case.layout) % 2 else 1  # four cost thrice as much as one
        if case.micro_batches == wanted or case.layout not in chosen:
            exact = case.layout not in ("1", "3+2")
            chosen[case.layout] = replace(case, precision="float64") if exact else case
    assert list(chosen.keys() ^ LAYOUTS.keys()) == []
    scaled = [case for case in every if case.wire == "float16" and case.layout == "3+2"][:1]
    short = [case for case in every if case.precision == "bf16" and case.wire == "float32"][:1]
    return [*chosen.values(), *scaled, *short, *summed(), skipping()[1], skipping()[3]]


NUM_DEVICES = MAX_RANKS if DEVICE == "sim" else len(visible_devices(DEVICE))


@pytest.fixture(scope="session")
def device_worlds(
    data: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Worlds:
    """The runs of all selected cases, on the device; one device per rank."""
    settings = {"HETERPS_TEST_DEVICE": DEVICE}
    if DEVICE == "sim":
        settings |= environment(devices=NUM_DEVICES)
    out = tmp_path_factory.mktemp("on_device")
    return Worlds(
        selected_cases(request),
        data,
        out,
        settings,
        num_ranks=min(NUM_DEVICES, MAX_RANKS),
        twice=lambda case: case.layout if FULL or case.variant in SUMMED else None,
    )


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_every_layout_learns_the_same_on_a_device(
    case: Case, device_worlds: Worlds, oracle: Callable[[Case], Learned]
) -> None:
    """Losses, dense tensors and table rows, against one process of plain torch on the host."""
    if device_worlds.sizes[case.name] > NUM_DEVICES:
        pytest.skip(f"{case.layout} has a device per rank, torch sees {NUM_DEVICES} of {DEVICE}")
    files = device_worlds.results(case)
    assert files, f"{case.name} left no result"
    first, *again = [load(file) for file in files]
    assert differences(first, oracle(case), case.precision) == []
    for other in again:
        assert same_bits(first, other) == []
