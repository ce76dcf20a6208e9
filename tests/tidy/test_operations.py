"""Goal: docs/operations.md lists every key and every metric as the code has them.
Method: make its tables again and compare; names in the hand-written parts are looked up.
"""

from __future__ import annotations

import re

import pytest

from anchorstore.config import SETTINGS
from scripts import operations

KEY = re.compile(
    r"`((?:node|listen|tls|auth|tiers|lease|limits|deadlines|namespaces|log)\.[\w.]+)`"
)
METRIC = re.compile(r"\banchorstore_[a-z_]+\b")


def test_tables_of_the_operations_page_are_current() -> None:
    page = operations.PAGE.read_text()
    assert page == operations.renewed(page), "run: python scripts/operations.py"


def test_renewed_without_its_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="lacks the marks"):
        operations.renewed("# no marks\n")


def test_keys_named_in_the_operations_page_exist() -> None:
    known = {item.key for item in SETTINGS} | {item.section for item in SETTINGS}
    named = set(KEY.findall(operations.PAGE.read_text()))
    assert len(named) > 10, "the page names its keys in another way now: mend this test"
    assert named <= known, named - known


def test_metrics_named_in_the_operations_page_exist() -> None:
    known = set(operations.metric_names())
    known |= {f"{name}{end}" for name in known for end in ("_bucket", "_count", "_sum")}
    named = set(METRIC.findall(operations.PAGE.read_text()))
    assert named <= known, named - known
