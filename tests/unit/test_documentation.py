"""README and docs/ are true today, and can be read."""

import re
from pathlib import Path

import pytest
from harness.reference_pages import FOLDER, PAGES, options_page

from pyspark_kgroup.options.rows import OPTIONS

ROOT = Path(__file__).parents[2]
README_BYTES_MAX = 8 * 1024
"""A stranger reads it in two minutes. All else has a page."""


@pytest.mark.parametrize("name", PAGES)
def test_a_generated_page_is_as_the_product_says(name: str) -> None:
    assert (FOLDER / name).read_text() == PAGES[name](), "run `make docs`, and commit what it changes"


def test_each_option_has_a_heading_in_a_chapter() -> None:
    headings = re.findall(r"^##+ .*$", options_page(), re.MULTILINE)
    assert [line for line in headings if line.startswith("### ")] == [f"### `{option.name}`" for option in OPTIONS]
    assert headings[0].startswith("## ")


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_bytes()) <= README_BYTES_MAX


def test_each_page_is_named_by_the_site() -> None:
    """MkDocs checks that the pages it names exist, and links and anchors (`make docs`)."""
    named = (ROOT / "mkdocs.yml").read_text()
    pages = [str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md") if page.name[0] != "0"]
    assert [page for page in pages if page not in named] == []
