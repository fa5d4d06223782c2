"""The totals of a run, from all ranks: where the time went and what crossed which link."""

from __future__ import annotations

import json
import os
from typing import Any

from heterps_hpc.atomic_file import write_atomically
from heterps_hpc.rundir import RunDir
from heterps_hpc.runtime.device import describe
from heterps_hpc.runtime.exchange.transport import Exchange
from heterps_hpc.runtime.rank import Rank
from heterps_hpc.runtime.reducer import Reducer
from heterps_hpc.runtime.training import Result


def write_summary(
    rank: Rank, result: Result, exchange: Exchange, reducer: Reducer, run_dir: RunDir
) -> None:
    """Gather on rank 0 and write summary.json and trace.json; all ranks call it."""
    comm = rank.world.control
    ranks = comm.gather(_rank_totals(rank, result, exchange, reducer), root=0)
    events = comm.gather(rank.timer.events, root=0)
    reducers = comm.gather(reducer.name, root=0)
    if ranks is None or events is None or reducers is None:
        return
    summary = {
        "version": 1,
        "steps": result.steps,
        "samples": result.samples,
        "seconds": result.seconds,
        "samples_per_second": result.samples_per_second,
        "skipped_steps": result.skipped_steps,
        "stopped": result.stopped,
        "evaluation": result.evaluation,
        "reducer": next((name for name in reducers if name != "none"), "none"),
        "ranks": ranks,
    }
    write_atomically(run_dir.summary, json.dumps(summary, indent=2) + "\n")
    timeline = {"traceEvents": [event for part in events for event in part]}
    write_atomically(run_dir.trace, json.dumps(timeline) + "\n")


def _rank_totals(
    rank: Rank, result: Result, exchange: Exchange, reducer: Reducer
) -> dict[str, Any]:
    entry = rank.world.entry
    sent: dict[str, dict[str, int]] = {}
    messages: dict[str, dict[str, int]] = {}
    for (kind, peer), count in exchange.bytes_sent.items():
        sent.setdefault(kind.name, {})[str(peer)] = count
        messages.setdefault(kind.name, {})[str(peer)] = exchange.messages_sent[kind, peer]
    return {
        "rank": entry.rank,
        "role": entry.role,
        "stage": entry.stage,
        "component": entry.component,
        "host": os.uname().nodename,
        "steps": result.steps,
        "training_seconds": round(result.training_seconds, 6),
        "device": describe(rank.device.device),
        "seconds": {str(name): round(value, 6) for name, value in rank.timer.seconds.items()},
        "device_seconds": {
            name: round(value, 6) for name, value in rank.timer.device_seconds().items()
        },
        "bytes_sent": sent,
        "messages_sent": messages,
        "bytes_reduced": reducer.num_bytes,
        "reductions": reducer.num_sums,
        "tables": {
            name: table.stats()
            for name, table in (rank.tables.tables.items() if rank.tables else ())
        },
    }
