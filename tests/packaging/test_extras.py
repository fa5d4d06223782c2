"""What an extra brings is asked for by name when it is absent."""

import sys

import pytest

from heterps_hpc.errors import UserError
from heterps_hpc.plan.schedulers import scheduler


@pytest.mark.parametrize(("name", "package"), [("genetic", "pymoo"), ("bayesian", "optuna")])
def test_a_baseline_without_its_package_names_the_extra(
    name: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert callable(scheduler(name))
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=rf"needs {package}.*baselines") as caught:
        scheduler(name)
    assert len(str(caught.value).splitlines()) == 1
