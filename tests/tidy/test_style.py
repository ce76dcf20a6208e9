"""Goal: one style and full types.
Method: run ruff and mypy, as configured in pyproject.toml, over the checkout.
"""

from __future__ import annotations

import pytest

from tests.tidy.checkout import run_python


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(("ruff", "check", "."), id="ruff-check"),
        pytest.param(("ruff", "format", "--check", "."), id="ruff-format"),
        pytest.param(("mypy",), id="mypy"),
    ],
)
def test_style_of_the_checkout_is_clean(command: tuple[str, ...]) -> None:
    result = run_python("-m", *command)
    assert result.returncode == 0, result.stdout
