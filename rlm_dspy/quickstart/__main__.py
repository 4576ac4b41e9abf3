"""The quickstart's run: a document, a question, a model, the sandbox; and what came of it."""

from __future__ import annotations

import os
import sys
import time
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
  rlm-dspy ask "What ...?" your.txt --model openai/NAME
The tour is notebooks/01_first_rlm.ipynb; limits, outcomes and the sandbox are explained in README.md."""


def main() -> int:
    """Run it; 0 if the answer is right."""
    choice = models.choose()
    if choice.model is None:
        print(SCRIPT_NOTE.format(why=choice.why), flush=True)
    else:
        where = f" at {choice.api_base}" if choice.api_base else ""
        print(f"Model: {choice.model}{where} ({choice.why})", flush=True)
    # After the first line, so that something is seen at once: importing DSPy takes a second or two.
    import dspy

    import rlm_dspy
    from rlm_dspy import environments
    from rlm_dspy.console import ConsoleSubscriber
    from rlm_dspy.quickstart import journal

    document = journal.make()
    print(f"Document: a service journal of {len(document.text):,} characters, made just now")
    print(f"Question: {journal.QUESTION}\n", flush=True)
    lm, sub_lm = _models(choice)
    console = ConsoleSubscriber(sys.stdout, outputs=False)
    started = time.monotonic()
    try:
        environment = environments.get(os.environ.get(INTERPRETER) or "local")
        rlm = rlm_dspy.RLM(
            "context, question -> service: str, person: str, errors: int",
            max_iters=15,
            max_llm_calls=200,
            max_seconds=600,
            sub_lm=sub_lm,
            interpreter=environment,
        )
        with dspy.context(lm=lm), rlm_dspy.subscribe(console):
            pred = rlm(context=document.text, question=journal.QUESTION)
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
    return _report(pred, document, environment.describe(), time.monotonic() - started)


def _models(choice: models.Choice) -> tuple[Any, Any]:
    """Root and sub-LM; None for the latter is the root's."""
    if choice.model is not None:
        return choice.lm(), None
    from rlm_dspy.quickstart import script
    from rlm_dspy.testing import ScriptedLM

    return ScriptedLM(script.root, model="scripted/root"), ScriptedLM(script.sub, model="scripted/reader")


def _report(pred: Any, document: Any, about: Any, seconds: float) -> int:
    from rlm_dspy.render import one_line, printable

    def shown(value: Any) -> str:
        return printable(one_line(str(value), 80))

    gold = (document.service, document.person, document.errors)
    right = (str(pred.service).strip().lower(), str(pred.person).strip(), pred.errors) == gold
    print(f"\nAnswer:  service={shown(pred.service)} person={shown(pred.person)} errors={shown(pred.errors)}")
    print(f"Truth:   service={gold[0]} person={gold[1]} errors={gold[2]}  (known: the journal was built round it)")
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
    print(f"\n{NEXT}", flush=True)
    return 0 if right else 1


def _calls(pred: Any) -> int:
    return sum(1 for turn in pred.trajectory for name, _, _ in turn.calls if name.startswith("llm_query"))


if __name__ == "__main__":
    sys.exit(main())
