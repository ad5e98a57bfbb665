"""`hpo recipes`: the list, one recipe in full, JSON, and no heavy imports."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from hpo.cli.main import main
from search_spaces.recipes import names, recipe


def call(*arguments, code=0):
    result = CliRunner().invoke(main, ["recipes", *arguments])
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.stderr


def test_the_list_has_every_recipe():
    text = call()
    assert all(name in text for name in names())
    assert "34,816 -> 69,632" in text and "128 to 65,536" in text and "arXiv:1811.05233" in text


@pytest.mark.parametrize("name", names())
def test_one_recipe_is_told_in_full(name):
    text, each = " ".join(call(name).split()), recipe(name)
    assert f"{name}: {each.title}" in text
    for line in (*each.differs, *each.notes, *each.unknown.values()):
        assert " ".join(line.split()[:6]) in text
    for setting in (*each.settings, *each.unknown):
        assert setting.replace("_", " ") in text


def test_json():
    assert [each["name"] for each in json.loads(call("--json"))] == list(names())
    one = json.loads(call("goyal2017", "--json"))
    assert one == json.loads(json.dumps(recipe("goyal2017").to_dict()))
    assert one["scaling"]["learning_rate"] == {"value": 0.1, "at": 256, "power": 1, "above": 0}


def test_an_unknown_name_is_bad_usage():
    assert "did you mean 'mikami2018'?" in call("mikami", code=2)


def test_it_loads_nothing_heavy():
    script = (
        "import sys, hpo.cli.main; from click.testing import CliRunner; "
        "assert CliRunner().invoke(hpo.cli.main.main, ['recipes']).exit_code == 0; "
        "print([name for name in ('torch', 'ray', 'optuna', 'sqlalchemy', 'numpy', 'pydantic') "
        "if name in sys.modules])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True
        ).stdout
        == "[]\n"
    )
