"""The README and those of the rooms tell the truth: their Python runs, commands exist, links lead somewhere.

The blocks of one section run in order in one namespace, in a process of its own. Where they ask a model, a server on
the loopback interface answers; `REPLIES` says what, by section.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlm_dspy import RLM, Guidance, Limits, tasks
from rlm_dspy.cli.parser import parse
from rlm_dspy.testing import code

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
FOLDERS = ("rlm_dspy", "signatures", "environments", "optimizers", "training")
ROOMS = tuple(sorted(str(path.relative_to(ROOT)) for one in FOLDERS for path in (ROOT / one).rglob("README.md")))
READMES = ("README.md", *ROOMS)
TEXTS = (*READMES, "CONTRIBUTING.md", "benchmarks/README.md")
LINKING = (*TEXTS, "CHANGELOG.md", "benchmarks/RESULTS.md", *(f"notebooks/{path.name}" for path in NOTEBOOKS))

NEEDS = {"rlm_dspy/tracking/README.md": ("mlflow", "mlflow"), "training/README.md": ("verifiers", "train")}
"""The texts whose programs need a package, and the extra that brings it."""

CONTRACT = "1. Rent is due.\n2. Notice has to be given by 31 March.\n"

CONFIG = """
model = "openai/NAME"
max-seconds = 60

[env]
memory = "2GiB"
"""

REPLIES: dict[str, list[str]] = {
    "The first program": [code("SUBMIT(clauses=[line for line in context.splitlines() if 'March' in line])")],
    "Sub-calls, tools, children": [
        code("who = customer_of(7)\nwho"),
        code("SUBMIT(tickets=[{'number': 7, 'kind': 'billing'}])"),
    ],
    "Ready signatures": [
        code("found = [(n, t) for n, t in documents.items() if 'otice' in t]\nprint(found)"),
        code("SUBMIT(answer='three months', citations=[{'document': n, 'quote': t} for n, t in found])"),
    ],
    "Sessions, journals, replay": [
        code("first, last = context.splitlines()\nSUBMIT(answer=first.split()[0])"),
        code("SUBMIT(answer=last.split()[0])"),
        code("SUBMIT(answer=first.split()[-1])"),
        code("SUBMIT(answer=next(line.split()[0] for line in context.splitlines() if 'Friday' in line))"),
    ],
    "DSPy's optimisers": [code(f"SUBMIT(answer={month!r})") for month in ("March", "June")],
    "GEPA on whole trajectories": [code("SUBMIT(errors=log.count('ERROR'))")] * 6,
    "Limits and outcomes": [code("context.count('tea')"), "[[ ## answer ## ]]\ntea\n\n[[ ## completed ## ]]"],
}


def sections(text: str) -> dict[str, list[str]]:
    """The Python blocks of a Markdown text by the heading they stand under."""
    found: dict[str, list[str]] = {}
    heading = ""
    for part in re.finditer(r"^#+ (?P<heading>[^\n]+)$|^```(?P<language>\w*)\n(?P<code>.*?)^```$", text, re.M | re.S):
        if part["heading"]:
            heading = part["heading"]
        elif part["language"] == "python":
            found.setdefault(heading, []).append(part["code"])
    return found


def commands(name: str) -> list[str]:
    """The lines of the shell blocks of a text."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", (ROOT / name).read_text(), re.M | re.S)
    return [line.split("  #")[0].strip() for block in blocks for line in block.splitlines() if line.strip()]


SECTIONS = {
    (name, heading): blocks for name in READMES for heading, blocks in sections((ROOT / name).read_text()).items()
}


def test_the_readme_has_programs() -> None:
    assert len(SECTIONS) >= 4
    assert not REPLIES.keys() - {heading for _, heading in SECTIONS}, "a section of REPLIES is no longer there"


def test_every_room_has_its_text_and_the_readme_leads_to_all() -> None:
    assert len(ROOMS) >= 11
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert not [name for name in ROOMS if f"]({name})" not in text]
    assert len(text.splitlines()) <= 450, "what is known in detail belongs into the text of its room"


def _cases() -> list[Any]:
    """The sections; what needs an extra that takes seconds to load is heavy."""
    return [pytest.param(*section, marks=pytest.mark.heavy if section[0] in NEEDS else []) for section in SECTIONS]


