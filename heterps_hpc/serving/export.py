"""Writes a trained model as files that run elsewhere.

    manifest.json            layers, input columns, transforms, pooling, hashes, metrics
    dense.onnx | dense.pt2   the dense layers up to the score (ONNX, or torch.export)
    tables/NAME.keys.npy     sorted keys, and
    tables/NAME.vectors.npy  their vectors: map both, look a key up by binary search

`examples/serve_export.py` scores raw rows from such a directory with numpy and onnxruntime only.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import warnings
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import numpy as np
import torch
from torch import Tensor

from heterps_hpc import __version__
from heterps_hpc.atomic_file import write_atomically
from heterps_hpc.errors import UserError
from heterps_hpc.serving.predictor import Predictor
from heterps_hpc.serving.score_module import ScoreModule, score_layers

Format = Literal["onnx", "torch"]
FORMAT = "heterps-export"
VERSION = 1
_EXAMPLE_ROWS = 4  # of the traced call; the number of rows stays free
_FILES = {"onnx": "dense.onnx", "torch": "dense.pt2"}


def export_model(
    predictor: Predictor, out: Path, dense_format: Format, metrics: dict[str, float]
) -> dict[str, Any]:
    """Write everything; returns what manifest.json says."""
    if dense_format not in _FILES:
        raise UserError(f"--format is {dense_format!r}; valid: {', '.join(_FILES)}")
    if os.path.lexists(out):
        raise UserError(f"{out}: exists already; choose another directory")
    part = out.with_name(f".{out.name}.part")  # whole under its name, or not there at all
    shutil.rmtree(part, ignore_errors=True)
    try:
        (part / "tables").mkdir(parents=True)
        write_dense(predictor, part / _FILES[dense_format], dense_format)
        manifest = describe(predictor, _FILES[dense_format], metrics)
        for name, table in predictor.tables.items():
            np.save(part / manifest["tables"][name]["keys"], table.keys)
            np.save(part / manifest["tables"][name]["vectors"], table.vectors)
        write_atomically(part / "manifest.json", json.dumps(manifest, indent=2) + "\n")
        part.rename(out)
    except OSError as error:
        raise UserError(
            f"{out}: cannot be written: {error.strerror}; choose another directory"
        ) from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return manifest


def describe(predictor: Predictor, dense_file: str, metrics: dict[str, float]) -> dict[str, Any]:
    """Everything that a server needs to know, as plain data."""
    model = predictor.model
    lookups = [
        {
            "slot": lookup.slot,
            "table": lookup.table,
            "writes": lookup.writes,
            "pooling": lookup.pooling,
            "max_keys": lookup.max_keys,
            "derived": model.negative(lookup.slot) is not None,  # any values do: fill with zeros
            "width": lookup.width(model.table(lookup.table).dim),
        }
        for layer in score_layers(model)
        for lookup in layer.lookups
    ]
    slots = [str(lookup["slot"]) for lookup in lookups if not lookup["derived"]]
    return {
        "format": FORMAT,
        "version": VERSION,
        "made_by": f"heterps_hpc {__version__}",
        "model": model.name,
        "step": predictor.step,
        "score_is_logit": model.score_is_logit,
        "metrics": metrics,
        "layers": [layer.name for layer in score_layers(model)],
        "dense_layers": {
            "file": dense_file,
            "inputs": list(predictor.module.reads),
            "dtype": str(predictor.module_dtype),
            "output": "score",
        },
        "lookups": lookups,
        "tables": {
            name: {
                "keys": f"tables/{quote(name, safe='')}.keys.npy",
                "vectors": f"tables/{quote(name, safe='')}.vectors.npy",
                "rows": len(table.keys),
                "dim": int(table.vectors.shape[1]),
            }
            for name, table in predictor.tables.items()
        },
        "hashes": _hashes(dict.fromkeys(slots)),
        "data": {
            "schema": predictor.inputs.schema.model_dump(mode="json"),
            "recipe": predictor.inputs.recipe,
            "max_keys": predictor.inputs.max_keys,
            "has_rare": predictor.inputs.has_rare,
        },
    }


def _hashes(slots: dict[str, None]) -> dict[str, Any]:
    """From a raw value to its key, as data_prep does it, in words and numbers."""
    from data_prep.hashing import missing_key, rare_key, slot_base

    return {
        "text": "XXH3-64 of the UTF-8 text, seeded with the slot's base",
        "integer": "splitmix64 finaliser of (base + integer) mod 2**64",
        "slots": {
            slot: {
                "base": slot_base(slot),
                "missing": missing_key(slot),
                "rare": rare_key(slot),
            }
            for slot in slots
        },
    }


def write_dense(predictor: Predictor, path: Path, dense_format: Format) -> None:
    """The dense layers up to the score."""
    module = predictor.module
    inputs = _example(predictor)
    rows = torch.export.Dim("rows", min=1)
    shapes = (tuple({0: rows} for _ in inputs),)
    try:
        with torch.no_grad():
            program = torch.export.export(module, inputs, dynamic_shapes=shapes, strict=False)
    except Exception as error:  # whatever a user's module does that torch.export cannot trace
        reason = " ".join(str(error).split())[:300]
        raise UserError(
            f"model {predictor.model.name!r} cannot be traced by torch.export: {reason} "
            "(a common cause: len(tensor) instead of tensor.shape[0])"
        ) from error
    if dense_format == "torch":
        torch.export.save(program, path)
        return
    _write_onnx(program, module, path)


def _write_onnx(program: Any, module: ScoreModule, path: Path) -> None:
    try:
        import onnxscript  # noqa: F401  (torch.onnx needs it and says so in many lines)
    except ImportError:
        raise UserError(
            "--format onnx needs the packages onnx and onnxscript: pip install 'heterps-hpc[onnx]'"
        ) from None
    for chatty in ("torch.onnx", "onnxscript", "onnx_ir"):
        logging.getLogger(chatty).setLevel(logging.ERROR)
    names = [name.replace(":", "_") for name in module.reads]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of torch about itself
            torch.onnx.export(
                program,
                (),
                str(path),
                input_names=names,
                output_names=["score"],
                dynamo=True,
                external_data=False,
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(
            f"the dense layers cannot be written as ONNX: {reason}; use --format torch"
        ) from None


def _example(predictor: Predictor) -> tuple[Tensor, ...]:
    widths: dict[str, int] = {}
    for layer in score_layers(predictor.model):
        for lookup in layer.lookups:
            width = lookup.width(predictor.model.table(lookup.table).dim)
            widths[lookup.writes] = widths.get(lookup.writes, 0) + width
    widths["dense"] = len(predictor.inputs.schema.dense_columns)
    dtype = torch.float64 if predictor.module_dtype == np.float64 else torch.float32
    return tuple(
        torch.zeros((_EXAMPLE_ROWS, widths[name]) if name in widths else _EXAMPLE_ROWS, dtype=dtype)
        for name in predictor.module.reads
    )
