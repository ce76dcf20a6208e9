"""What every lane shares: where the code under test comes from, and what a machine can run.

Tests run against the installed wheel.  `make` puts the checkout last on the path, so that
benchmarks/ is importable while anchorstore and engine_adapter come from the wheel; without `make`
the header says which ones are used.
"""

from __future__ import annotations

import os
import pathlib

import hypothesis
import pytest

import anchorstore
from anchorstore.transport.cuda_driver import device_count

ROOT = pathlib.Path(__file__).resolve().parent.parent

hypothesis.settings.register_profile(
    "dev",
    max_examples=30,
    deadline=None,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
_DEV = hypothesis.settings.get_profile("dev")
hypothesis.settings.register_profile("ci", _DEV, max_examples=100, derandomize=True, database=None)
hypothesis.settings.register_profile("soak", _DEV, max_examples=5_000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


def _source() -> pathlib.Path:
    return pathlib.Path(anchorstore.__file__).resolve().parent.parent


def pytest_configure(config: pytest.Config) -> None:
    """Refuses the checkout where the installed wheel is asked for."""
    if os.environ.get("ANCHORSTORE_REQUIRE_INSTALLED") and _source() == ROOT:
        pytest.exit(f"anchorstore comes from the checkout {ROOT}, not from the wheel", 4)


def pytest_report_header(config: pytest.Config) -> str:
    return f"anchorstore {anchorstore.__version__} from {_source()}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips tests marked gpu where there is no CUDA device, and says so."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not device_count():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="no CUDA device on this machine"))
