"""What a task gives the program: inputs, signature, and the answer that is known.

A task travels to every worker and into every line of traces, so it carries no context: only the few numbers from which
the case is made again, where it is needed. Cases are kept for a while, because a group of rollouts asks for the same.
"""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import verifiers.v1 as vf

from rlm_dspy import tasks
from rlm_dspy._aio import threads
from rlm_dspy._signals import result_of

__all__ = ["Case", "CaseData", "FamilyData", "InputsData", "case_of"]

KEPT_CHARACTERS = 64_000_000
"""Of inputs, that a process keeps beside those in use."""
DEFAULT_SIGNATURE = "prompt -> answer"
"""For tasks of other packages, which have a prompt and nothing else."""


@dataclass(frozen=True)
class Case:
    """One task as the program sees it.

    Attributes:
        inputs: By name.
        signature: Of these inputs, such as ``"context, query -> answer: int"``.
        example: With the gold, where there is one.
    """

    inputs: Mapping[str, Any]
    signature: str
    example: Any = field(default=None, repr=False)

    @functools.cached_property
    def characters(self) -> int:
        """About how large the inputs are."""
        return sum(
            len(value) if isinstance(value, (str, bytes)) else len(repr(value)) for value in self.inputs.values()
        )


class CaseData(vf.TaskData):
    """Data of a task that gives the program its inputs. Subclasses say which in `case`."""

    def case(self) -> Case:
        """Make it; called in a thread, once for many rollouts."""
        raise NotImplementedError


class FamilyData(CaseData):
    """One example of a family of `rlm_dspy.tasks`: number ``number`` of those that these arguments generate."""

    family: str
    number: int
    seed: int
    tokens: int
    kinds: list[str] | None = None

    def case(self) -> Case:
        """The example, which is made by itself."""
        example = tasks.example(self.number, self.tokens, self.seed, self.family, self.kinds)
        return Case(dict(example.inputs()), example.signature, example)


class InputsData(CaseData):
    """Inputs that are small enough to travel, for task sets of one's own."""

    inputs: dict[str, Any]
    signature: str

    def case(self) -> Case:
        """These."""
        return Case(self.inputs, self.signature)


async def case_of(data: Any) -> Case:
    """The case of a task. Of one that is none of ours, its prompt is the only input."""
    if isinstance(data, CaseData):
        # The same facts are another case in another class.
        key = (type(data), data.model_dump_json(exclude={"idx"}))
        return await threads.run(_SHELF.get, key, data.case)
    return Case({"prompt": data.prompt_text}, DEFAULT_SIGNATURE)


_Key = tuple[type[CaseData], str]


class _Shelf:
    """Cases by their data, each made once at a time, the last ones kept."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._making: dict[_Key, Future[Case]] = {}
        self._kept: OrderedDict[_Key, Case] = OrderedDict()

    def get(self, key: _Key, make: Callable[[], Case]) -> Case:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
            making = self._making.get(key)
            mine = making is None
            if making is None:
                making = self._making[key] = Future()
        if not mine:
            return result_of(making)
        try:
            case = make()
        except BaseException as error:
            making.set_exception(error)
            raise
        else:
            making.set_result(case)
            self._keep(key, case)
            return case
        finally:
            with self._lock:
                del self._making[key]

    def _keep(self, key: _Key, case: Case) -> None:
        with self._lock:
            self._kept[key] = case
            while sum(one.characters for one in self._kept.values()) > KEPT_CHARACTERS:
                self._kept.popitem(last=False)


_SHELF = _Shelf()
