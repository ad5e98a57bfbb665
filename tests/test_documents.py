"""The documents are correct: paths and names exist, pages are current, commands and examples run.

A block of a document is run as it stands, in a folder that has what the document assumes; ``ELSEWHERE`` names, for each
command that is not, the test that runs it, and ``ON_A_CLUSTER`` those that need one.
"""

from __future__ import annotations

import ast
import re
import shlex
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner

import hpo
from hpo.cli.main import main
from scripts import api_reference

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    EXAMPLES / "workflows" / "README.md",
]
BUILDERS = [
    ROOT / "CONTRIBUTING.md",
    ROOT / "docs" / "development" / "architecture.md",
    ROOT / "docs" / "reference" / "glossary.md",
]
GENERATED = {"api.md": "scripts.api_reference", "settings.md": "scripts.settings_table"}
"""Pages that are written from the code, by the modules that write them."""

ELSEWHERE = {
    "hpo launch plan --backend horovod": "tests/interfaces/test_python_api.py",
    "hpo serve": "tests/service/test_serve.py",
    "hpo serve --config server.yaml": "tests/service/test_serve.py",
    "hpo token create --owner ada --scope submit": "tests/service/test_auth.py",
    "hpo token create --owner ada --scope submit --expires 30d": "tests/service/test_auth.py",
    "hpo submit study.yaml --wait": "tests/interfaces/test_remote_commands.py",
    "hpo worker --folder /scratch/hpo": "tests/service/test_worker_queue.py",
    "hpo worker --drain": "tests/service/test_worker_queue.py",
    "hpo import mlperf training_results_v2.1/NVIDIA": "tests/planning/test_mlperf_import.py",
    "hpo run study.yaml --array 32 --on slurm --gpus 4 --hours 2 --account physics": (
        "tests/planning/test_sweep_scripts.py"
    ),
    "hpo run study.yaml --on slurm --nodes 8 --gpus 4 --hours 2 --storage postgresql://hpo@db.example/hpo": (
        "tests/planning/test_sweep_scripts.py"
    ),
    "hpo submit study.yaml --agents": "tests/service/test_api_ask_tell.py",
    "hpo agent digits": "tests/service/test_agents.py",
    "hpo agent digits --stop-after 3300": "tests/service/test_agents.py",
    **dict.fromkeys(
        (
            "hpo import csv runs.csv --study digits --map lr=learning_rate --map bs=global_batch_size",
            "hpo import wandb runs.csv --chart top1.csv --study digits --map lr=learning_rate "
            "--map batch_size=global_batch_size --map val_acc=metric --axis epochs",
            "hpo import mlflow mlruns --study digits --map optim/lr=learning_rate --map batch=global_batch_size "
            "--map val_top1=metric --axis epochs --train-samples 50000",
            "hpo import tensorboard lightning_logs --study digits --map lr=learning_rate "
            "--map batch_size=global_batch_size --map val/top1=metric --train-samples 50000",
            "hpo import optuna sqlite:///optuna.db --study digits --map bs=global_batch_size "
            "--map intermediate_value=metric --axis epoch-index --train-samples 50000",
        ),
        "tests/past_runs/test_importing.py",
    ),
    "hpo export mlflow digits --to sqlite:///mlflow.db": "tests/past_runs/test_trackers.py",
    "hpo export mlflow digits --to sqlite:///mlflow.db --follow": "tests/past_runs/test_trackers.py",
    "hpo mcp": "tests/interfaces/test_assistant_tools.py",
    "hpo mcp --write": "tests/interfaces/test_assistant_tools.py",
    "hpo mcp --storage sqlite:///hpo.db": "tests/interfaces/test_assistant_tools.py",
    "hpo record plan outcome.jsonl": "tests/interfaces/test_command_line.py",
}
ON_A_CLUSTER = {
    "hpo plan climate --machine summit --nodes 4560 --cost resnet50 --slot 2 --output plan",
    "hpo launch plan",
    "hpo worker --storage postgresql://hpo@db.example/hpo --folder /scratch/hpo",
    "hpo worker --ray-address cluster-head:6379",
}
RUN_ELSEWHERE = {
    "coming_from.md": "tests/interfaces/test_coming_from.py",
    "hydra.md": "tests/interfaces/test_hydra_sweeper.py",
}
"""Pages whose blocks are files of two programs, and the tests that run them."""
LANGUAGES = {"", "bash", "python", "yaml"}
"""Of blocks whose commands are run, whose Python is run, and whose YAML is read as a study."""
NOT_RUN = {
    "text": "needs a cluster, a browser, a shell's start-up file, root, or another program's own files",
    "nginx": "a proxy's configuration",
    "caddy": "a proxy's configuration",
}
"""Languages of blocks that are only read, and why."""
OTHER_PROGRAMS = {"pip", "export", "cat", "curl", "python", "make", "pytest"}
"""First words of lines that call other programs; other tests look at `make` targets and the paths of `pytest`."""


