"""Training, saving, scoring and measuring on the simulated device, in one process of one rank.

    python -m mpi4py -m tests.sim_device.training_checks DIRECTORY [CHECK …]

Prints one JSON line: for each check its name and its error, or null.
"""

from __future__ import annotations

import json
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np
import pytest
import torch
from mpi4py import MPI

from benchmarks import device as benchmark
from benchmarks.record import Report
from heterps_hpc.checkpoint import newest
from heterps_hpc.dataset import Dataset
from heterps_hpc.errors import UserError
from heterps_hpc.layout import Layout
from heterps_hpc.runtime import host_reducer
from heterps_hpc.runtime import training as training_loop
from heterps_hpc.runtime.device import Device
from heterps_hpc.runtime.half_reducer import HalfReducer
from heterps_hpc.runtime.host_reducer import HostReducer, _Bucket
from heterps_hpc.runtime.measure.program import measure
from heterps_hpc.runtime.observer import Observer
from heterps_hpc.runtime.predict import SCORES_FILE, predict
from heterps_hpc.runtime.rank import Rank
from heterps_hpc.runtime.rank_program import Start
from heterps_hpc.runtime.reducer import BackgroundMpiReducer, Reducer
from heterps_hpc.runtime.stage import StageModules
from heterps_hpc.runtime.state.begin import begin
from heterps_hpc.runtime.training import Result, Training
from heterps_hpc.runtime.votes import StopFlag
from tests.checkpoint.resume_ranks import StopBefore
from tests.equivalence.cases import Case
from tests.equivalence.click_log import write_click_logs
from tests.faults.runs import Run, different_bits, different_numbers, learned, make_run
from tests.sim_device.backend import reset
from tests.sim_device.state import settings, stats

CASE = Case("ctrdnn", "1", 4, 1, "float64", "adam")
DATA = Path()


def on_device(layout: Layout, device: str) -> Layout:
    """The same layout with all its components on that device."""
    components = [part.model_copy(update={"device": device}) for part in layout.components]
    return layout.model_copy(update={"components": tuple(components)})


def make(path: Path, device: str, case: Case = CASE, **other: Any) -> Run:
    """A run directory whose layout is on a device."""
    other.setdefault("every_steps", None)
    run = make_run(path, DATA, case, **other)
    run.layout = on_device(run.layout, device)
    run.layout.save(run.directory.layout)
    return run


def start(run: Run) -> Start:
    """What a rank program starts with."""
    return Start(MPI.COMM_WORLD, run.directory, run.job, run.layout, component=None)


Sums = Literal["of one rank", "on the host", "on the host in float16"]


def train(
    run: Run,
    stop: int | None = None,
    *,
    sums: Sums = "of one rank",
    observer: Observer | None = None,
) -> Result:
    """Begin, or continue, and train to the end or to a step, as a signal would stop it; saves.

    Gradients may take the way through the host's memory that those of replicas take.
    """
    rank = Rank(MPI.COMM_WORLD, run.job, run.layout, Dataset.open(run.job.data.train))
    begin(rank, run.directory)
    saver = StopBefore(rank, run.directory, StopFlag())
    saver.stop_before = 1 << 60 if stop is None else stop
    with pytest.MonkeyPatch.context() as patch:
        if sums != "of one rank":
            reducer: Reducer = HostReducer(BackgroundMpiReducer(MPI.COMM_SELF), rank.device)
            if sums == "on the host in float16":
                reducer = HalfReducer(reducer, rank.watch)
            patch.setattr(training_loop, "make_reducer", lambda *_, **__: reducer)
            patch.setattr(host_reducer, "BUCKET_BYTES", 200)
        training = Training(rank, run.directory, saver=saver, observer=observer)
        result = training.run()
    training.close()
    rank.close()
    return result


class CountWaits(Observer):
    """How often the host stops for the device in each step."""

    def __init__(self) -> None:
        self.of_steps: list[int] = []

    def step_begins(self, step: int) -> None:
        """From here."""
        self._before = stats["sync"] + stats["implicit_sync"]

    def step_ends(self, step: int) -> None:
        """To here; the end of an update belongs to the next step."""
        self.of_steps.append(stats["sync"] + stats["implicit_sync"] - self._before)


