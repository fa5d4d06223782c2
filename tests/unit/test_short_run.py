"""Short runs share a directory with earlier ones of the same kind."""

from pathlib import Path
from typing import Any

import pytest

from heterps_hpc import events
from heterps_hpc.commands.short_run import start_short_run
from heterps_hpc.errors import StartFailed
from heterps_hpc.events import Ended, Launched, Started, StopWanted
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.launch.launcher import LaunchRequest, Listener
from heterps_hpc.launch.stop_requests import StopRequested
from heterps_hpc.rundir import RunDir
from tests.launch.values import make_cluster, make_job, make_layout


class FakeLauncher:
    """Fails before ranks are there; stopped, if it is told so."""

    name = "local"

    def __init__(self, *, stopped: bool) -> None:
        self._stopped = stopped

    def start(self, request: LaunchRequest, listener: Listener) -> ExitCode:
        if self._stopped:
            events.record(request.run, StopWanted(why="SIGTERM"))
        return ExitCode.RANK_FAILED


@pytest.mark.parametrize(("stopped", "error"), [(True, StopRequested), (False, StartFailed)])
def test_a_stop_of_an_earlier_run_is_not_one_of_this(
    tmp_path: Path, stopped: bool, error: type[BaseException]
) -> None:
    run = RunDir(tmp_path).create()
    for event in (Launched(), Started(), StopWanted(why="SIGINT"), Ended(code=3)):
        events.record(run, event)
    cluster = make_cluster()
    request = LaunchRequest(run, make_layout(cluster, ("cpu", 1)), make_job(), cluster)
    launcher: Any = FakeLauncher(stopped=stopped)
    with pytest.raises(error, match="SIGTERM" if stopped else "scoring failed"):
        start_short_run(launcher, request, run.scores, "scoring")
