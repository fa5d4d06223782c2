"""Models: the paper's four by name, or the user's own Python file. Building one needs no torch."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from heterps_hpc.config import ModelSpec
from heterps_hpc.errors import UserError
from heterps_hpc.model import Model
from heterps_hpc.models import ctrdnn, matchnet, nce, two_embedding
from heterps_hpc.models.mlp import DatasetManifestLike, SchemaLike
from heterps_hpc.validation import nearest, read_text

BUILT_IN: dict[str, Callable[[dict[str, Any], SchemaLike], Model]] = {
    "ctrdnn": ctrdnn.build,
    "two_embedding": two_embedding.build,
    "matchnet": matchnet.build,
    "nce": nce.build,
}


def build_model(spec: ModelSpec, schema: SchemaLike) -> Model:
    """The model that a job asks for, on a data set of that schema (its manifest)."""
    if not schema.labels:
        raise UserError("the data set has no label; a model needs at least one to learn")
    if spec.file is not None:
        model = _own_model(spec.file, spec.parameters, schema)
    elif spec.name in BUILT_IN:
        model = BUILT_IN[spec.name](spec.parameters, schema)
    else:
        raise UserError(
            f"no built-in model {spec.name!r}; {nearest(str(spec.name), list(BUILT_IN))} "
            "(for a model of your own give `file`)"
        )
    _check_slots(model, schema)
    if model.label_range is not None and isinstance(schema, DatasetManifestLike):
        schema.check_labels(*model.label_range, f"data for model {model.name!r}")
    asked = json.dumps(spec.parameters, sort_keys=True, default=str)
    return dataclasses.replace(model, parameters=f"{asked} dense={len(schema.dense_columns)}")


def _check_slots(model: Model, schema: SchemaLike) -> None:
    known = [slot.name for slot in schema.slots]
    for name in model.data_slots():
        if name not in known:
            raise UserError(
                f"model {model.name!r} reads slot {name!r}, which the data set does not have; "
                f"{nearest(name, known)}"
            )
    for negative in model.negatives:
        if negative.name in known:
            raise UserError(
                f"model {model.name!r} derives a slot {negative.name!r}, but the data set has "
                "one of that name; give the derived slot another name"
            )
    if any("dense" in layer.reads for layer in model.layers) and not schema.dense_columns:
        raise UserError(
            f"model {model.name!r} reads the dense columns, and the data set has none; "
            "drop 'dense' from its layers"
        )


def _own_model(path: Path, parameters: dict[str, Any], schema: SchemaLike) -> Model:
    read_text(path)  # a missing or unreadable file is refused in one line
    module_spec = importlib.util.spec_from_file_location(f"heterps_own_{path.stem}", path)
    if module_spec is None or module_spec.loader is None:
        raise UserError(f"{path}: not a Python file; a model file ends in .py")
    module = importlib.util.module_from_spec(module_spec)
    try:
        module_spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # a script that was never meant to be imported
        raise UserError(f"{path}: cannot be loaded: {_said(error)}") from error
    build = getattr(module, "build", None)
    if not callable(build):
        raise UserError(f"{path}: defines no `build(parameters, schema)`, which returns the model")
    try:
        model = build(parameters, schema)
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(f"{path}: build() failed: {_said(error)}") from error
    if not isinstance(model, Model):
        raise UserError(
            f"{path}: build() returned a {type(model).__name__}; it must return a "
            "heterps_hpc.model.Model"
        )
    return model


def _said(error: BaseException) -> str:
    """The error with the line of the user's file that raised it."""
    trace = error.__traceback__
    line = None
    while trace is not None:
        line = trace.tb_lineno
        trace = trace.tb_next
    where = "" if line is None else f" (line {line})"
    return f"{type(error).__name__}: {error}{where}"
