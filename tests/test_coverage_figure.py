"""The coverage figure: read from coverage.py's report, kept in the page, and outdated once the code has changed."""

import json

import pytest

from scripts.coverage_figure import BEGIN, END, PACKAGES, Figure, measured, standing, told, written

PAGE = f"before\n{BEGIN}\n{END}\nafter\n"


@pytest.fixture
def root(tmp_path):
    for package in PACKAGES:
        (tmp_path / package).mkdir()
        (tmp_path / package / "a.py").write_text("x = 1\n" * 40)
    return tmp_path


def report(*files):
    return json.dumps(
        {
            "files": {
                name: {"summary": {"num_statements": lines, "covered_lines": covered}}
                for name, lines, covered in files
            }
        }
    )


def test_files_of_a_package_are_added_up_and_the_page_keeps_the_figures(root):
    others = [(f"{package}/a.py", 40, 30) for package in PACKAGES[1:]]
    text = report(("search_spaces/a.py", 30, 30), ("search_spaces/b/c.py", 10, 4), *others)
    figures = measured(text, root)
    assert figures[0] == Figure("search_spaces", 85.0, 40)
    assert [each.percent for each in figures[1:]] == [75.0] * 3
    page = written(PAGE, figures)
    assert told(page) == figures
    assert page.startswith("before\n") and page.endswith("\nafter\n")
    assert written(page, figures) == page


def test_a_figure_is_old_where_many_statements_came(root):
    figures = [Figure(package, 80.0, 40) for package in PACKAGES]
    assert standing(figures, root)[3] == "coverage of hpo: 80.0 % of lines"
    (root / "hpo" / "b.py").write_text("y = 2\n" * 3)
    assert "old: 40 statements then, 43 now (make coverage)" in standing(figures, root)[3]
    assert not any("old" in line for line in standing(figures, root)[:3])


def test_what_was_not_measured_is_said(root):
    assert told(PAGE) == [] and "not measured yet" in standing([], root)[0]
    with pytest.raises(ValueError, match="no lines of trainers, storage, hpo"):
        measured(report(("search_spaces/a.py", 1, 1)), root)
    with pytest.raises(ValueError, match="must hold the lines"):
        written("nothing", [])
