"""What is shown of a launcher's output ends with our own line, not with MPI's banner."""

import pytest

from heterps_hpc.launch.launcher_output import is_for_people, main_line

BANNERS = """
Abort(4) on node 1 (rank 1 in comm 0): application called MPI_Abort(MPI_COMM_WORLD, 4) - process 1
===================================================================================
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   PID 4711 RUNNING AT node7
=   EXIT CODE: 9
=   CLEANING UP REMAINING PROCESSES
=   YOU CAN IGNORE THE BELOW CLEANUP MESSAGES
YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)
This typically refers to a problem with your application.
Please see the FAQ page for debugging suggestions
--------------------------------------------------------------------------
MPI_ABORT was invoked on rank 0 in communicator MPI_COMM_WORLD
  Proc: [[1,1],0]
with errorcode 4.
NOTE: invoking MPI_ABORT causes Open MPI to kill all MPI processes.
You may or may not see output from other processes, depending on
exactly when Open MPI kills them.
prterun detected that one or more processes exited with non-zero status
srun: error: n1: task 1: Exited with exit code 4
srun: Job step aborted: Waiting up to 32 seconds for job step to finish.
slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-18T00:00:00 ***
slurmstepd-n1: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-18T00:00:00 ***
srun: Force Terminated StepId=7.0
srun: forcing job termination
srun: got SIGCONT
srun: Step created for job 7
srun: Job 7 step creation temporarily disabled, retrying (Requested nodes are busy)
heterps: rank 0 sparse stage 0 on n1, step 3, phase 'push': OSError: disk full
""".strip().splitlines()


@pytest.mark.parametrize("line", ["", *BANNERS])
def test_banners_are_kept_to_the_log(line: str) -> None:
    assert not is_for_people(line)


@pytest.mark.parametrize(
    "line",
    [
        "a user's own print",
        "UserWarning: something = 3",
        "Traceback (most recent call last):",
        "srun: error: Unable to create step for job 7: Invalid account",
        "== a title of a user's program",
    ],
)
def test_everything_else_is_shown(line: str) -> None:
    assert is_for_people(line)


@pytest.mark.parametrize(
    ("printed", "line"),
    [
        (
            [
                "srun: Step created for job 7",
                "slurmstepd-n1: error: mpi/pmi2: value not properly terminated in client request",
                "slurmstepd-n1: error: mpi/pmi2: invalid client request",
                "srun: error: n1: task 0: Exited with exit code 15",
            ],
            "slurmstepd-n1: error: mpi/pmi2: value not properly terminated in client request",
        ),
        (["loading modules", "env: python: No such file or directory", "bye"], "env: python: No "),
        (["one", "two", "====="], "two"),
    ],
)
def test_the_line_that_tells_why_nothing_started(printed: list[str], line: str) -> None:
    assert (main_line(printed) or "").startswith(line)


def test_nothing_was_printed() -> None:
    assert main_line(["", *BANNERS]) is None
