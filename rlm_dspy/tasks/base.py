"""The seam between families of tasks: what a family is, what an example holds, and how a batch is put together.

A family is a module, or any object, with the members of `Family`. To make one: write a table of kinds, each a table of
templates (a name and a function that builds one task), hand it to `batch`, and name the module in
``rlm_dspy.tasks.FAMILIES``. `batch` gives what all families share: checked arguments, kinds in turn, each template of a
kind used before one is used again, and a seed for each example that depends on nothing but the arguments and its place,
so that a longer batch begins with the shorter one.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import dspy

from rlm_dspy.errors import ConfigurationError
from rlm_dspy.tasks._draw import Draw

__all__ = ["CHARACTERS_PER_TOKEN", "MINIMUM_TOKENS", "SIGNATURES", "Family", "Spot", "Task", "alone", "batch"]

#: How `tokens` becomes a size: English prose has about four characters a token. The same measure is used for all
#: contexts; logs, with their numbers and ids, come to more tokens of most tokenizers than asked for.
CHARACTERS_PER_TOKEN = 4
#: Below this there is no room for a question's facts among other text.
MINIMUM_TOKENS = 1000

#: Kind of question to the signature that fits its answer.
SIGNATURES = {
    "count": "context, query -> answer: int",
    "find": "context, query -> answer: str",
    "list": "context, query -> answer: list[str]",
    "compare": "context, query -> answer: str",
}


class Family(Protocol):
    """What a family of tasks offers; a module with these members is one."""

    NAME: str
    KINDS: tuple[str, ...]

    def generate(
        self, n: int, tokens: int, seed: int, kinds: Sequence[str] | None = None
    ) -> list[dspy.Example]:
        """``n`` examples with contexts of about ``tokens`` tokens; the same arguments give the same bytes."""

    def score(self, example: Any, prediction: Any, trace: Any = None) -> float:
        """How right a prediction is, 0.0 to 1.0; a DSPy metric."""


@dataclass(frozen=True)
class Spot:
    """Where an example stands in its batch.

    Attributes:
        template: Name of the question template to use.
        turn: How many examples of its kind come before it.
        characters: How long the context shall be.
        draw: The source of its draws.
    """

    kind: str
    template: str
    turn: int
    characters: int
    draw: Draw


@dataclass(frozen=True)
class Task:
    """What a family builds at a `Spot`.

    Attributes:
        context: The text that is asked about.
        query: The question.
        answer: The gold: an int, a str, or a list of str.
        extra: Further fields of the example, for analyses.
    """

    context: str
    query: str
    answer: int | str | list[str]
    extra: Mapping[str, Any] = field(default_factory=dict)


_alone: contextvars.ContextVar[int | None] = contextvars.ContextVar("rlm_dspy_task_alone", default=None)


@contextlib.contextmanager
def alone(number: int) -> Iterator[None]:
    """In here `batch` makes the example of that number and no other, as it would be in the whole batch."""
    token = _alone.set(number)
    try:
        yield
    finally:
        _alone.reset(token)


def batch(
    name: str,
    templates: Mapping[str, Sequence[str]],
    build: Callable[[Spot], Task],
    n: int,
    tokens: int,
    seed: int,
    kinds: Sequence[str] | None = None,
) -> list[dspy.Example]:
    """The examples of one family.

    Args:
        name: Of the family.
        templates: Kind to the names of its question templates.
        build: Makes the task of one spot.
        n: How many; from 0.
        tokens: Size of each context, `CHARACTERS_PER_TOKEN` characters each; from `MINIMUM_TOKENS`.
        seed: Any int.
        kinds: Which kinds, in turn; all of the family if None.

    Returns:
        Examples with the inputs ``context`` and ``query``, and ``answer``, ``kind``, ``family``, ``signature``,
        ``template``, ``seed``, ``tokens``, and what the family adds.

    Raises:
        ConfigurationError: An argument is not as described; the message says what is.
    """
    chosen = _checked(name, tuple(templates), n, tokens, seed, kinds)
    order = {kind: Draw(name, seed, kind, "templates").shuffled(templates[kind]) for kind in chosen}
    examples = []
    only = _alone.get()
    for index in range(n) if only is None else (only,):
        kind, turn = chosen[index % len(chosen)], index // len(chosen)
        template = order[kind][turn % len(order[kind])]
        draw = Draw(name, seed, tokens, kind, turn)
        task = build(Spot(kind, template, turn, tokens * CHARACTERS_PER_TOKEN, draw))
        example = dspy.Example(
            context=task.context,
            query=task.query,
            answer=task.answer,
            kind=kind,
            family=name,
            signature=SIGNATURES[kind],
            template=template,
            seed=seed,
            tokens=tokens,
            **task.extra,
        )
        examples.append(example.with_inputs("context", "query"))
    return examples


def _checked(
    name: str, known: tuple[str, ...], n: Any, tokens: Any, seed: Any, kinds: Any
) -> tuple[str, ...]:
    """The kinds to use, once all arguments are in order."""
    for label, value in (("n", n), ("tokens", tokens), ("seed", seed)):
        if not isinstance(value, int) or isinstance(value, bool):
            raise ConfigurationError(f"{label} must be a whole number, not {value!r}")
    if n < 0:
        raise ConfigurationError(f"n must be 0 or more, not {n}")
    if tokens < MINIMUM_TOKENS:
        raise ConfigurationError(f"tokens must be {MINIMUM_TOKENS} or more, not {tokens}")
    if kinds is None:
        return known
    if isinstance(kinds, str):
        raise ConfigurationError(f"kinds is a list of names: write kinds=[{kinds!r}]")
    chosen = tuple(dict.fromkeys(kinds))
    unknown = [kind for kind in chosen if kind not in known]
    if unknown or not chosen:
        said = f"no kind {unknown[0]!r}" if unknown else "no kinds given"
        raise ConfigurationError(f"{said}; {name} has: {', '.join(known)}")
    return chosen
