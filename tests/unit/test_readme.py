"""README says what is true today: its option table comes from the rows that the parser uses."""

from pathlib import Path

from pyspark_kgroup.options.parser import options_table

README = (Path(__file__).parents[2] / "README.md").read_text()


def test_the_option_table_is_the_parsers() -> None:
    assert options_table().strip() in README
