"""A task that can only be learned from trajectories, with language models that act by the prompt they are given.

A log holds orders, each with an amount and a customer's note, in the middle of prose. Asked for are the sum of the
amounts and the number of complaints. Three facts decide, none of which stands in the task:

    separator   records are split by ``;;``, not by lines                             `act` must know it
    unit        the header ``UNIT=thousand`` multiplies every amount                  `act` must know it
    irony       a note that ends with ``!s`` means the opposite of what it says       `sub` must know it

A fact is *open* in some logs: they say it in words at their beginning, or in the note itself, so that a model gets them
right by itself. Where it is hidden, the model gets them right only if instructions or demonstrations tell the fact.
Held-out logs hide all three. Half of the logs have an annex, which the root hands to a child, another run of the same
predictors.

`root` and `sub` are the policies of scripted models, deterministic functions of their prompt. `propose` is that of a
reflecting model for every optimiser that asks one: it names a fact only if its prompt holds the lines of a trajectory
that show it. `every_role` is all three in one, for optimisers that use one model for everything.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable
from typing import Any

import dspy

from rlm_dspy import RLM
from rlm_dspy.testing import Call, ScriptedLM, code, outputs

SIGNATURE = "log, query -> amount: int, complaints: int"
QUERY = "What is the sum of all amounts in euros, and how many notes are complaints?"
FACTS = ("separator", "unit", "irony")
RULES = {
    "separator": "Records are separated by `;;`, not by lines: split on it.",
    "unit": "The header UNIT= says what the amounts are counted in: multiply by it.",
    "irony": "A note that ends with !s is ironic: it means the opposite.",
}
"""What a proposer writes where it has found a fact; any text with the fact's mark does as well."""

_SAID = {"separator": "Records below are split by ;; as ever.", "unit": "Amounts below are in thousands of euros."}
_MARKS = {
    "separator": re.compile(r"`;;`|split\(';;'\)"),
    "unit": re.compile(r'header UNIT=|"UNIT=thousand" in header'),
    "irony": re.compile("!s"),
}
_EVIDENCE = {
    "separator": re.compile(r"sample: .{0,400};;", re.DOTALL),
    "unit": re.compile(r"header: .{0,200}UNIT=", re.DOTALL),
    "irony": re.compile(r"Note: [^\n]{0,200}!s"),
}
_GOOD = ("quick delivery", "friendly staff", "lovely colours", "works at once", "fair price")
_BAD = ("late again", "box was wet", "wrong size", "nobody answers", "broken handle")
_PROSE = "The morning was quiet and nothing of note came in by the usual post. "
_ASK = "Note: {note}\nIs it a complaint or praise?"


# ---------------------------------------------------------------------------------------------------------- examples


