"""The fault matrix is whole: each of its 53 rows has a test."""

import importlib.util
from pathlib import Path


def test_every_row_of_the_matrix_has_a_test() -> None:
    spec = importlib.util.spec_from_file_location('rows', Path(__file__).with_name('rows.py'))
    assert spec is not None
    assert spec.loader is not None
    rows = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(rows)
    found = rows.tests_of_rows()
    assert set(found) <= set(rows.ROWS)
    assert [row for row in rows.ROWS if row not in found] == []