def check_a_step_waits_for_the_device_at_most_once(out: Path) -> None:
    """Rows up, gradients down, loss and scores: all of it without stopping the host.

    It waits for the norm of gradients that are clipped, unless they are summed on the host, where
    their norm is then known. Bad losses are found by flags, whatever is to be done about them.
    """
    cases: list[tuple[str, str, Sums, int]] = [
        ("adam", "stop", "of one rank", 0),
        ("clip", "stop", "of one rank", 1),
        ("clip", "stop", "on the host", 0),
        ("clip", "skip", "of one rank", 1),
        ("clip", "skip", "on the host", 0),
        ("clip", "stop", "on the host in float16", 0),
    ]
    for number, (variant, on_nan, sums, expected) in enumerate(cases):
        case = Case("ctrdnn", "1", 4, 1, "float64", variant)
        quiet = {"metrics_every": 10**6, "evaluate_at_end": False, "on_nan": on_nan}
        run = make(out / str(number), "sim", case, steps=6, train=quiet)
        reset()
        counted = CountWaits()
        train(run, sums=sums, observer=counted)
        assert stats["h2d_async"] > 6 * 4  # it did move rows, in every micro-batch
        assert stats["d2h_async"] > 6 * 4
        found = counted.of_steps[1:]  # the first has no update before it
        assert found == [expected] * 5, f"{variant}, {on_nan}, {sums}: {found} waits per step"


def check_gradients_are_summed_while_others_are_on_their_way(out: Path) -> None:
    """Buckets leave the device during the last backward pass, and the first is summed before the
    last has arrived; in an order that does not depend on when they do."""
    seen: list[str] = []
    summed: list[int] = []
    on_their_way: list[int] = []
    copies: list[Any] = []
    leave, summing = _Bucket.leave, BackgroundMpiReducer._start
    backward = StageModules.backward

    def note_leaving(bucket: _Bucket, device: Device) -> None:
        if not bucket.is_leaving:
            leave(bucket, device)
            seen.append("leaves")
            copies.append(bucket.copied)

    def note_sum(reducer: BackgroundMpiReducer, flat: torch.Tensor) -> None:
        ends = [each.position for each in copies if each.streams[0].unfinished(each.position)]
        on_their_way.append(len(ends))
        summed.append(flat.data_ptr())
        summing(reducer, flat)

    def note_backward(modules: StageModules, *args: Any, is_last: bool) -> None:
        backward(modules, *args, is_last=is_last)
        seen.append("last backward" if is_last else "backward")

    for on_nan in ("stop", "skip"):
        run = make(out / on_nan, "sim", steps=1, train={"on_nan": on_nan})
        for each in (seen, summed, on_their_way, copies):
            each.clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_Bucket, "leave", note_leaving)
            patch.setattr(BackgroundMpiReducer, "_start", note_sum)
            patch.setattr(StageModules, "backward", note_backward)
            train(run, sums="on the host")
        early = seen[: seen.index("last backward")].count("leaves")
        assert seen.count("backward") == 3
        assert seen.count("leaves") == len(summed) > 3
        assert early == (len(summed) if on_nan == "stop" else 0)
        assert summed == sorted(summed, reverse=True)
        assert on_their_way[0] == len(summed) - 1
        assert on_their_way[-1] == 0


def check_a_resumed_run_may_change_its_device(out: Path) -> None:
    """Host to device and back, and on the device bit for bit.

    It stops between two reports: losses that are on their way then are part of the checkpoint.
    """
    case, seldom = Case("ctrdnn", "1", 4, 1, "float64", "clip"), {"metrics_every": 3}
    whole = make(out / "whole", "sim", case, steps=8, train=seldom)
    train(whole)
    for first, then in (("cpu", "sim"), ("sim", "cpu"), ("sim", "sim")):
        path = out / f"{first}-{then}"
        stopped = make(path, first, case, steps=8, train=seldom)
        assert train(stopped, stop=5).steps == 5
        again = make(path, then, case, steps=8, train=seldom)
        assert train(again).steps == 3
        found, expected = learned(_newest(again)), learned(_newest(whole))
        if first == then:
            assert different_bits(found, expected) == []
        else:
            assert different_numbers(found, expected, 1e-10) == []


def check_out_of_memory_is_one_line(out: Path) -> None:
    run = make(out, "sim", steps=4)
    settings.limit = 5000  # its parameters fit, a batch does not
    line = r"^rank 0 sparse\+dense stage 0 on \S+: sim:0 is out of memory with [\d,]+ of 5,000 "
    with pytest.raises(UserError, match=line) as raised:
        train(run)
    assert "train.micro_batches" in str(raised.value)
    assert "\n" not in str(raised.value)


