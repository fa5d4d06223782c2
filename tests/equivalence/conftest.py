"""Click logs and oracle for all tests of this folder."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.equivalence.cases import Case
from tests.equivalence.click_log import write_click_logs
from tests.equivalence.oracle import Learned
from tests.equivalence.rounding import ask_oracle


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The click logs of all cases."""
    path = tmp_path_factory.mktemp("click_logs")
    write_click_logs(path)
    return path


@pytest.fixture(scope="session")
def oracle(data: Path) -> Callable[[Case], Learned]:
    """What a case should learn; worked out once for all its layouts."""

    learn = cache(lambda case: ask_oracle(case, data))
    return lambda case: learn(case.oracle)
