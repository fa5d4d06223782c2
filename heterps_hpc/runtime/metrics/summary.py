"""The totals of a run, from all ranks: where the time went and what crossed which link."""

from __future__ import annotations

import json
import os
from typing import Any

from heterps_hpc.rundir import RunDir
from heterps_hpc.runtime.exchange.transport import Exchange
from heterps_hpc.runtime.rank import Rank
from heterps_hpc.runtime.training import Result
from heterps_hpc.validation import write_atomically


def write_summary(
    rank: Rank, result: Result, exchange: Exchange, reducer: str, run_dir: RunDir
) -> None:
    """Gather on rank 0 and write summary.json and trace.json; all ranks call it."""
    comm = rank.world.control
    ranks = comm.gather(_rank_totals(rank, exchange), root=0)
    events = comm.gather(rank.timer.events, root=0)
    reducers = comm.gather(reducer, root=0)
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


def _rank_totals(rank: Rank, exchange: Exchange) -> dict[str, Any]:
    entry = rank.world.entry
    sent: dict[str, dict[str, int]] = {}
    messages: dict[str, dict[str, int]] = {}
    for (lane, peer), count in exchange.bytes_sent.items():
        sent.setdefault(lane.name, {})[str(peer)] = count
        messages.setdefault(lane.name, {})[str(peer)] = exchange.messages_sent[lane, peer]
    return {
        "rank": entry.rank,
        "role": entry.role,
        "stage": entry.stage,
        "component": entry.component,
        "host": os.uname().nodename,
        "seconds": {str(name): round(value, 6) for name, value in rank.timer.seconds.items()},
        "bytes_sent": sent,
        "messages_sent": messages,
        "tables": {
            name: table.stats()
            for name, table in (rank.tables.tables.items() if rank.tables else ())
        },
    }
