"""What pyproject.toml cannot express: the package includes the examples of the checkout, for `hpo example`."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

EXAMPLES = Path(__file__).parent / "examples"


class BuildWithExamples(build_py):
    """Build the packages, with the examples as data of the command line."""

    def run(self) -> None:
        """Copy them, except into an editable installation, which finds them in the checkout."""
        super().run()
        if not self.editable_mode:
            inside = Path(self.build_lib) / "hpo" / "cli" / "examples"
            shutil.rmtree(inside, ignore_errors=True)
            shutil.copytree(EXAMPLES, inside, ignore=shutil.ignore_patterns("__pycache__", ".*"))


setup(cmdclass={"build_py": BuildWithExamples})
