"""What a sub-call takes and gives: the inputs and outputs of a signature, a predictor, or any module."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dspy
from pydantic_core import PydanticUndefined

from rlm_dspy.environments.records import Record
from rlm_dspy.results import to_sandbox
from rlm_dspy.signatures.adapter import PlainTextAdapter
from rlm_dspy.signatures.contract import FunctionInfo
from rlm_dspy.submit import type_text


@dataclass(frozen=True)
class Shape:
    """A sub-call as code sees it.

    Attributes:
        inputs: Name to type as text, in order.
        optional: The inputs that need not be given.
        outputs: Name to type as text, in order; empty for a module whose outputs are not declared.
        doc: What it does, or ``""``.
        text: One text in, one text out: the prompt is the message and the reply the value.
    """

    inputs: dict[str, str]
    optional: frozenset[str]
    outputs: dict[str, str]
    doc: str = ""
    text: bool = False

    @classmethod
    def of(cls, module: dspy.Module) -> Shape:
        """The shape of a module: its signature's, its first predictor's inputs with its last one's outputs, or its
        ``forward``'s parameters."""
        if isinstance(module, dspy.Predict):
            return cls.of_signatures(module.signature, module.signature)
        signature = getattr(module, "signature", None)
        if isinstance(signature, type) and issubclass(signature, dspy.Signature):
            return cls.of_signatures(signature, signature)
        named = [p for p in _forward(module) if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        predictors = module.predictors()
        outputs = _types(predictors[-1].signature.output_fields) if predictors else {}
        if len(outputs) > 1 and _thinks(module, predictors[-1]):
            # It stands before the outputs that were asked for.
            outputs.pop("reasoning", None)
        if isinstance(module, dspy.ChainOfThought) and outputs:
            inputs = _types(predictors[0].signature.input_fields)
            return cls(inputs, frozenset(), outputs, cls.of_signatures(*2 * (predictors[0].signature,)).doc)
        if named:
            inputs = {p.name: "Any" if p.annotation is p.empty else type_text(p.annotation) for p in named}
            optional = frozenset(p.name for p in named if p.default is not p.empty)
            return cls(inputs, optional, outputs, _first_line(type(module).__doc__))
        if predictors:
            return cls.of_signatures(predictors[0].signature, predictors[-1].signature)
        return cls({}, frozenset(), {}, _first_line(type(module).__doc__))

    @classmethod
    def of_signatures(cls, first: type[dspy.Signature], last: type[dspy.Signature]) -> Shape:
        """The inputs of ``first`` and the outputs of ``last``."""
        outputs = _types(last.output_fields)
        return cls(
            _types(first.input_fields),
            frozenset(
                name
                for name, field in first.input_fields.items()
                if field.default is not PydanticUndefined or field.default_factory is not None
            ),
            outputs,
            "" if _default(first) else " ".join(first.instructions.split()),
            first is last and PlainTextAdapter.fits(first),
        )

    def bind(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The inputs of one call.

        Raises:
            TypeError: One is missing, unknown, or given twice; the message shows the call.
        """
        names = list(self.inputs)
        if len(args) > len(names):
            raise TypeError(f"{name} takes {len(names)} inputs, {len(args)} were given: {self.call(name)}")
        bound = dict(zip(names, args, strict=False))
        if twice := sorted(bound.keys() & kwargs.keys()):
            raise TypeError(f"{name} got {twice[0]!r} twice: {self.call(name)}")
        if unknown := sorted(kwargs.keys() - set(names)):
            raise TypeError(f"{name} has no input {unknown[0]!r}: {self.call(name)}")
        bound |= kwargs
        if missing := [key for key in names if key not in bound and key not in self.optional]:
            raise TypeError(f"{name} needs {', '.join(missing)}: {self.call(name)}")
        return {key: plain(value) for key, value in bound.items()}

    def rows(self, name: str, given: Any, shared: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The inputs of each call of a batch.

        Args:
            name: Of the function.
            given: One entry a call: a dict of inputs by name, or the first input itself.
            shared: Inputs that are the same for every call.
        """
        if isinstance(given, (str, bytes, Mapping)) or not isinstance(given, (list, tuple, range)):
            single, what = name.removesuffix("_batched"), "prompts" if self.text else "entries, one a call"
            raise TypeError(f"{name} takes a list of {what}; for a single call use {self.call(single)}")
        bound = []
        for entry in given:
            by_name = isinstance(entry, dict) and bool(entry) and entry.keys() <= self.inputs.keys()
            named: dict[str, Any] = dict(entry) if by_name and isinstance(entry, dict) else {}
            bound.append(self.bind(name, () if by_name else (entry,), {**shared, **named}))
        return bound

    def value(self, prediction: Any) -> Any:
        """What code gets of ``prediction``: the one output, or a record of several.

        A module of the user's own may give others than its last predictor has; then it gets those.
        """
        if self.outputs and isinstance(prediction, dspy.Example) and self.outputs.keys() <= set(prediction.keys()):
            prediction = dspy.Example(**{name: prediction.get(name) for name in self.outputs})
        return to_sandbox(prediction)

    def call(self, name: str) -> str:
        """The call in Python notation, such as ``classify(item: str, labels: list[str]) -> str``."""
        shown = ", ".join(
            f"{key}: {kind}" + (" = ..." if key in self.optional else "") for key, kind in self.inputs.items()
        )
        return f"{name}({shown}) -> {self._gives()}"

    def batched_call(self, name: str) -> str:
        """The call of the batched twin."""
        first, *others = self.inputs
        shared = "".join(f", {key}: {self.inputs[key]}" for key in others)
        return f"{name}({first}s: list[{self.inputs[first]}]{shared}) -> list[{self._gives()}]"

    def infos(self, name: str) -> tuple[FunctionInfo, FunctionInfo]:
        """What the contract says of the function ``name`` and of its batched twin."""
        batched = "many at once, the answers in their order, and one that failed says so"
        if len(self.inputs) > 1:
            batched += "; an entry may also be a dict of inputs by name"
        return FunctionInfo(self.call(name), self.doc), FunctionInfo(self.batched_call(f"{name}_batched"), batched)

    def _gives(self) -> str:
        if len(self.outputs) == 1:
            return next(iter(self.outputs.values()))
        if not self.outputs:
            return "Any"
        return f"record with {', '.join(f'.{name}: {kind}' for name, kind in self.outputs.items())}"


def plain(value: Any) -> Any:
    """``value`` with the sandbox's records as dicts, as prompts show them."""
    if isinstance(value, Record):
        return value.model_dump()
    if type(value) in (list, tuple):
        return type(value)(map(plain, value))
    if type(value) is dict:
        return {key: plain(item) for key, item in value.items()}
    return value


def _types(fields: Mapping[str, Any]) -> dict[str, str]:
    return {name: type_text(field.annotation) for name, field in fields.items()}


def _thinks(module: dspy.Module, predictor: dspy.Predict) -> bool:
    """True if ``predictor`` is the one of a ``dspy.ChainOfThought``, the module itself or a part of it."""
    parts = [part for _, part in module.named_sub_modules(dspy.ChainOfThought)]
    return any(predictor in part.predictors() for part in parts)


def _default(signature: type[dspy.Signature]) -> bool:
    """True if the instructions are the sentence that DSPy makes of the field names."""
    return signature.instructions.strip().startswith("Given the fields `")


def _first_line(doc: str | None) -> str:
    return (doc or "").strip().split("\n", 1)[0]


def _forward(module: dspy.Module) -> list[inspect.Parameter]:
    """The parameters of the module's ``forward``, or of ``aforward`` where that is all it has."""
    for name in ("forward", "aforward"):
        # Not by the attribute itself: DSPy warns whoever looks at that.
        if name in vars(module):
            return list(inspect.signature(vars(module)[name]).parameters.values())
        if (function := getattr(type(module), name, None)) is not None:
            return list(inspect.signature(function).parameters.values())[1:]
    return []
