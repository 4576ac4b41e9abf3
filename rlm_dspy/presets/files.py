"""The files of presets."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import resources
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rlm_dspy
from rlm_dspy import kept
from rlm_dspy.errors import ConfigurationError
from rlm_dspy.redact import error_text, redacted

if TYPE_CHECKING:
    import dspy

SCHEMA = 1
KEY = "preset"
"""The entry of a saved state that makes it a preset."""
_OWN = resources.files("rlm_dspy.presets")


@dataclass(frozen=True)
class Score:
    """How well a program did.

    Attributes:
        mean: Of the scores, 0 to 1.
        low, high: The 95 % interval of it.
        n: Examples.
        interval: How the interval was made, such as ``"wilson"``.
    """

    mean: float
    low: float
    high: float
    n: int
    interval: str = ""

    @classmethod
    def of(cls, scores: Sequence[float]) -> Score:
        """That of these scores of examples, by `rlm_dspy.evaluation.interval`.

        Raises:
            ValueError: There are none.
        """
        from rlm_dspy.evaluation import interval

        if not scores:
            raise ValueError("a score is of one example or more")
        low, high, how = interval(scores)
        return cls(round(sum(scores) / len(scores), 4), round(low, 4), round(high, 4), len(scores), how)

    def __str__(self) -> str:
        return f"{self.mean:.2f} ({self.low:.2f} to {self.high:.2f}, n={self.n})"


@dataclass(frozen=True)
class Preset:
    """A compiled strategy and where it comes from.

    Attributes:
        name: What `RLM.from_preset` calls it.
        model: The LM it was made for, as ``dspy.LM`` takes it.
        state: The program's saved state, without LMs.
        description: In a sentence.
        options: Keywords of `RLM` that it was made with and that go with it, such as ``{"adhoc": False}``; those that a
            user gives come before them.
        recipe: How it was made: optimizer and its arguments, data with number and digest, metric, seeds, command.
        before, after: Scores on examples that were not trained on; None where nobody measured.
        date: When it was made, such as ``"2026-11-30"``.
        versions: Of rlm-dspy and DSPy.
    """

    name: str
    model: str
    state: Mapping[str, Any] = field(repr=False)
    description: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    recipe: Mapping[str, Any] = field(default_factory=dict)
    before: Score | None = None
    after: Score | None = None
    date: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        made = f" by {self.recipe['optimizer']}" if "optimizer" in self.recipe else ""
        day = f", {self.date}" if self.date else ""
        scores = {"before": self.before, "after": self.after}
        told = [self.description, *(f"{name} {score}" for name, score in scores.items() if score is not None)]
        return "; ".join([f"{self.name}: for {self.model or 'any model'}{made}{day}", *filter(None, told)])


def names() -> tuple[str, ...]:
    """The presets that come with rlm-dspy."""
    return tuple(sorted(f.name.removesuffix(".json") for f in _OWN.iterdir() if f.name.endswith(".json")))


def read(source: str | PathLike[str]) -> Preset:
    """A preset by its name, or of a file. A saved state that is no preset is one without a history.

    Args:
        source: A name of `names`, or a path.

    Raises:
        ConfigurationError: There is none, it is damaged, or of a newer version.
    """
    name = str(source)
    if name in names():
        text = (_OWN / f"{name}.json").read_text(encoding="utf-8")
    else:
        path = Path(source)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            known = ", ".join(names()) or "none in this version"
            raise ConfigurationError(
                f"no preset {name!r} and no such file that could be read; presets: {known}"
            ) from None
        name = path.stem
    try:
        state = _object(json.loads(text), "a preset")
        about = _object(state.pop(KEY, {}), KEY)
        if int(about.get("schema", SCHEMA)) > SCHEMA:
            raise ConfigurationError(f"{source} has schema {about['schema']}, this rlm-dspy reads up to {SCHEMA}")
        _check(state, about)
        known_fields = Preset.__dataclass_fields__.keys() - {"state", "before", "after", "name"}
        return Preset(
            name=str(about.get("name") or name),
            state=state,
            before=_score(about.get("before")),
            after=_score(about.get("after")),
            **{"model": ""} | {key: value for key, value in about.items() if key in known_fields},
        )
    except (ValueError, TypeError, AttributeError) as error:
        if isinstance(error, ConfigurationError):
            raise
        raise ConfigurationError(f"{source} is no preset: {error}") from None


def _object(given: Any, name: str) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise ValueError(f"{name} must be a JSON object")
    return dict(given)


def _check(state: Mapping[str, Any], about: Mapping[str, Any]) -> None:
    """Refuse what would fail much later, and what no file of somebody else may decide.

    Raises:
        ValueError: Something is of another kind, or options say where code runs.
    """
    for name in ("options", "recipe", "versions"):
        _object(about.get(name, {}), name)
    if where := sorted({"interpreter", "interpreter_factory"} & about.get("options", {}).keys()):
        raise ValueError(f"its options hold {where[0]!r}: where code runs is yours to say, as RLM({where[0]}=...)")
    for name, entry in state.items():
        demos = entry.get("demos", []) if isinstance(entry, dict) else []
        if not (isinstance(demos, list) and all(isinstance(demo, dict) for demo in demos)):
            raise ValueError(f"the demonstrations of {name} must be a list of JSON objects")


def _score(given: Any) -> Score | None:
    return None if given is None else Score(**given)


def write(
    path: str | PathLike[str],
    program: dspy.Module,
    *,
    name: str = "",
    model: str = "",
    description: str = "",
    options: Mapping[str, Any] | None = None,
    recipe: Mapping[str, Any] | None = None,
    before: Score | None = None,
    after: Score | None = None,
    force: bool = False,
) -> Preset:
    """Write what ``program`` has learned as a preset; the file is there whole or not at all.

    Nothing of an LM but the name ``model`` is in it, and secrets that are known are hidden.

    Args:
        path: Of the file, ``….json``.
        program: A compiled program.
        name: None for that of the file.
        model, description, options, recipe, before, after: See `Preset`.
        force: Replace a file that is there.

    Raises:
        ConfigurationError: There is such a file already; or something is not JSON.
        OSError: It cannot be written.
    """
    target = Path(path)
    if target.exists() and not force:
        raise ConfigurationError(f"{target} is there already; another name, or force=True (--force) to replace it")
    saved = _saved(program)
    metadata = saved.pop("metadata", {})
    state = without_lms(saved)
    versions = {"rlm_dspy": rlm_dspy.__version__, "dspy": str(metadata.get("dependency_versions", {}).get("dspy", ""))}
    try:
        _check({}, {"options": dict(options or {})})
    except ValueError as error:
        raise ConfigurationError(f"no preset: {error}") from None
    made = Preset(
        name=name or target.stem,
        model=model,
        state=state,
        description=description,
        options=dict(options or {}),
        recipe=dict(recipe or {}),
        before=before,
        after=after,
        date=datetime.now(UTC).date().isoformat(),
        versions=versions,
    )
    about = {"schema": SCHEMA, **{key: value for key, value in asdict(made).items() if key != "state"}}
    whole = {KEY: about, **state, "metadata": metadata}
    try:
        text = json.dumps(redacted(whole), indent=2, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"a preset is JSON, and something in this one is not: {error}") from None
    kept.atomically(target, lambda file: file.write(text.encode("utf-8", "backslashreplace") + b"\n"))
    target.chmod(0o644)
    return made


def without_lms(state: Mapping[str, Any]) -> dict[str, Any]:
    """A saved state whose predictors name no LM."""
    return {
        name: {**entry, "lm": None} if isinstance(entry, Mapping) and "lm" in entry else entry
        for name, entry in state.items()
    }


def _saved(program: dspy.Module) -> dict[str, Any]:
    """What ``program.save`` writes, which ``load`` reads."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.json"
        try:
            program.save(path)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ConfigurationError(
                f"a preset is JSON, and something in this one is not: {error_text(error)}"
            ) from error
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found
