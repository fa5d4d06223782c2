"""Train click-through networks on CPU and GPU partitions at once, at the lowest cost.

    import heterps_hpc as hp
    run = hp.run("job.yaml")
    run.load().predict(frame)

Names of the Python interface (docs/python.md) are loaded on first use, so that
`import heterps_hpc` stays light.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from heterps_hpc.commands.notebook import ReportPage as ReportPage
    from heterps_hpc.commands.notebook import Run as Run
    from heterps_hpc.commands.notebook import measure as measure
    from heterps_hpc.commands.notebook import plan as plan
    from heterps_hpc.commands.notebook import report as report
    from heterps_hpc.commands.notebook import run as run
    from heterps_hpc.errors import StartFailed as StartFailed
    from heterps_hpc.errors import UserError as UserError
    from heterps_hpc.serving.predictor import Predictor as Predictor
    from heterps_hpc.serving.predictor import load as load

__version__ = "0.1.0"

_HOMES = {
    "heterps_hpc.commands.notebook": ("ReportPage", "Run", "measure", "plan", "report", "run"),
    "heterps_hpc.errors": ("StartFailed", "UserError"),
    "heterps_hpc.serving.predictor": ("Predictor", "load"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}
__all__ = ["Predictor", "ReportPage", "Run", "StartFailed", "UserError"]
__all__ += ["load", "measure", "plan", "report", "run"]


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        return getattr(import_module(_HOME_OF[name]), name)
    raise AttributeError(f"module 'heterps_hpc' has no attribute {name!r}")


class _Package(ModuleType):
    """Keeps `hp.plan` and `hp.report` the functions, although two subpackages have those names.

    The import system sets a subpackage as an attribute of its package when it is first imported,
    which would replace the function. Imports of the form `from heterps_hpc.plan.x import y` look
    into `sys.modules` and are not affected.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOME_OF and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