@dataclass(frozen=True)
class Block:
    """A fenced block of a page: its language, its text, and its first line."""

    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks_of(page: Path) -> Iterator[Block]:
    lines, start = page.read_text("utf-8").splitlines(), None
    for number, line in enumerate(lines, 1):
        if not line.startswith("```"):
            continue
        if start is None:
            start, language = number, line[3:].strip()
        else:
            yield Block(page, start, language, "\n".join(lines[start : number - 1]))
            start = None
    assert start is None, f"{page}:{start}: a block without an end"


BLOCKS = [
    block
    for page in PAGES
    for block in blocks_of(page)
    if page.name not in {"api.md", *RUN_ELSEWHERE}
]
SHELL = [
    block
    for block in BLOCKS
    if block.language in ("", "bash") and re.search(r"^(\$ )?\w+ ", block.text)
]
PYTHON = [block for block in BLOCKS if block.language == "python"]


def lines_of(block: Block) -> Iterator[str]:
    """The commands of a block, without prompts and comments."""
    prompted = [line[2:] for line in block.text.splitlines() if line.startswith("$ ")]
    for line in prompted or block.text.splitlines():
        if words := shlex.split(line, comments=True):
            yield shlex.join(words) if words[0] != "hpo" else " ".join(words)


COMMANDS = sorted({line for block in SHELL for line in lines_of(block) if line.startswith("hpo ")})
TUTORIAL = ROOT / "docs" / "tutorial.md"
TOLD = [line for block in SHELL if block.page == TUTORIAL for line in lines_of(block)]
"""The commands of the tutorial, in its order: they have a study of their own, and run as one story."""
LARGER = ROOT / "docs" / "tutorial_larger_model.md"
TOLD_OF_LARGER = [line for block in SHELL if block.page == LARGER for line in lines_of(block)]
"""Those of the tutorial of a larger model, likewise."""


def test_the_pages_have_commands_and_examples() -> None:
    """A page whose blocks are no longer found would pass every test below."""
    assert len(COMMANDS) > 25 and len(PYTHON) > 5
    assert {
        "README.md",
        "service.md",
        "workers.md",
        "throughput.md",
        "recipes.md",
        "CONTRIBUTING.md",
    } <= {block.page.name for block in SHELL}


def test_every_block_says_how_it_is_tested() -> None:
    """A block in a language of its own would be run by nobody, and nobody would know."""
    unknown = {str(block) for block in BLOCKS if block.language not in LANGUAGES | set(NOT_RUN)}
    assert unknown == set()


def test_a_block_that_is_not_run_calls_only_commands_that_exist() -> None:
    """Its first words are those of the command line, also where the line cannot be run here."""
    called = {
        tuple(found.split()[1:])
        for block in BLOCKS
        if block.language == "text"
        for found in re.findall(r"^(?:.* )?(hpo [a-z-]+)", block.text, re.M)
    }
    assert called
    assert {words[0] for words in called} <= set(main.commands)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_a_page_leads_to_a_file(page: Path) -> None:
    """Also to files that the site does not show, or to a page that is written when the site is built."""
    built = {"reference/cli.md", "reference/rest.md", "reference/machines.md"}
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        path = link.partition("#")[0]
        if path and not re.match(r"[a-z]+:", link):
            there = (page.parent / path).resolve()
            assert there.exists() or str(there.relative_to(ROOT / "docs")) in built, link


# paths, names and words


@pytest.mark.parametrize("page", BUILDERS, ids=lambda page: page.name)
def test_every_path_of_the_builders_pages_exists(page: Path) -> None:
    text = page.read_text("utf-8")
    named = re.findall(r"`([\w.]+(?:/[\w.]+)*/(?:[\w.]+)?)`", text)
    linked = [
        link.partition("#")[0]
        for link in re.findall(r"\]\(([^)]+)\)", text)
        if not link.startswith("http")
    ]
    assert len(named) > 30 or page.name == "glossary.md"
    assert [path for path in named if not (ROOT / path).exists()] == []
    assert [path for path in linked if not (page.parent / path).exists()] == []