def check_a_bad_loss_stops_the_run(out: Path) -> None:
    """Its flag is on the host before the gradients are, and is looked at before they are sent:
    tables, which would refuse them, must not be the first to complain."""
    for sums in ("of one rank", "on the host in float16"):
        case = Case("ctrdnn", "1", 2, 1, "float64", "nan")
        run = make(out / sums, "sim", case, steps=8, train={"on_nan": "stop"})
        with pytest.raises(RuntimeError, match=r"the loss of step \d is nan on rank 0"):
            train(run, sums=sums)
        assert newest(run.directory.checkpoints) is None


def check_what_float16_cannot_hold_stops_the_run(out: Path) -> None:
    """Some steps later than on the host, but before anything is saved or reported."""
    dense = {"optimizer": "sgd", "lr": 0.1}
    run = make(out, "sim", steps=4, train={"dense": dense, "metrics_every": 10**6})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HalfReducer, "SCALE", 1e9)
        with pytest.raises(UserError, match=r"train\.dense\.compression"):
            train(run, sums="on the host in float16")
    assert newest(run.directory.checkpoints) is None


def check_scores_equal_the_hosts(out: Path) -> None:
    run = make(out / "run", "sim", Case("ctrdnn", "1", 4, 1, "float64", "plain"), steps=4)
    train(run)
    scores = []
    for device in ("cpu", "sim"):
        case = Case("ctrdnn", "1", 4, 1, "float64", "evaluate")
        scoring = make(out / device, device, case, train={"init_from": str(_newest(run).path)})
        predict(start(scoring))
        with h5py.File(scoring.directory.path / SCORES_FILE) as file:
            scores.append(file["score"][()])
    assert len(scores[0]) > 100
    np.testing.assert_allclose(scores[0], scores[1], rtol=1e-6)


def check_a_device_is_measured(out: Path) -> None:
    run = make(out, "sim", steps=6, measure={"warmup": 2, "batches": 4})
    measure(start(run))
    found = json.loads((out / "measured.json").read_text())
    assert found["device"] == "sim"
    assert found["step_seconds"] > 0
    on_device = {name: s for name, s in found["layer_seconds"].items() if name != "embedding"}
    # a microsecond for each kernel, some tens of them per micro-batch: not the host's time
    assert on_device
    assert all(1e-6 < seconds < 1e-3 for seconds in on_device.values()), on_device
    assert sum(on_device.values()) < 0.1 * found["step_seconds"]


def check_the_benchmark_of_a_device_runs(out: Path) -> None:
    """Nobody here has one to run it on; of its figures only the names mean something here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(benchmark, "_ROWS", 8)
        patch.setattr(benchmark, "_REPEATS", 2)
        report = Report("device", "")
        benchmark.measure(report, Device(torch.device("sim", 0)))
    table = (Path(__file__).parents[2] / "docs" / "accelerators.md").read_text()
    assert all(f"| {record.name} | |" in table for record in report.records)
    assert len(report.records) == 4


def check_a_device_without_bf16_is_named(out: Path) -> None:
    """torch would only warn, and train in float32."""
    run = make(out, "sim", Case("ctrdnn", "1", 1, 1, "bf16", "plain"), steps=2)
    reset(bf16=False)
    line = r"^rank 0 .*: train.precision is 'bf16', but sim:0 \(simulated\) does not compute in it"
    with pytest.raises(UserError, match=line):
        train(run)


def check_a_node_without_the_device_is_named(out: Path) -> None:
    run = make(out, "xpu", steps=2)
    with pytest.raises(UserError, match=r"would take xpu device 0 of .* but sees 0; ask for more"):
        train(run)


CHECKS = {
    name.removeprefix("check_"): check
    for name, check in list(globals().items())
    if name.startswith("check_")
}


def _newest(run: Run) -> Any:
    found = newest(run.directory.checkpoints)
    assert found is not None
    return found


def main(directory: Path) -> None:
    """Run them all."""
    global DATA
    DATA = directory / "data"
    write_click_logs(DATA)
    found: dict[str, str | None] = {}
    for name in sys.argv[2:] or CHECKS:
        check = CHECKS[name]
        reset()
        try:
            check(Path(tempfile.mkdtemp(dir=directory)))
            found[name] = None
        except BaseException:
            found[name] = traceback.format_exc()
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
