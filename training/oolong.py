"""The published OOLONG-synth data (arXiv 2511.02817) as a task set, from disk or from the hub. None of it is shipped.

    [env.taskset]
    id = "rlm-dspy-oolong"
    source = "oolongbench/oolong-synth"       # or a .jsonl file, or a folder that datasets saved
    split = "validation"                      # spam and trec_coarse; the other eight sets are "test"
    datasets = ["trec_coarse"]
    context_lens = [131072]

A file of JSON lines is read without more; for the hub, Parquet files and saved folders ``pip install datasets``.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import dspy
import verifiers.v1 as vf

from rlm_dspy.errors import ConfigurationError, RLMError
from rlm_dspy.training.cases import Case, CaseData, case_of
from rlm_dspy.training.factory import CaseTask
from rlm_dspy.training.harness import INFO
from rlm_dspy.training.oolong_scores import official, strict

__all__ = ["OolongConfig", "OolongData", "OolongTask", "OolongTaskset"]

SIGNATURE = "context, query -> answer: str"
_TEXTS = ("context_window_text", "context_window_text_with_labels")
_NEEDED = ("id", "context_len", "dataset", "question", "answer", "answer_type", _TEXTS[0])


class Rows(Protocol):
    """Rows by number, each read when it is asked for."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int, /) -> Mapping[str, Any]: ...


class JsonLines:
    """Rows of a file of JSON lines, of which only the places are kept.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._places: list[int] = []
        at = 0
        with path.open("rb") as file:
            for line in file:
                if line.strip():
                    self._places.append(at)
                at += len(line)

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, number: int, /) -> Mapping[str, Any]:
        with self.path.open("rb") as file:
            file.seek(self._places[number])
            row: Mapping[str, Any] = json.loads(file.readline())
            return row


@functools.lru_cache(maxsize=8)
def rows(source: str, split: str) -> Rows:
    """The rows of a source.

    Raises:
        ConfigurationError: It cannot be read; the message says what to do.
    """
    path = Path(source).expanduser()
    if path.suffix in (".jsonl", ".json") and path.is_file():
        found: Rows = JsonLines(path)
    else:
        try:
            import datasets
        except ImportError:
            raise ConfigurationError(
                f"{source!r} is no file of JSON lines here; to load it otherwise: pip install datasets"
            ) from None
        try:
            if path.is_dir():
                loaded: Any = datasets.load_from_disk(str(path))
                found = loaded[split] if isinstance(loaded, dict) else loaded
            elif path.suffix == ".parquet":
                found = datasets.load_dataset("parquet", data_files=str(path), split="train")
            else:
                found = datasets.load_dataset(source, split=split)
        except Exception as error:
            raise ConfigurationError(
                f"the data {source!r} (split {split!r}) cannot be loaded: {type(error).__name__}: {error}. Where the "
                "hub is not reached, give a file or folder with it as source"
            ) from error
    if not len(found):
        raise ConfigurationError(f"{source!r} has no rows")
    missing = [name for name in _NEEDED if name not in found[0]]
    if missing:
        raise ConfigurationError(f"the rows of {source!r} are none of OOLONG-synth: they lack {', '.join(missing)}")
    return found


class OolongData(CaseData):
    """One row, by its number."""

    source: str
    split: str
    number: int
    labelled: bool = False

    def case(self) -> Case:
        """Its context and question.

        Raises:
            RLMError: The data is another than that the task was made from.
        """
        row = rows(self.source, self.split)[self.number]
        if str(row["id"]) != self.id:
            raise RLMError(f"row {self.number} of {self.source!r} is {row['id']!r}, not {self.id!r}: other data")
        facts = {name: value for name, value in row.items() if name not in _TEXTS}
        text = row[_TEXTS[int(self.labelled)]]
        return Case({"context": text, "query": row["question"]}, SIGNATURE, dspy.Example(row=facts))


class OolongTask(CaseTask, vf.Task[OolongData]):
    """The reward is the strict score; the published one is the metric ``official``."""

    def judge(self, case: Case, prediction: dspy.Prediction) -> float:
        """The strict score."""
        return strict(case.example.row, prediction.get("answer"))

    @vf.metric
    async def official(self, trace: Any) -> float:
        """The published score of the answer as text."""
        answer = ((trace.info.get(INFO) or {}).get("prediction") or {}).get("answer")
        case = await case_of(self.data)
        return 0.0 if answer is None else official(case.example.row, str(answer))


class OolongConfig(vf.TasksetConfig):
    """Which rows.

    Attributes:
        source: A name on the hub, a file, or a folder.
        split: ``"validation"`` or ``"test"``.
        datasets: Of the ten sets, such as ``["trec_coarse"]``; all if None.
        context_lens: Lengths in tokens as the data has them, powers of two; all if None.
        answer_types: Such as ``["LABEL", "NUMERIC"]``; all if None.
        num_tasks: At most so many.
        labelled: Give the context with the labels written in.
    """

    source: str = "oolongbench/oolong-synth"
    split: str = "validation"
    datasets: list[str] | None = None
    context_lens: list[int] | None = None
    answer_types: list[str] | None = None
    num_tasks: int | None = None
    labelled: bool = False


class OolongTaskset(vf.Taskset[OolongTask, OolongConfig]):
    """The rows that the configuration asks for, in their order."""

    def load(self) -> Iterable[OolongTask]:
        """The tasks, without their contexts.

        Raises:
            ConfigurationError: There is no such row.
        """
        config = self.config
        made = 0
        for number, row in enumerate(_facts(rows(config.source, config.split))):
            if made == config.num_tasks:
                break  # every further row would be read whole
            if not self._wanted(row):
                continue
            made += 1
            data = OolongData(
                id=str(row["id"]),
                name=f"{row['dataset']} {row['context_len']} {row['id']}",
                prompt=row["question"],
                source=config.source,
                split=config.split,
                number=number,
                labelled=config.labelled,
            )
            yield OolongTask(data, config.task)
        if not made:
            raise ConfigurationError(f"no row of {config.source!r} is what the configuration asks for")

    def _wanted(self, row: Mapping[str, Any]) -> bool:
        config = self.config
        wanted: Sequence[tuple[Any, Any]] = (
            (config.datasets, row["dataset"]),
            (config.context_lens, row["context_len"]),
            (config.answer_types, str(row["answer_type"]).rsplit(".", 1)[-1]),
        )
        return all(some is None or value in some for some, value in wanted)


def _facts(found: Rows) -> Iterable[Mapping[str, Any]]:
    """Rows without their texts, where they can be left out."""
    leave = getattr(found, "remove_columns", None)
    if leave is not None:
        names = [name for name in _TEXTS if name in found[0]]
        found = leave(names)
    for number in range(len(found)):
        yield found[number]