@pytest.mark.parametrize("page", BUILDERS, ids=lambda page: page.name)
def test_every_name_of_the_builders_pages_is_in_its_file(page: Path) -> None:
    """`NAME` (`path`) says that the file defines, or at its top level assigns, the name."""
    pairs = re.findall(r"`(\w+)`\s+\(`([\w./]+\.py)`\)", page.read_text("utf-8"))
    assert pairs or page.name == "glossary.md"
    for name, path in pairs:
        text = (ROOT / path).read_text("utf-8")
        assert re.search(
            rf"^(?:(?:async )?def|class) {name}\b|^{name}(?:: [^=]+)? = ", text, re.M
        ), f"{name} in {path}"


def test_every_package_of_the_house_is_in_its_plan() -> None:
    text = (ROOT / "docs" / "development" / "architecture.md").read_text("utf-8")
    folders = [
        folder.relative_to(ROOT)
        for package in ("hpo", "trainers", "storage")
        for folder in sorted((ROOT / package).iterdir())
        if (folder / "__init__.py").exists()
    ]
    assert len(folders) > 15
    assert [str(folder) for folder in folders if f"`{folder}/`" not in text] == []


def test_the_glossary_is_in_order_and_says_each_word_once() -> None:
    words = re.findall(
        r"^\| (.+?) \|", (ROOT / "docs" / "reference" / "glossary.md").read_text("utf-8"), re.M
    )[1:]
    words.remove("---") if "---" in words else None
    assert len(words) > 40
    assert words == sorted(set(words), key=str.lower)


def test_every_make_target_exists() -> None:
    rules = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.M))
    named = {
        word
        for page in PAGES
        for word in re.findall(r"(?:^|`)make ([a-z]+)\b", page.read_text("utf-8"), re.M)
    }
    assert {"run", "test", "quick", "check", "format", "coverage", "docs"} <= named <= rules


def test_every_test_that_a_recipe_names_exists() -> None:
    recipes = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    commands = re.findall(r"(?:^|`|&& )pytest ([^`\n]+)", recipes, re.MULTILINE)
    words = [word for line in commands for word in shlex.split(line) if "/" in word]
    assert len(words) > 30
    assert [word for word in words if not (ROOT / word).exists()] == []


def test_the_page_of_the_python_interface_is_current() -> None:
    page = (ROOT / "docs" / "reference" / "api.md").read_text("utf-8")
    assert page == api_reference.page(), "run: make docs"


def test_every_public_name_is_on_the_page_of_the_python_interface_with_its_docstring() -> None:
    page = api_reference.page()
    for name in hpo.__all__:
        _, found, entry = page.partition(f"\n### {name}\n")
        assert found, name
        body = entry.split("\n### ")[0]
        assert re.search(r"^[A-Z]\w* .{15,}", re.sub(r"```.*?```", "", body, flags=re.S), re.M), (
            name
        )


# commands


def test_every_command_of_the_pages_is_one() -> None:
    """Its words name a command, and its options are those of the command."""
    for line in COMMANDS:
        command: click.Command = main
        words = shlex.split(line)[1:]
        while isinstance(command, click.Group):
            known = command.get_command(click.Context(command), words.pop(0))
            assert known is not None, line
            command = known
        options = {
            option for each in command.params for option in (*each.opts, *each.secondary_opts)
        }
        assert {word for word in words if word.startswith("-")} <= options, line


def test_what_is_run_elsewhere_is_named_on_a_page_and_by_a_test() -> None:
    assert {*ELSEWHERE, *ON_A_CLUSTER} <= set(COMMANDS)
    for line, file in ELSEWHERE.items():
        assert shlex.split(line)[1] in (ROOT / file).read_text("utf-8"), (line, file)


def test_a_page_that_is_run_elsewhere_is_named_there() -> None:
    for page, file in RUN_ELSEWHERE.items():
        assert page in {each.name for each in PAGES}
        assert f'"{page}"' in (ROOT / file).read_text("utf-8")


def test_other_programs_are_few() -> None:
    firsts = {line.split()[0] for block in SHELL for line in lines_of(block)}
    assert firsts - {"hpo"} <= OTHER_PROGRAMS


TABLE = """\
global_batch_size,epochs_to_target,learning_rate,runs,sd
256,10.2,0.1,5,0.3
1024,11.1,0.35,5,0.3
4096,14.3,0.9,5,0.4
"""


