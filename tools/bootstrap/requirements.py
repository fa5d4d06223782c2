"""What to install: names from setup.cfg, exact versions from requirements/pins.txt."""

import configparser
import re
from pathlib import Path

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
BUILD_TOOLS = ("pip", "setuptools", "wheel", "packaging", "pybind11")


def canonical(name: str) -> str:
    """PyPI's one spelling of a package name."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_pins(path: Path) -> dict[str, str]:
    """Canonical name → exact version."""
    pins: dict[str, str] = {}
    for line in path.read_text().splitlines():
        spec = line.partition("#")[0].strip()
        if spec:
            name, _, version = spec.partition("==")
            pins[canonical(name)] = version
    return pins


def read_needs(setup_cfg: Path) -> dict[str, list[str]]:
    """Group ("" for the base, else the extra's name) → requirement lines of setup.cfg."""
    parser = configparser.ConfigParser()
    parser.read(setup_cfg)
    groups = {"": parser["options"]["install_requires"], **parser["options.extras_require"]}
    return {
        group: [line.strip() for line in text.splitlines() if line.strip()]
        for group, text in groups.items()
    }


def names(requirements: list[str]) -> list[str]:
    """The bare names of requirement lines."""
    found = (NAME.match(line) for line in requirements)
    return [match.group(0) for match in found if match]
