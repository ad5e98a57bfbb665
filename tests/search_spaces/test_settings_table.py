"""The page of all settings is up to date."""

import dataclasses
from pathlib import Path

from scripts.settings_table import page
from search_spaces.settings import TrainingSettings

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "settings.md"


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "run: python -m scripts.settings_table > docs/reference/settings.md"
    )


def test_every_setting_says_what_it_is() -> None:
    for setting in dataclasses.fields(TrainingSettings):
        if setting.name == "own":  # what users add themselves
            continue
        assert 10 <= len(setting.metadata["what"]) <= 100, setting.name
        assert f"\n| `{setting.name}` | " in page()
