"""The seam between families of tasks: what a family is, what an example holds, and how a batch is put together.

A family is a module, or any object, with the members of `Family`. To make one: write a table of kinds, each a table of
templates (a name and a function that builds one task), hand it to `Batches`, and name the module in
``rlm_dspy.tasks.FAMILIES``. `Batches` gives what all families share: checked arguments, kinds in turn, each template of
a kind used before one is used again, and a seed for each example that depends on nothing but the arguments and its
place, so that a longer batch begins with the shorter one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import dspy

from rlm_dspy.errors import ConfigurationError
from rlm_dspy.tasks._draw import Draw

__all__ = ["CHARACTERS_PER_TOKEN", "MINIMUM_TOKENS", "SIGNATURES", "Batches", "Family", "Spot", "Task"]

#: How `tokens` becomes a size: English prose has about four characters a token. The same measure is used for all
#: contexts; logs, with their numbers and ids, come to more tokens of most tokenizers than asked for.
CHARACTERS_PER_TOKEN = 4
#: Below this there is no room for a question's facts among other text.
MINIMUM_TOKENS = 1000

#: Kind of question to the signature that fits its answer, for tasks that do not say another.
SIGNATURES = {
    "count": "context, query -> answer: int",
    "find": "context, query -> answer: str",
    "list": "context, query -> answer: list[str]",
    "compare": "context, query -> answer: str",
}


class Family(Protocol):
    """What a family of tasks offers; a module with these members is one.

    It may have ``example`` too, `Batches.example`: then one example is made without those before it.
    """

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
        context: What is asked about, as a rule a text.
        query: The question.
        answer: The gold, of a type that `rlm_dspy.tasks.scoring` knows, or the family's own metric.
        extra: Further fields of the example, for analyses.
        signature: For `RLM`; that of `SIGNATURES` for the kind if empty.
    """

    context: Any
    query: str
    answer: Any
    extra: Mapping[str, Any] = field(default_factory=dict)
    signature: str = ""


@dataclass(frozen=True)
class Batches:
    """How a family makes its examples; its methods are the ``generate`` and ``example`` of a `Family`.

    Attributes:
        name: Of the family.
        templates: Kind to the names of its question templates.
        build: Makes the task of one spot.
    """

    name: str
    templates: Mapping[str, Iterable[str]]
    build: Callable[[Spot], Task]

    def example(self, number: int, tokens: int, seed: int, kinds: Sequence[str] | None = None) -> dspy.Example:
        """The example that a batch has at a place, from 0.

        Args:
            number: The place.
            tokens: Size of the context, `CHARACTERS_PER_TOKEN` characters each; from `MINIMUM_TOKENS`.
            seed: Any int.
            kinds: Which kinds, in turn; all of the family if None.

        Returns:
            An example with the inputs ``context`` and ``query``, and ``answer``, ``kind``, ``family``, ``signature``,
            ``template``, ``seed``, ``tokens``, and what the family adds.

        Raises:
            ConfigurationError: An argument is not as described; the message says what is.
        """
        chosen = _checked(self.name, tuple(self.templates), number, tokens, seed, kinds)
        kind, turn = chosen[number % len(chosen)], number // len(chosen)
        order = Draw(self.name, seed, kind, "templates").shuffled(tuple(self.templates[kind]))
        template = order[turn % len(order)]
        draw = Draw(self.name, seed, tokens, kind, turn)
        task = self.build(Spot(kind, template, turn, tokens * CHARACTERS_PER_TOKEN, draw))
        return dspy.Example(
            context=task.context,
            query=task.query,
            answer=task.answer,
            kind=kind,
            family=self.name,
            signature=task.signature or SIGNATURES[kind],
            template=template,
            seed=seed,
            tokens=tokens,
            **task.extra,
        ).with_inputs("context", "query")

    def generate(self, n: int, tokens: int, seed: int, kinds: Sequence[str] | None = None) -> list[dspy.Example]:
        """The first ``n`` examples, from 0; the same arguments give the same bytes."""
        _checked(self.name, tuple(self.templates), n, tokens, seed, kinds)
        return [self.example(number, tokens, seed, kinds) for number in range(n)]


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
