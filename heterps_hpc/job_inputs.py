"""The inputs of a run: a job file and its cluster, with keys that `--set KEY=VALUE` changes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from heterps_hpc.bounded_yaml import load_yaml
from heterps_hpc.cluster import Cluster
from heterps_hpc.config import Job
from heterps_hpc.errors import UserError
from heterps_hpc.reference import keys
from heterps_hpc.validation import nearest


def load_inputs(job_file: Path, settings: Sequence[str] = ()) -> tuple[Job, Cluster]:
    """A job and its cluster, checked as files are with the settings in them."""
    job, of_cluster = Job.load(job_file), []
    if settings:
        data = job.model_dump(mode="json")
        for setting in settings:
            root = setting.partition("=")[0].split(".")[0]
            if root not in Job.model_fields and root in Cluster.model_fields:
                of_cluster.append(setting)
            else:
                _put(data, setting)
        job = Job.parse(data, _origin(settings)).anchored(job_file.resolve().parent)
    cluster = cluster_of(job)
    if of_cluster:
        data = cluster.model_dump(mode="json")
        for setting in of_cluster:
            _put(data, setting)
        cluster = Cluster.parse(data, _origin(settings))
    return job, cluster


def cluster_of(job: Job) -> Cluster:
    """What its cluster file describes, or else this machine."""
    return Cluster.this_machine() if job.cluster is None else Cluster.load(job.cluster)


def _origin(settings: Sequence[str]) -> str:
    return f"--set {' '.join(settings)}"


def _put(data: dict[str, Any], setting: str) -> None:
    """Set one value in nested data; whether the last key may be there, validation knows."""
    key, equals, text = setting.partition("=")
    if not equals:
        raise UserError(f"--set {setting}: no value; write KEY=VALUE")
    parts = key.split(".")
    if parts[0] not in data:
        known = [known.name.replace("[]", "") for known in keys()]
        raise UserError(f"--set {setting}: no key {key!r}; {nearest(key, known)}")
    where: Any = data
    for number, part in enumerate(parts[:-1], 1):
        inner = _entry(where, part, setting) if isinstance(where, list) else where.get(part)
        if inner is None:  # a section that the file leaves out
            inner = where[part] = {}
        if not isinstance(inner, dict | list):
            value = ".".join(parts[:number])
            raise UserError(f"--set {setting}: {value} is a value and has no keys; set it itself")
        where = inner
    if isinstance(where, list):
        section = ".".join(parts[:-1])
        raise UserError(f"--set {setting}: {section} is a list; name an entry, and a key of it")
    where[parts[-1]] = _value(setting, text)


def _value(setting: str, text: str) -> Any:
    """A value as a file would have it: a number, a text, true, null, a list …"""
    try:
        return load_yaml(text)
    except (yaml.YAMLError, ValueError) as error:
        why = " ".join(str(error).split())
        raise UserError(f"--set {setting}: the value is not valid YAML: {why}") from None


def _entry(entries: list[Any], part: str, setting: str) -> Any:
    """An entry of a list, by its name or its number."""
    names = [entry["name"] for entry in entries if isinstance(entry, dict) and "name" in entry]
    if part in names:
        return next(entry for entry in entries if entry.get("name") == part)
    if part.isdigit() and int(part) < len(entries):
        return entries[int(part)]
    known = names or [str(number) for number in range(len(entries))]
    raise UserError(f"--set {setting}: no entry {part!r}; {nearest(part, known)}")
