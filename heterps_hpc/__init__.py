"""Train click-through networks on CPU and GPU partitions at once, at the least money.

    import heterps_hpc as hp
    predictor = hp.load("runs/ctr-small")
    predictor.predict(frame)

Names of the Python interface are loaded on first use, so that `import heterps_hpc` stays light.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from heterps_hpc.serving.predictor import Predictor as Predictor

__version__ = "0.1.0"

_API = {"Predictor": "heterps_hpc.serving.predictor"}
__all__ = ["Predictor", "load"]


def load(run: Any, step: int | None = None) -> "Predictor":
    """A run's newest checkpoint (or that of a step), ready to score rows in this process."""
    from heterps_hpc.serving.predictor import Predictor

    return Predictor.load(run, step)


def __getattr__(name: str) -> Any:
    if name in _API:
        return getattr(import_module(_API[name]), name)
    raise AttributeError(f"module 'heterps_hpc' has no attribute {name!r}")