def example(
    seed: int, open_: Iterable[str], annex: bool = False, chars: int = 6_000, apart: bool = True
) -> dspy.Example:
    """One log.

    Args:
        seed: Which.
        open_: The facts that can be seen without being known.
        annex: Some of its records stand in an annex.
        chars: About its length, nearly all of it prose.
        apart: Where one of separator and unit is open and the other is not, the other is not needed, so that each can
            be learned by itself.

    Returns:
        An example with ``log``, ``query``; ``amount``, ``complaints``; ``hidden``, the facts that must be known.
    """
    rng, visible = random.Random(seed), frozenset(open_)
    records, amounts, complaints, by_words = [], [], 0, 0
    for _ in range(4):
        bad, ironic = rng.random() < 0.5, rng.random() < 0.75
        note = rng.choice(_BAD if bad else _GOOD)
        if ironic:
            note += ", to say it with irony !s" if "irony" in visible else " !s"
        amounts.append(rng.randrange(11, 99))
        by_words += bad
        complaints += bad != ironic
        records.append(f"order {rng.randrange(100, 999)} amount {amounts[-1]} note {note}")
    if by_words == complaints:
        # Nothing has to be read between the lines, or it comes to the same.
        return example(seed + 10_007, open_, annex, chars, apart)
    separator = "\n" if apart and "unit" in visible and "separator" not in visible else ";;"
    times = 1 if apart and "separator" in visible and "unit" not in visible else 1_000
    unit = "UNIT=thousand" if times == 1_000 else "UNIT=one"
    said = "".join(f"{words}\n" for fact, words in _SAID.items() if fact in visible)
    filler = (_PROSE * (chars // len(_PROSE) + 1))[: chars // 2]

    def block(some: list[str]) -> str:
        return f"BEGIN {unit}\n{separator.join(some)}\nEND\n"

    log = f"{said}{filler}\n{block(records[:2] if annex else records)}{filler}"
    if annex:
        log += f"\nANNEX\n{said}{block(records[2:])}{_PROSE}"
    needed = {"separator": separator == ";;", "unit": times > 1, "irony": True}
    return dspy.Example(
        log=log,
        query=QUERY,
        amount=sum(amounts) * times,
        complaints=complaints,
        hidden=tuple(fact for fact in FACTS if needed[fact] and fact not in visible),
    ).with_inputs("log", "query")


def trainset(chars: int = 6_000) -> list[dspy.Example]:
    """Ten logs: some open in every fact, in one, or in none."""
    plans = [("separator", "irony"), ("unit", "irony"), FACTS, ("separator",), ("unit",), FACTS, ("irony",), (), (), ()]
    return [example(n, plan, annex=n % 2 == 1, chars=chars) for n, plan in enumerate(plans)]


def devset(chars: int = 6_000) -> list[dspy.Example]:
    """Six logs, as mixed as those of training."""
    plans = [FACTS, ("unit", "irony"), ("separator",), (), (), ()]
    return [example(100 + n, plan, annex=n % 2 == 1, chars=chars) for n, plan in enumerate(plans)]


def heldout(chars: int = 6_000) -> list[dspy.Example]:
    """Six logs that hide every fact."""
    return [example(200 + n, (), annex=n % 2 == 1, chars=chars) for n in range(6)]


def metric(gold: Any, pred: Any, trace: Any = None, *_: Any) -> float:
    """Half for the amount, half for the complaints; with a trace, which asks for a verdict, both or nothing."""
    amount = float(getattr(pred, "amount", None) == gold.amount)
    complaints = float(getattr(pred, "complaints", None) == gold.complaints)
    return amount * complaints if trace is not None else (amount + complaints) / 2


def feedback(gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> dspy.Prediction:
    """`metric` for GEPA; its words say what was wrong, not why."""
    wrong = [name for name in ("amount", "complaints") if getattr(pred, name, None) != gold[name]]
    said = f"Wrong: {', '.join(wrong)}." if wrong else "Right."
    return dspy.Prediction(score=metric(gold, pred), feedback=said)


def scores(program: dspy.Module, examples: Iterable[dspy.Example] | None = None) -> dict[str, float]:
    """How well each role does over ``examples`` (held-out ones if None), 0 to 1.

    ``act`` is the share of right amounts, to which no sub-call adds; ``sub`` the share of notes that the sub-LM reads
    rightly, asked directly; ``all`` the mean of `metric`.
    """
    given = list(heldout() if examples is None else examples)
    predictions = [program(**one.inputs()) for one in given]
    inner = program.programs[0] if hasattr(program, "programs") else program
    return {
        "act": sum(p.amount == e.amount for e, p in zip(given, predictions, strict=True)) / len(given),
        "sub": sub_score(inner),
        "all": sum(metric(e, p) for e, p in zip(given, predictions, strict=True)) / len(given),
    }


def sub_score(program: RLM) -> float:
    """The share of ironic notes that ``program.sub`` reads rightly: praise that complains, complaints that praise."""
    from rlm_dspy.signatures import PlainTextAdapter

    wanted = {f"{note} !s": "complaint" if note in _GOOD else "praise" for note in (*_GOOD, *_BAD)}
    with dspy.context(adapter=PlainTextAdapter(), lm=program.sub.lm or program.sub_lm or dspy.settings.lm):
        given = [program.sub(prompt=_ASK.format(note=note)).response for note in wanted]
    return sum(a == b for a, b in zip(given, wanted.values(), strict=True)) / len(wanted)


# ------------------------------------------------------------------------------------------------ the language models


def known(call: Call) -> set[str]:
    """The facts that stand in the prompt of ``call``: in its instructions, its demonstrations, or the run itself."""
    told = "\n".join(message["content"] for message in call.messages[: len(call.messages) - len(call.own)])
    shown = call.own[0]["content"]
    facts = {fact for fact, mark in _MARKS.items() if mark.search(told)}
    facts |= {fact for fact, words in _SAID.items() if words in shown}
    if re.search(r"amount=\d+000\b", told):
        # Answers to other tasks show that the records' amounts, of two digits, are not in euros.
        facts.add("unit")
    return facts


_LOOK = """\
at = log.index("BEGIN")
print("header:", log[at:].splitlines()[0])
print("sample:", log[at:].split("END")[0][-180:])"""

_WORK = """\
def read(text):
    header, _, rest = text[text.index("BEGIN"):].partition("\\n")
    records = rest.split("\\nEND")[0].split({separator!r})
    found = [r for r in records if " amount " in r]
    return {times}, found
times, records = read(log)
amount = times * sum(int(r.split(" amount ")[1].split()[0]) for r in records)
notes = [r.split(" note ")[1].split({separator!r})[0].strip() for r in records]
answers = llm_query_batched(["Note: " + note + "\\nIs it a complaint or praise?" for note in notes])
complaints = sum("complaint" in answer for answer in answers)
print(len(records), "records", amount, complaints, notes[:2], answers[:2])"""

_ANNEX = """
if "ANNEX" in log:
    more = rlm_query("Sum of amounts and number of complaints, as 'A B'", log=log[log.index("ANNEX"):])
    amount, complaints = amount + int(more.split()[0]), complaints + int(more.split()[1])
    print("annex:", more)"""


def root(call: Call, guessed: Iterable[str] = ()) -> str:
    """The root of parent and child: looks, works, submits. It is right about what it knows, and what it guessed."""
    if "No more code can run" in call.prompt:
        return outputs(amount=0, complaints=0, response="0 0")
    child = "SUBMIT(response" in call.own[0]["content"]
    if call.turn == 0:
        return code(_LOOK, "Look at the records first.")
    if call.turn == 1:
        facts = known(call).union(guessed)
        separator = ";;" if "separator" in facts else "\n"
        times = '1000 if "UNIT=thousand" in header else 1' if "unit" in facts else "1"
        work = _WORK.format(separator=separator, times=times)
        return code(work if child else work + _ANNEX, "Add up and ask about the notes.")
    return code('SUBMIT(response=f"{amount} {complaints}")' if child else "SUBMIT(amount, complaints)", "Done.")


def sub(call: Call, guessed: Iterable[str] = ()) -> str:
    """Reads a note by its words, and between the lines if it knows how, or guessed so."""
    note = call.prompt.partition("Note: ")[2].partition("\n")[0]
    told = "\n".join(message["content"] for message in call.messages[:-1])
    bad = any(words in note for words in _BAD)
    aware = "!s" in told or "irony" in note or "irony" in guessed
    return "complaint" if bad != (aware and "!s" in note) else "praise"


def found(prompt: str) -> list[str]:
    """The facts that the trajectories in ``prompt`` show, or that it says as rules already."""
    text = prompt.replace("\\n", "\n")
    return [fact for fact, pattern in _EVIDENCE.items() if pattern.search(text) or RULES[fact] in text]


def propose(call: Call) -> str:
    """What a proposer of any stock optimiser says: the rules for the facts that its prompt shows, or a platitude."""
    text = "\n".join(message["content"] for message in call.messages)
    rules = " ".join(RULES[fact] for fact in found(text)) or "Work with care."
    replies: dict[str, Any] = {
        "module_advice": dict.fromkeys(("act", "sub"), rules),
        "natural_language_rules": rules,
        "proposed_instruction": rules,
        "proposed_prefix_for_output_field": "Answer:",
        "new_instruction": rules,
    }
    _, asks, form = text.rpartition("Respond with the corresponding output fields")
    if asks:
        fields = [name for name in re.findall(r"\[\[ ## (\w+) ## \]\]", form) if name != "completed"]
        return outputs(**{name: replies.get(name, "Orders in logs.") for name in fields})
    _, asks, form = text.rpartition("Respond with a JSON object in the following order of fields")
    if asks:
        return json.dumps({name: replies.get(name, "Orders in logs.") for name in re.findall(r"`(\w+)`", form)})
    return f"```\n{rules}\n```"


def every_role(call: Call, guessed: Iterable[str] = ()) -> str:
    """One model in all seats, as ``set_lm`` makes it: root, sub-LM and proposer."""
    if "Note: " in call.prompt and call.prompt.rstrip().endswith("praise?"):
        return sub(call, guessed)
    return root(call, guessed) if "REPL" in call.system else propose(call)


def program(sandbox: Any, **options: Any) -> RLM:
    """The program that is to be optimised: sub-calls, and one level of children."""
    given: dict[str, Any] = {"sub_lm": ScriptedLM(sub, model="scripted/sub")} | options
    return RLM(SIGNATURE, interpreter_factory=sandbox, max_depth=2, max_iters=4, **given)
