"""In which namespace of process numbers this process lives: containers may have their own."""

from __future__ import annotations

from pathlib import Path


def pid_namespace() -> str:
    """Its name, the same for all processes in it; empty where the system does not tell."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""
