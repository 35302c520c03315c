"""The generated pages of docs/ say what the code says."""

import importlib.util
from pathlib import Path

import pytest

pytest.importorskip('rclpy')
pytestmark = pytest.mark.ros
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize('page', ['parameters.md', 'interfaces.md'])
def test_the_page_is_what_make_docs_would_write(page):
    spec = importlib.util.spec_from_file_location('reference', ROOT / 'tools/reference.py')
    assert spec is not None
    assert spec.loader is not None
    reference = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reference)
    assert (ROOT / 'docs' / page).read_text() == reference.PAGES[page](), 'run `make docs`'
