"""Nothing that a user or a file contains is ever run as code."""

from __future__ import annotations

import ast
import json
import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from heterps_hpc.config import Job
from heterps_hpc.errors import UserError
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.launch.launcher import LaunchRequest
from heterps_hpc.launch.local import LocalLauncher
from heterps_hpc.launch.slurm.script import render
from heterps_hpc.rundir import RunDir
from tests.checkpoint.made import make_checkpoint
from tests.equivalence.cases import CLUSTER
from tests.faults.harness import make_setting
from tests.launch.values import (
    BEHAVE,
    ROOT,
    cpu_pool,
    gpu_pool,
    make_cluster,
    make_job,
    make_layout,
)

# each would make a file named "canary" if a shell or a format string ever saw it bare
HOSTILE = [
    "a b'c\"d",
    "$(touch canary)",
    "`touch canary`",
    "x; touch canary #",
    "x' && touch canary && '",
    'x" | touch canary "',
    "{{ 7 * 7 }}{% raw %}",
    "${IFS}&touch${IFS}canary&",
    "-rf --help",
    "ünïcode ☃",
]


@pytest.mark.parametrize("words", HOSTILE)
def test_a_batch_script_takes_every_word_for_a_word(words: str, tmp_path: Path) -> None:
    """The script really runs, with stand-ins for Slurm's programs that note their arguments."""
    run_dir = tmp_path / words.replace("/", "")
    RunDir(run_dir).create()
    cluster = make_cluster(cpu_pool(), gpu_pool(), environment={"SITE": words}, prefix=("env",))
    layout = make_layout(cluster, ("cpu", 2), ("gpu", 1))
    script = tmp_path / "job.sbatch"
    script.write_text(render(layout, cluster, make_job(words), run_dir))
    stubs = tmp_path / "bin"
    stubs.mkdir()
    for name in ("srun", "scontrol", "scancel", "module"):
        stub = stubs / name
        stub.write_text(f'#!/bin/bash\nprintf "%s\\n" "$SITE" "$@" >> "{tmp_path}/said-{name}"\n')
        stub.chmod(0o755)
    subprocess.run(
        ["bash", str(script)],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{stubs}:{os.environ['PATH']}", "SLURM_JOB_ID": "1"},
        timeout=60,
        capture_output=True,
    )
    assert not list(tmp_path.rglob("canary"))
    said = (tmp_path / "said-srun").read_text().splitlines()
    assert said[0] == words
    assert str(RunDir(run_dir).path) in said


@pytest.mark.ranks
def test_a_local_launch_takes_every_word_for_a_word(tmp_path: Path) -> None:
    words = "a b'c\"d $(touch canary) `touch canary`; touch canary"
    run_dir = tmp_path / words
    RunDir(run_dir).create()
    (run_dir / "behave.json").write_text(json.dumps({"default": 0}))
    cluster = make_cluster(cpu_pool(name=words))
    layout = make_layout(cluster, (words, 1))
    request = LaunchRequest(RunDir(run_dir), layout, make_job(words), cluster, BEHAVE)
    launcher = LocalLauncher(environment={"PYTHONPATH": str(ROOT), "WORDS": words})
    code = launcher.start(request)
    assert code == ExitCode.DONE
    assert not list(tmp_path.rglob("canary"))


@pytest.mark.parametrize("name", ["two\nlines", "a\0b", "\x1b[31m"])
def test_names_with_control_characters_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="control characters"):
        make_job(name)


FORBIDDEN = {
    "eval", "exec", "compile", "pickle.load", "pickle.loads", "torch.load", "yaml.load",
    "yaml.unsafe_load", "yaml.full_load", "os.system", "os.popen", "marshal.loads", "shelve.open",
}  # fmt: skip


def test_the_package_has_no_call_that_runs_what_it_reads() -> None:
    found = []
    for top in ("heterps_hpc", "data_prep"):
        for path in (ROOT / top).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if not isinstance(node, ast.Call):
                    continue
                named = {keyword.arg: keyword.value for keyword in node.keywords}
                shell = named.get("shell")
                pickles = named.get("allow_pickle")
                if (
                    ast.unparse(node.func) in FORBIDDEN
                    or (isinstance(shell, ast.Constant) and shell.value)
                    or (isinstance(pickles, ast.Constant) and pickles.value)
                ):
                    found.append(f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}")
    assert found == []


def test_checkpoints_follow_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        RunDir(tmp_path / "run").create()
        checkpoint = make_checkpoint(tmp_path / "run" / "checkpoints")
    finally:
        os.umask(before)
    for path in (tmp_path / "run").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    assert checkpoint.step == 7


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's directory takes root to make")
def test_a_foreign_or_read_only_run_directory_is_refused() -> None:
    """As a user without rights: root may write everywhere."""
    with tempfile.TemporaryDirectory(prefix="heterps-test-") as theirs:
        Path(theirs).chmod(0o755)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.setgid(65534)
                os.setuid(65534)
                for path in (Path(theirs), Path(theirs) / "new"):
                    with pytest.raises(UserError, match="--run-dir"):
                        RunDir(path).create()
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0


def has_namespaces() -> bool:
    """Whether a folder can be mounted read-only, seen by one process alone."""
    return subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode == 0


@pytest.mark.skipif(not has_namespaces(), reason="mounting takes root")
@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("launch {run} --resume", "{run}: cannot be written: Read-only file system; "),
        ("report {run}", "{run}/report.html: Read-only file system; "),
        ("predict {run} --data {data} --on local", "{run}/predict: cannot be the run directory: "),
    ],
)
def test_a_read_only_file_system_is_named(command: str, message: str, tmp_path: Path) -> None:
    setting = make_setting(tmp_path, "1", steps=6, every=3)
    run = setting.new_run(tmp_path / "run")
    Job.load(setting.job).save(run.job)
    CLUSTER.save(run.cluster)
    make_checkpoint(run.checkpoints)
    names = {"run": run.path, "data": tmp_path / "test"}
    script = 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && shift && exec "$@"'
    heterps = [sys.executable, "-m", "heterps_hpc.cli", *command.format(**names).split()]
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", str(run.path), *heterps],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == ExitCode.USER_ERROR, done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("heterps: ")]
    assert len(errors) == 1
    assert message.format(**names) in errors[0]
