"""Programs to compare with: what one would do without an RLM, and ``dspy.RLM``; all of them by name.

    rlm        `rlm_dspy.RLM`
    direct     one call with the whole input in the prompt; one that does not fit the window fails, and says so
    truncate   one call with as much of the input as fits, its beginning and its end
    chunks     each chunk of the input is asked by itself, many at once, and the findings are put together
    dspy.RLM   the one of DSPy as it is, with its ``LocalInterpreter`` (no sandbox)

Anything else is a ``dspy.Module`` that is used as it is, or a function or class that is called with the signature of
each example and gives one. The command line finds such by ``package.module:name`` or ``file.py:name``.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import dspy

from rlm_dspy.errors import ConfigurationError, PromptTooLongError
from rlm_dspy.evaluation.chunks import Chunks
from rlm_dspy.evaluation.texts import head_and_tail, longest, text_of
from rlm_dspy.rlm import RLM
from rlm_dspy.window import MOST_CHARS_A_TOKEN, window_of

__all__ = ["NAMES", "Direct", "Program", "Truncate", "get"]

NAMES = ("rlm", "direct", "truncate", "chunks", "dspy.RLM")
"""The programs that have names."""

OUTPUT_TOKENS = 2_000
"""Tokens of a window that are kept for instructions and reply."""
CHARS_A_TOKEN = 3.0
"""Characters that a token is taken for where a text has to fit: prose has four, code and logs have fewer."""


@dataclass(frozen=True)
class Program:
    """A program for examples of any signature.

    Attributes:
        name: As it is reported.
        build: Gives the module for a signature.
        settings: What its results depend on, as plain data; results of other settings are not continued.
    """

    name: str
    build: Callable[[Any], Any]
    settings: Mapping[str, Any] = field(default_factory=dict)
    _made: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    def of(self, signature: Any) -> Any:
        """The module for ``signature``, the same for the same."""
        if signature not in self._made:
            self._made[signature] = self.build(signature)
        return self._made[signature]

    @property
    def digest(self) -> str:
        """Of name and settings; 16 hexadecimal digits."""
        text = json.dumps([self.name, self.settings], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


class Direct(dspy.Module):
    """One call of ``dspy.Predict`` with all inputs in the prompt.

    Args:
        signature: Of the task.
        window: Tokens of the LM's window; None for what is published for it. Where neither is known, every prompt is
            sent, and the provider says whether it fits.

    Raises:
        PromptTooLongError: When called with what cannot fit; nothing is sent then.
    """

    def __init__(self, signature: Any, window: int | None = None) -> None:
        super().__init__()
        self.answer = dspy.Predict(signature)
        self.window = window

    def _prepared(self, inputs: dict[str, Any]) -> dict[str, Any]:
        texts = {name: text_of(value) for name, value in inputs.items()}
        window = window_of(self.answer.lm or dspy.settings.lm, self.window)
        characters = sum(map(len, texts.values()))
        # Only what cannot fit is refused here; the rest is up to the provider.
        if window is not None and characters > window * MOST_CHARS_A_TOKEN:
            raise PromptTooLongError(
                f"the inputs have {characters:,} characters, which do not fit a window of {window:,} tokens"
            )
        return texts

    def forward(self, **inputs: Any) -> dspy.Prediction:
        """One call."""
        return self.answer(**self._prepared(inputs))

    async def aforward(self, **inputs: Any) -> dspy.Prediction:
        """One call."""
        return await self.answer.acall(**self._prepared(inputs))


class Truncate(Direct):
    """One call with the longest input cut to its beginning and its end, so that it fits.

    Args:
        signature: Of the task.
        window: Tokens of the LM's window; None for what is published for it.

    Raises:
        ConfigurationError: When called, if the window is unknown.
    """

    def _prepared(self, inputs: dict[str, Any]) -> dict[str, Any]:
        texts = {name: text_of(value) for name, value in inputs.items()}
        room = fitting(self.answer.lm or dspy.settings.lm, self.window)
        name = longest(texts)
        rest = sum(len(text) for other, text in texts.items() if other != name)
        return {**texts, name: head_and_tail(texts[name], max(0, room - rest))}


def fitting(lm: Any, window: int | None) -> int:
    """Characters of input that fit the window of ``lm`` with room for instructions and reply.

    Raises:
        ConfigurationError: The window is unknown.
    """
    known = window_of(lm, window)
    if known is None:
        raise ConfigurationError(
            f"the context window of {getattr(lm, 'model', lm)} is unknown: give it in tokens (--window N, window=N)"
        )
    return int(max(known * 0.25, known - OUTPUT_TOKENS) * CHARS_A_TOKEN)


def get(
    name: str,
    found: Any = None,
    *,
    window: int | None = None,
    sub_lm: Any = None,
    settings: Mapping[str, Any] | None = None,
    prepare: Callable[[Any], Any] | None = None,
    **options: Any,
) -> Program:
    """The program of that name.

    Args:
        name: One of `NAMES`; of ``found``, whatever name.
        found: A ``dspy.Module``, or what makes one from a signature.
        window: Tokens of the LM's window, for ``direct``, ``truncate`` and ``chunks``.
        sub_lm: The LM of sub-calls, for ``rlm`` and ``dspy.RLM``; of the chunks, for ``chunks``.
        settings: What else the results depend on, such as the models' names.
        prepare: Called with each RLM that is built, such as to load a state; gives the one to use.
        **options: Keywords of `RLM`. Of these ``dspy.RLM`` takes ``max_iters``, ``max_llm_calls`` and
            ``max_output_chars``.

    Raises:
        ConfigurationError: There is none; the message lists them.
    """
    base = {**(settings or {}), "window": window}
    described = {**base, **_plain(options)}
    builders: dict[str, Callable[[Any], Any]] = {
        "rlm": lambda signature: (prepare or _same)(RLM(signature, sub_lm=sub_lm, **options)),
        "direct": lambda signature: Direct(signature, window),
        "truncate": lambda signature: Truncate(signature, window),
        "chunks": lambda signature: Chunks(signature, lambda lm: fitting(lm, window), sub_lm=sub_lm),
        "dspy.RLM": lambda signature: _peer(signature, sub_lm, options),
    }
    if found is None and name in builders:
        return Program(name, builders[name], described if name in ("rlm", "dspy.RLM") else base)
    if found is None:
        raise ConfigurationError(f"no program {name!r}; there are {', '.join(NAMES)}, and found= for one of yours")
    if isinstance(found, dspy.Module):
        return Program(name, lambda signature: (prepare or _same)(found), described)
    return Program(name, lambda signature: _built(name, found, signature, prepare or _same), described)


def _built(name: str, build: Any, signature: Any, prepare: Callable[[Any], Any]) -> Any:
    if not callable(build):
        raise ConfigurationError(f"{name} is a {type(build).__name__}: name a dspy.Module, or what makes one")
    try:
        takes = len(inspect.signature(build).parameters)
    except (TypeError, ValueError):
        takes = 1
    made = build(signature) if takes else build()
    if not callable(made):
        raise ConfigurationError(f"{name} made a {type(made).__name__}, and no program")
    return prepare(made)


def _peer(signature: Any, sub_lm: Any, options: Mapping[str, Any]) -> Any:
    from dspy.primitives import LocalInterpreter

    taken = {
        name: options[name]
        for name in ("max_iters", "max_llm_calls", "max_output_chars")
        if options.get(name) is not None
    }
    return dspy.RLM(signature, sub_lm=sub_lm, interpreter_factory=LocalInterpreter, **taken)


def _same(program: Any) -> Any:
    return program


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as data: an environment by its name, what has no form of its own by its type."""
    plain: dict[str, Any] = {}
    for name, value in options.items():
        if value is None or isinstance(value, (str, int, float, bool)):
            plain[name] = value
        elif isinstance(value, Mapping):
            plain[name] = {str(key): str(item) for key, item in value.items()}
        else:
            plain[name] = str(getattr(value, "name", None) or type(value).__name__)
    return plain
