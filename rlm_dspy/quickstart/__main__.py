"""The quickstart's run: a document, a question, a model, the sandbox; and what came of it."""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

from rlm_dspy.quickstart import models

SCRIPT_NOTE = (
    "SCRIPTED RUN: the language model is played by replies written beforehand ({why}); the code runs for real. "
    "For a real model: RLM_DSPY_MODEL=openai/NAME make quickstart, with the provider's key set."
)

INTERPRETER = "RLM_DSPY_INTERPRETER"
"""Environment variable that names another environment than ``local``."""

NEXT = """\
Next:
  from rlm_dspy import RLM
  rlm = RLM("context, query -> answer: str", max_seconds=300)
  pred = rlm(context=open("your.txt").read(), query="What ...?")
or, on the command line (in this checkout: .venv/bin/rlm-dspy):
  rlm-dspy ask "What ...?" your.txt --model {model}
The tour begins with notebooks/01_first_rlm.ipynb; limits, outcomes and the sandbox are explained in README.md."""


OPTIONS: dict[str, Any] = {"max_iters": 15, "max_llm_calls": 200, "max_seconds": 600, "adhoc": False}
"""How the quickstart runs an RLM."""

EMBEDDED_NOTE = """\
Model: {title}, on this machine, because {why}.
       {download} Without the model: SCRIPTED=1 make quickstart"""


def main() -> int:
    """Run it; 0 if the answer is right."""
    choice = models.choose()
    _announce(choice)
    # After the first line, so that something is seen at once: importing DSPy takes a second or two.
    import dspy

    import rlm_dspy
    from rlm_dspy import environments
    from rlm_dspy.console import ConsoleSubscriber
    from rlm_dspy.quickstart import journal

    try:
        choice, lm, sub_lm = _models(choice)
    except KeyboardInterrupt:
        print("interrupted; what was downloaded is kept", file=sys.stderr)
        return 130
    task = _Task.easy() if choice.embedded else _Task.hard()
    document = journal.make()
    print(f"Document: a service journal of {len(document.text):,} characters, made just now")
    print(f"Question: {task.question}\n", flush=True)
    console = ConsoleSubscriber(sys.stdout, outputs=False)
    started = time.monotonic()
    try:
        environment = environments.get(os.environ.get(INTERPRETER) or "local")
        rlm = rlm_dspy.RLM(
            task.signature,
            **OPTIONS,
            sub_lm=sub_lm,
            interpreter=environment,
        )
        with dspy.context(lm=lm), rlm_dspy.subscribe(console):
            pred = rlm(context=document.text, question=task.question)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except (rlm_dspy.SandboxUnavailableError, rlm_dspy.ConfigurationError) as error:
        print(f"\nThe sandbox cannot be used here: {error}", file=sys.stderr)
        print(f"To run it all the same, not confined: {INTERPRETER}=subprocess make quickstart", file=sys.stderr)
        return 1
    except Exception as error:
        from rlm_dspy.redact import error_text

        print(f"\nThe run failed: {error_text(error)}", file=sys.stderr)
        print("To see it work without this model: SCRIPTED=1 make quickstart", file=sys.stderr)
        return 1
    finally:
        console.close()
    return _report(pred, task.gold(document), environment.describe(), time.monotonic() - started, choice.embedded)


@dataclasses.dataclass(frozen=True)
class _Task:
    """What is asked: the question, its signature, and the outputs that are true of a journal."""

    question: str
    signature: str
    outputs: dict[str, str]

    @classmethod
    def hard(cls) -> _Task:
        """Notes to be read, lines to be counted."""
        from rlm_dspy.quickstart import journal

        outputs = {"service": "service", "person": "person", "errors": "errors"}
        return cls(journal.QUESTION, "context, question -> service: str, person: str, errors: int", outputs)

    @classmethod
    def easy(cls) -> _Task:
        """Lines to be counted: what a model of 1.5 billion parameters can be trusted with."""
        from rlm_dspy.quickstart import journal

        return cls(journal.COUNT_QUESTION, "context, question -> errors: int", {"errors": "counted"})

    def gold(self, document: Any) -> dict[str, Any]:
        """Output to its true value."""
        return {name: getattr(document, attribute) for name, attribute in self.outputs.items()}


def _announce(choice: models.Choice) -> None:
    if choice.embedded:
        from rlm_dspy.models import catalog, store

        model = catalog.resolve(catalog.DEFAULT)
        here = os.path.isfile(store.target(model))
        megabytes = (model.size or 0) / 1e6
        download = "Its file is here already." if here else f"{megabytes:,.0f} MB are downloaded now ({model.license})."
        note = EMBEDDED_NOTE.format(title=model.name, why=choice.why, download=download)
        print(note, flush=True)
    elif choice.model is None:
        print(SCRIPT_NOTE.format(why=choice.why), flush=True)
    else:
        where = f" at {choice.api_base}" if choice.api_base else ""
        print(f"Model: {choice.model}{where} ({choice.why})", flush=True)


def _models(choice: models.Choice) -> tuple[models.Choice, Any, Any]:
    """The choice as it turned out, root and sub-LM; None for the latter is the root's."""
    if choice.embedded:
        from rlm_dspy.errors import RLMError

        try:
            return choice, choice.lm(), None
        except RLMError as error:
            print(f"The embedded model cannot be used here: {error}", file=sys.stderr)
            choice = models.Choice(None, "the embedded model cannot be used here")
            _announce(choice)
    if choice.model is not None:
        return choice, choice.lm(), None
    from rlm_dspy.quickstart import script
    from rlm_dspy.testing import ScriptedLM

    return choice, ScriptedLM(script.root, model="scripted/root"), ScriptedLM(script.sub, model="scripted/reader")


def _report(pred: Any, gold: dict[str, Any], about: Any, seconds: float, embedded: bool) -> int:
    from rlm_dspy.render import one_line, printable

    def listed(values: Mapping[str, Any]) -> str:
        return " ".join(f"{name}={printable(one_line(str(values[name]), 80))}" for name in gold)

    right = all(str(pred[name]).strip().lower() == str(value).lower() for name, value in gold.items())
    print(f"\nAnswer:  {listed(pred)}")
    print(f"Truth:   {listed(gold)}  (known: the journal was built round it)")
    print(f"Verdict: {'the answer is right' if right else 'the answer is WRONG'}")
    limit = f" at {pred.outcome.limit}" if pred.outcome.limit else ""
    print(f"Outcome: {pred.outcome}{limit}; {len(pred.trajectory)} turns, {_calls(pred)} sub-calls, {seconds:.1f} s")
    confined = "confined" if about.confined else "NOT confined"
    print(f"Sandbox: {about.environment} ({', '.join(about.layers)}); {confined}")
    for name in ("files", "network", "secrets", "memory", "processes", "disk", "time"):
        bound = getattr(about, name)
        print(f"         {name + ':':10} {bound.level} ({bound.how})")
    for missing in about.missing:
        print(f"         missing: {missing}")
    print(f"\n{NEXT.format(model='local' if embedded else 'openai/NAME')}", flush=True)
    return 0 if right else 1


def _calls(pred: Any) -> int:
    return sum(1 for turn in pred.trajectory for name, _, _ in turn.calls if name.startswith("llm_query"))


if __name__ == "__main__":
    sys.exit(main())