@pytest.mark.parametrize(("name", "section"), _cases())
def test_python_blocks_run(name: str, section: str, tmp_path: Path, endpoint: Callable[..., Any]) -> None:
    if name in NEEDS and importlib.util.find_spec(NEEDS[name][0]) is None:
        pytest.skip(f"needs pip install 'rlm-dspy[{NEEDS[name][1]}]'")
    (tmp_path / "contract.txt").write_text(CONTRACT)
    replies = REPLIES.get(section, [])
    server = endpoint(replies)
    blocks = "\n\n".join(SECTIONS[name, section])
    if replies and "dspy.configure(" not in blocks:
        blocks = f'import dspy\n\ndspy.configure(lm=dspy.LM("openai/gpt-5.4-mini"))\n\n{blocks}'
    (tmp_path / "readme.py").write_text(blocks)
    kept = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    here = {"OPENAI_BASE_URL": server.url, "OPENAI_API_BASE": server.url, "OPENAI_API_KEY": "none"}
    done = subprocess.run(
        [sys.executable, "readme.py"],
        cwd=tmp_path,
        env={**kept, **here, "DSPY_CACHEDIR": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(server.bodies) == len(replies)


@pytest.mark.parametrize("name", TEXTS)
def test_make_targets_exist(name: str) -> None:
    text = (ROOT / name).read_text()
    makefile = (ROOT / "Makefile").read_text()
    said = [*commands(name), *(span.strip("`") for span in re.findall("`[^`\n]+`", text))]
    targets = {found[1] for line in said if (found := re.match(r"make ([a-z][a-z-]+)\b", line))}
    missing = sorted(target for target in targets if not re.search(rf"^{target}:", makefile, re.M))
    assert targets or name != "README.md"
    assert not missing


@pytest.mark.parametrize("line", [line for name in READMES for line in commands(name) if line.startswith("rlm-dspy")])
def test_command_lines_are_understood(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # What comes after a redirection is the shell's.
    words = shlex.split(re.split(r"\s[>|]\s", line)[0])[1:]
    monkeypatch.chdir(tmp_path)
    if "--config" in words:
        Path(words[words.index("--config") + 1]).write_text(CONFIG)
    if words == ["--version"]:
        with pytest.raises(SystemExit) as stop:
            parse(words)
        assert stop.value.code == 0
    else:
        assert parse(words) is not None


def test_limits_of_the_table_are_those_of_the_constructor() -> None:
    parameters = inspect.signature(RLM.__init__).parameters
    rows = re.findall(r"^\| `(\w+)` \| ([\d,]+|none) \|", (ROOT / "README.md").read_text(), re.M)
    assert {name for name, _ in rows} == {*Limits.names(), "max_output_chars"}
    for name, default in rows:
        value = parameters[name].default
        assert default == ("none" if value is None else f"{value:,g}"), name


def first_column(name: str, heading: str) -> list[str]:
    """What stands in backticks in the first column of the tables below a heading."""
    below = re.split(rf"^#+ {re.escape(heading)}$", (ROOT / name).read_text(), flags=re.M)[1]
    cells = re.findall(r"^\| ([^|]*)\|", re.split(r"^#+ ", below, flags=re.M)[0], re.M)
    return [word for cell in cells for word in re.findall(r"`([^`]+)`", cell)]


def test_tables_name_all_that_there_is() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {*first_column("README.md", "The sandbox")} == {*project["entry-points"]["rlm_dspy.environments"]}
    assert {*first_column("signatures/README.md", "Aids for small models")} == {*Guidance.names()}
    families = first_column("rlm_dspy/tasks/README.md", "Tasks with known answers")
    assert {*families} == {*tasks.families()}
    for row in re.findall(r"^\| `\w+` \|.*$", (ROOT / "rlm_dspy/tasks/README.md").read_text(), re.M):
        name, kinds = (re.findall(r"`(\w+)`", cell) for cell in row.split("|")[1:3])
        assert not kinds or kinds == list(tasks.get(name[0]).KINDS), name


def test_the_tests_that_the_texts_name_exist() -> None:
    texts = "".join((ROOT / name).read_text(encoding="utf-8") for name in READMES)
    named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", texts)
    assert len(named) > 20
    for file, name in named:
        text = (ROOT / "tests" / "core" / file).read_text(encoding="utf-8")
        assert re.search(rf"\bdef {name}\b", text), f"{file} has no {name}"


def test_pictures_are_there_small_and_described() -> None:
    pictures = {name: re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", prose(name)) for name in READMES}
    assert len(pictures["README.md"]) >= 3
    for name, found in pictures.items():
        for described, path in found:
            file = (ROOT / name).parent / path
            assert len(described) > 60 and file.read_bytes().startswith(b"\x89PNG"), path
            assert file.stat().st_size < 150_000, path


def prose(name: str) -> str:
    """A text without its code, or the prose of a notebook."""
    text = (ROOT / name).read_text(encoding="utf-8")
    if name.endswith(".ipynb"):
        cells = json.loads(text)["cells"]
        text = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    return re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)


def anchors(name: str) -> set[str]:
    """The names under which a text's headings are linked to, as GitHub makes them."""
    headings = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", one) for one in re.findall(r"^#+ (.+)$", prose(name), re.M))
    return {re.sub(r"[^\w\- ]", "", one.strip().lower()).replace(" ", "-") for one in headings}


@pytest.mark.parametrize("name", LINKING)
def test_links_lead_somewhere(name: str) -> None:
    text = re.sub(r"`[^`\n]*`", "", prose(name))
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if link.startswith(("http://", "https://", "data:", "attachment:")):
            continue
        path, _, anchor = link.partition("#")
        file = (ROOT / name).parent / path if path else ROOT / name
        assert file.exists(), link
        if anchor:
            assert anchor in anchors(str(file.resolve().relative_to(ROOT))), link
