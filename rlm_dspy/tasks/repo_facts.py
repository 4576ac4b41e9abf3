"""What a question about a repository plants in it: functions that call, settings, remarks; and what only looks so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rlm_dspy.tasks._draw import Draw
from rlm_dspy.tasks.repo_names import ENVIRONMENTS, KEYS, REGIONS, SERVICES

__all__ = ["LAYERS_TOLD", "Plan", "Plant", "call", "caller", "defined", "layers", "mention", "remark", "setting_files"]

LAYERS_TOLD = "config/README.md"
_RULE = """# Settings

A setting is looked up in three files, and the last one that has it wins: `config/base.yaml`, then the environment's
(`config/production.yaml`), then the one of environment and region (`config/production-eu-west.yaml`). A line behind a
`#` is not in force. A service only reads its own section.
"""


@dataclass(frozen=True)
class Plant:
    """A piece to put into the repository.

    Attributes:
        kind: Of the file that it goes into, one of `rlm_dspy.tasks.repo_text.KINDS`; or empty.
        text: The piece.
        path: The file that it is, whole, where it is one.
    """

    kind: str
    text: str
    path: str = ""


@dataclass(frozen=True)
class Plan:
    """One question, before its repository is written.

    Attributes:
        query: The question.
        answer: The gold: an int, a str, or a list of str; for a list of files of a kind that are still to be named, see
            ``files``.
        plants: What is planted.
        files: The plants whose files are the answer, by their places in ``plants``.
    """

    query: str
    answer: int | str | list[str]
    plants: Sequence[Plant]
    files: Sequence[int] = field(default=())


def call(name: str, option: str, value: object, draw: Draw) -> str:
    """Code that calls ``name``, indented as in a function; on one line or on several."""
    if draw.chance(0.3):
        return f"    result = {name}(\n        payload,\n        {option}={value},\n    )\n"
    return f"    result = {name}(payload, {option}={value})\n"


def caller(function: str, calls: Sequence[str], draw: Draw, before: str = "") -> Plant:
    """A Python function that makes these calls."""
    doc = draw.choice(("Called by the nightly job.", "See the handbook.", "Kept for older clients.", "Idempotent."))
    body = "".join(calls)
    tail = draw.choice(("    return result\n", "    return bool(result)\n", "    return {'result': result}\n"))
    return Plant("code", f'\n{before}\ndef {function}(payload, *, dry_run=False):\n    """{doc}"""\n{body}{tail}')


def defined(name: str, option: str, draw: Draw) -> Plant:
    """The function itself, and one with a longer name."""
    text = f"\n\ndef {name}(payload, {option}=0):\n    return (len(payload), {option})\n"
    return Plant("code", text + f"\n\ndef {name}_later(payload, {option}=0):\n    return {option} + {draw.below(9)}\n")


def mention(function: str, name: str, option: str, value: object, draw: Draw) -> Plant:
    """A function that only speaks of the call: in a remark, in a text, or by calling one with a longer name."""
    body = draw.choice(
        (
            f"    # Was: {name}(payload, {option}={value})\n    result = len(payload)\n",
            f'    result = "{name}(payload, {option}={value}) is for others"\n',
            f"    result = {name}_later(payload, {option}={value})\n",
            f'    """It used to do {name}(payload, {option}={value})."""\n    result = None\n',
        )
    )
    return Plant("code", f"\n\ndef {function}(payload):\n{body}    return result\n")


_REMARKS = {
    "code": "\n\n# {word}({owner}): {what}\nREVISION_{number} = {number}\n",
    "test": "\n\n# {word}({owner}): {what}\nCASES_{number} = {number}\n",
    "ts": "\n// {word}({owner}): {what}\nexport const revision{number} = {number};\n",
    "go": "\n// {word}({owner}): {what}\nvar revision{number} = {number}\n",
    "sql": "\n-- {word}({owner}): {what}\nSELECT {number};\n",
    "sh": "\n# {word}({owner}): {what}\nrevision={number}\n",
    "md": "\n<!-- {word}({owner}): {what} -->\n",
}


def remark(word: str, owner: str, draw: Draw) -> Plant:
    """A remark for somebody, in any language."""
    kind = draw.choice(tuple(_REMARKS))
    what = draw.choice(("drop this", "ask the other team", "why twice?", "needs a test", "make it faster", "rename"))
    number = draw.between(1000, 9999)
    return Plant(kind, _REMARKS[kind].format(word=word, owner=owner, what=what, number=number))


def layers(environment: str, region: str | None) -> list[str]:
    """The files in which a setting is looked up, the last one that has it wins."""
    files = ["config/base.yaml", f"config/{environment}.yaml"]
    return files if region is None else [*files, f"config/{environment}-{region}.yaml"]


Settings = dict[str, dict[str, dict[str, int]]]
"""Path to service to key to value."""


def setting_files(draw: Draw, room: int, asked: Sequence[str]) -> tuple[Settings, list[str]]:
    """Settings in all files, at random, and the regions there are.

    Args:
        draw: The source of draws.
        room: Characters that they may come to, about.
        asked: Services that are among them.
    """
    count = max(len(asked) + 1, min(len(SERVICES), room // 700))
    services = [*asked, *draw.sample([one for one in SERVICES if one not in asked], count - len(asked))]
    regions = draw.sample(REGIONS, 2 if room < 6_000 else 4)
    files = ["config/base.yaml", *(f"config/{one}.yaml" for one in ENVIRONMENTS)]
    files += [f"config/production-{region}.yaml" for region in regions]
    found: Settings = {}
    for path in files:
        share = 0.8 if path == files[0] else 0.35
        found[path] = {}
        for service in draw.shuffled(services):
            keys = [key for key in KEYS if draw.chance(share)] or [draw.choice(KEYS)]
            found[path][service] = {key: draw.between(11, 999) for key in keys}
    return found, regions


def config_plants(settings: Settings, off: Sequence[tuple[str, str, str, int]]) -> list[Plant]:
    """The files of settings, with lines that are not in force: path, service, key, value each."""
    plants = [Plant("", _RULE, LAYERS_TOLD)]
    for path, services in settings.items():
        lines = [f"# Settings of {path.removeprefix('config/').removesuffix('.yaml')}."]
        for service, values in services.items():
            lines.append(f"{service}:")
            lines += [f"  {key}: {value}" for key, value in values.items()]
            lines += [f"  # {key}: {value}" for where, whose, key, value in off if (where, whose) == (path, service)]
        plants.append(Plant("", "\n".join(lines) + "\n", path))
    return plants