@dataclass(frozen=True)
class Place:
    """A folder with the study of the README, swept on the simulated workload, and the tables that the pages name."""

    folder: Path

    def run(self, line: str) -> str:
        """What a command prints; one that looks at a study of `hpo init` finds it, and `hpo init` finds none."""
        checked = re.match(r"hpo study check (\w+\.yaml)", line)
        if line.startswith("hpo init"):
            Path(line.rsplit(maxsplit=1)[-1]).unlink(missing_ok=True)
        elif checked and not Path(checked[1]).exists():
            self.run(f"hpo init --defaults --output {checked[1]}")
        result = CliRunner().invoke(main, shlex.split(line)[1:])
        assert result.exit_code == 0, f"{line}\n{result.output}"
        return result.output


def write_tables(blocks: Iterable[Block], folder: Path) -> None:
    """The tables that blocks show by `cat`, as files."""
    for block in blocks:
        for name, rest in re.findall(r"\$ cat (\S+)\n(.*)", block.text, re.S):
            rows = [line for line in rest.splitlines() if re.match(r"[\w.]+,", line)]
            (folder / name).write_text("\n".join(rows) + "\n")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("documents")
    spec = yaml.safe_load((EXAMPLES / "noisy_quadratic.yaml").read_text("utf-8"))
    spec.update(
        name="digits",
        data={**spec["data"], "modes": 50},
        ladder=[16, 64],
        full_scale={"global_batch_size": 512, "machine": "local", "workers": 2},
        budget={"trials": 8, "epochs_per_trial": 80, "race": 300_000},
    )
    (folder / "study.yaml").write_text(yaml.safe_dump(spec))
    (folder / "table.csv").write_text(TABLE)
    shutil.copytree(EXAMPLES, folder / "examples")
    write_tables(SHELL, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("HPO_STORAGE", "sqlite:///hpo.db")
        patch.setattr("plotly.basedatatypes.BaseFigure.show", lambda _: None)
        made = Place(folder)
        made.run("hpo run study.yaml")
        yield made


DEAR = {"hpo doctor", "hpo study check mine.yaml"}
"""Commands of seconds that other tests run too, those of tests/interfaces."""


@pytest.mark.fit
@pytest.mark.parametrize(
    "line",
    [
        pytest.param(line, marks=pytest.mark.slow) if line in DEAR else line
        for line in COMMANDS
        if line not in {*ELSEWHERE, *ON_A_CLUSTER, *TOLD, *TOLD_OF_LARGER}
    ],
)
def test_a_command_of_the_pages_runs(place: Place, line: str) -> None:
    if line == "hpo run examples/own_workload/cells.yaml":
        pytest.skip("tests/interfaces/test_own_workload.py sweeps it")
    assert place.run(line)


# stories


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to begin in, with no storage but what the commands themselves make there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HPO_STORAGE", raising=False)
    return tmp_path


def test_the_names_of_the_tutorial_are_those_that_it_makes(empty: Path) -> None:
    """The study that it shows is the one that its first command writes; later lines name its file or the study."""
    blocks = [block for block in BLOCKS if block.page == TUTORIAL]
    first, *later = TOLD
    assert CliRunner().invoke(main, shlex.split(first)[1:]).exit_code == 0
    (made,) = empty.iterdir()
    written = hpo.load_study(made)
    (shown,) = (yaml.safe_load(block.text) for block in blocks if block.language == "yaml")
    on_file = yaml.safe_load(made.read_text("utf-8"))
    without = {key: value for key, value in shown.items() if key != "resources"}
    assert without == {key: value for key, value in on_file.items() if key != "resources"}
    assert len(later) >= 4
    for line in later:
        assert {made.name, written.name} & set(shlex.split(line)), line


LESS = {"epochs_per_trial: 40": "epochs_per_trial: 12", "0.96": "0.9"}
"""What the story asks less of than the page, whose search takes half a minute: a target, and epochs for it."""


@pytest.mark.slow
def test_the_tutorial_is_a_story_from_an_empty_folder(empty: Path) -> None:
    """Its commands as they stand, in the order of the page, each on what those before it have left."""
    assert len(TOLD) >= 5
    for line in TOLD:
        result = CliRunner().invoke(main, shlex.split(line)[1:])
        assert result.exit_code == 0, f"{line}\n{result.output}"
        if line == TOLD[0]:
            study = (made := next(empty.iterdir())).read_text("utf-8")
            for asked, less in LESS.items():
                assert asked in study
                study = study.replace(asked, less)
            made.write_text(study)
    assert (empty / "report.html").stat().st_size > 10_000


LESS_OF_LARGER = {
    "sequence_length: 64": "sequence_length: 16",
    "train_samples: 4096": "train_samples: 256",
    "evaluation_samples: 64": "evaluation_samples: 16",
    "best_within: {samples: 16384}": "best_within: {samples: 512}",
    "[16, 32, 64, 128], width: [16, 32, 48], samples: [1024, 2048, 4096]": (
        "[16, 32], width: [16, 32], samples: [64, 128]"
    ),
    "width: 144, samples: 16384": "width: 48, samples: 512",
    "trials: 72": "trials: 12",
}
"""What the story of a larger model asks less of than the page: smaller models, shorter trainings, fewer of them."""


@pytest.mark.slow
def test_the_tutorial_of_a_larger_model_is_a_story(empty: Path) -> None:
    """Its commands as they stand, on the study that it shows, grown to less."""
    pytest.importorskip("torch")
    (shown,) = (block for block in BLOCKS if block.page == LARGER and block.language == "yaml")
    study = shown.text
    for asked, less in LESS_OF_LARGER.items():
        assert asked in study
        study = study.replace(asked, less)
    (empty / "models.yaml").write_text(study)
    assert len(TOLD_OF_LARGER) >= 6
    for line in TOLD_OF_LARGER:
        result = CliRunner().invoke(main, shlex.split(line)[1:])
        assert result.exit_code == 0, f"{line}\n{result.output}"
    assert "Best loss against sizes" in (empty / "report.html").read_text("utf-8")


GUIDES = sorted({block.page for block in SHELL if block.page.parent.name == "guides"})


@pytest.mark.slow
@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_a_guide_is_a_story_of_whoever_has_followed_the_tutorial(
    place: Place, page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its commands in the order of the page, in a folder that no other page has touched."""
    folder = tmp_path / "began"
    for name in ("study.yaml", "table.csv", "examples", "hpo.db", ".hpo"):
        source = place.folder / name
        if source.is_dir():
            shutil.copytree(source, folder / name)
        elif source.exists():
            folder.mkdir(exist_ok=True)
            shutil.copy(source, folder / name)
    monkeypatch.chdir(folder)
    blocks = [block for block in SHELL if block.page == page]
    write_tables(blocks, folder)
    told = [line for block in blocks for line in lines_of(block)]
    for line in told:
        if line.startswith("hpo ") and line not in {*ELSEWHERE, *ON_A_CLUSTER}:
            assert Place(folder).run(line), line


# Python


@pytest.mark.fit
@pytest.mark.processes
@pytest.mark.parametrize(
    "block",
    [
        # the first sweep of the project, on images
        pytest.param(each, marks=pytest.mark.slow if each.page.name == "first_run.md" else ())
        for each in PYTHON
    ],
    ids=str,
)
def test_python_of_the_pages_runs(place: Place, block: Block) -> None:
    code = compile(block.text, str(block), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if "Client(" not in block.text:  # these need a server: tests/service/test_client.py
        exec(code, {"__name__": "page"})


# studies


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language == "yaml"], ids=str)
def test_a_study_of_the_pages_is_one(block: Block) -> None:
    document = yaml.safe_load(block.text)
    example = "recipe.yaml" if "recipe" in document else "digits.yaml"
    whole = yaml.safe_load((EXAMPLES / example).read_text("utf-8"))
    if "budget" in document:
        whole.pop(
            "sampler", None
        )  # the budget may be one that the sampler of the example does not take
    spec = hpo.parse_study(yaml.safe_dump({**whole, **document}))
    assert spec.to_dict()["ladder"] == document.get("ladder", whole["ladder"])


@pytest.mark.parametrize(
    "path",
    # those of a plug-in need its package (tests/interfaces/test_plugin_example.py)
    [path for path in sorted(EXAMPLES.rglob("*.yaml")) if path.parent.name != "plugins"],
    ids=lambda path: path.name,
)
def test_every_example_is_a_study(path: Path) -> None:
    spec = hpo.load_study(path)
    assert spec.name.replace("workflow_", "") in (path.stem, "goyal_on_digits")


def test_what_a_builder_adds_takes_ten_lines_to_say() -> None:
    sections = re.split(r"^## ", (ROOT / "CONTRIBUTING.md").read_text(), flags=re.MULTILINE)
    recipes = [each.splitlines() for each in sections if each.startswith("To add ")]
    assert len(recipes) >= 12
    long = {lines[0]: said for lines in recipes if (said := sum(map(bool, lines[1:]))) > 10}
    assert not long, "CONTRIBUTING.md: a section says in at most ten lines what is to be done"
