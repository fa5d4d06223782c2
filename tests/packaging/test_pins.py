"""setup.cfg, requirements/pins.txt, environment.yml and the environment itself agree."""

import configparser
import re
import sys
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from tools.bootstrap import horovod_wheel as horovod
from tools.bootstrap.environment import GROUPS
from tools.bootstrap.requirements import BUILD_TOOLS, read_needs, read_pins

ROOT = Path(__file__).resolve().parents[2]
PINS = read_pins(ROOT / "requirements/pins.txt")
NEEDS = read_needs(ROOT / "setup.cfg")
INSTALLED = GROUPS  # peers live in environments of their own
REQUIREMENTS = sorted({line for group in INSTALLED for line in NEEDS[group]})


def conda_environment() -> tuple[dict[str, str], dict[str, str]]:
    """conda's own requirements, and those for pip."""
    listed = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    (pip,) = (entry["pip"] for entry in listed if isinstance(entry, dict))
    own = dict(entry.partition("=")[::2] for entry in listed if isinstance(entry, str))
    return own, {canonicalize_name(n): v for n, v in (line.split("==") for line in pip)}


@pytest.mark.parametrize("line", REQUIREMENTS)
def test_every_requirement_is_pinned_within_its_range(line: str) -> None:
    requirement = Requirement(line)
    pin = PINS.get(canonicalize_name(requirement.name))
    assert pin is not None, f"{requirement.name} of setup.cfg has no line in requirements/pins.txt"
    assert requirement.specifier.contains(pin), f"the pin {pin} is outside {line}"


def test_one_package_has_one_range_in_all_groups() -> None:
    ranges: dict[str, set[str]] = {}
    for line in (line for group in NEEDS.values() for line in group):
        requirement = Requirement(line)
        ranges.setdefault(requirement.name, set()).add(str(requirement.specifier))
    assert {name: r for name, r in ranges.items() if len(r) > 1} == {}


def test_conda_environment_has_the_same_packages_at_the_same_versions() -> None:
    _, pip = conda_environment()
    wanted = {canonicalize_name(Requirement(line).name) for line in REQUIREMENTS}
    # horovod is built by `make setup`; mpich is the MPI, which setup.cfg leaves to the site
    assert set(pip) == wanted - {"horovod"} | {"mpich"}
    assert pip == {name: PINS[name] for name in pip}


def test_python_versions_agree() -> None:
    own, _ = conda_environment()
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    required = SpecifierSet(parser["options"]["python_requires"])
    assert required.contains(own["python"])
    assert own["pip"] == PINS["pip"]


def test_python_requires_names_what_is_tested() -> None:
    """No release that nobody has run: not the one before, not the next, not one in ten years."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    required = SpecifierSet(parser["options"]["python_requires"])
    listed = re.findall(r"Python :: (3\.\d+)", parser["metadata"]["classifiers"])
    allowed = [f"3.{minor}" for minor in range(8, 40) if required.contains(f"3.{minor}.0")]
    assert allowed == listed
    assert ".".join(map(str, sys.version_info[:2])) in listed
    assert (
        f"sys.version_info[:2] == ({listed[0].replace('.', ', ')})"
        in (ROOT / "Makefile").read_text()
    )


def test_planning_needs_no_baselines() -> None:
    base = {canonicalize_name(Requirement(line).name) for line in NEEDS[""]}
    extra = {canonicalize_name(Requirement(line).name) for line in NEEDS["baselines"]}
    assert extra == {"optuna", "pymoo"}
    assert not base & extra


def test_what_is_installed_is_what_is_pinned() -> None:
    installed = {
        canonicalize_name(dist.metadata["Name"]): dist.version for dist in metadata.distributions()
    }
    direct = {canonicalize_name(Requirement(line).name) for line in REQUIREMENTS}
    wrong = {
        name: f"pinned {PINS[name]}, installed {installed.get(name, 'not at all')}"
        for name in sorted(direct | set(PINS) & set(installed))
        if Version(installed.get(name, "0")).public != Version(PINS[name]).public
    }
    assert wrong == {}, "run `make setup`"


def test_nothing_is_installed_without_a_pin() -> None:
    """A dependency of a dependency that floats would make two set-ups differ."""
    names = {canonicalize_name(d.metadata["Name"]) for d in metadata.distributions()}
    assert names - set(PINS) - {"heterps-hpc"} == set()


def test_pins_are_exact_and_given_once() -> None:
    lines = [
        line.partition("#")[0].strip()
        for line in (ROOT / "requirements/pins.txt").read_text().splitlines()
    ]
    specs = [line for line in lines if line]
    assert [s for s in specs if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.]*", s)] == []
    assert len(specs) == len(PINS)
    assert set(BUILD_TOOLS) <= set(PINS)


def test_horovod_is_built_at_its_pin() -> None:
    assert PINS["horovod"] == horovod.VERSION
