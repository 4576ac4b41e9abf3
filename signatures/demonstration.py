"""The built-in demonstration: one worked task as the turns of a real run.

It stands before the task as long as nobody has compiled a better one. A model that has never seen this protocol
answers with a number instead of code, or prints the result and never submits it; one look at a whole run mends both.
It is picked from a few by what is known of the task at hand: the type of its only output, whether it compares or adds
up, and how the text is written. The variable and the output bear the names that the task has.
"""

from __future__ import annotations

import re

from rlm_dspy.signatures.contract import Contract, OutputInfo, VariableInfo
from rlm_dspy.signatures.conversation import Message, assistant, user
from rlm_dspy.signatures.examples import EXAMPLES
from rlm_dspy.signatures.guidance import Guidance

_COMPARES = re.compile(
    r"\b(most|least|best|worst|top|ahead|leads?|maximum|minimum|busiest|more|less|fewer|fewest|often|compare|exceeds?|high\w*|low\w*|larg\w+|small\w+|bigg\w+|"
    r"long(er|est)|"
    r"short(er|est)|slow\w+|fast\w+|earli\w+|later|latest|heav\w+|light(er|est)|old(er|est)|young\w+|near\w+|"
    r"far(ther|thest)|further|furthest|cheap\w+|greater|greatest|dear(er|est))\b",
    re.IGNORECASE,
)

_ADDS = re.compile(r"\b(total(?! number)|sum|altogether|revenue|turnover|average|mean)\b", re.IGNORECASE)

def messages(contract: Contract, guidance: Guidance) -> list[Message]:
    """The demonstration for a run as messages, user first.

    Args:
        contract: The run's own.
        guidance: How contract and replies are written.
    """
    outputs = contract.outputs
    output, kind = OutputInfo("answer", "str"), "find"
    if len(outputs) == 1:
        kind = _kind(outputs[0].type, contract.question)
        if kind != "find" or outputs[0].type == "str":
            output = OutputInfo(outputs[0].name, outputs[0].type)
    texts = [v for v in contract.variables if not v.whole and (v.type == "str" or v.form == "rows")]
    form = texts[0].form if texts else "records"
    everything = texts and texts[0].searched and not texts[0].words
    example = EXAMPLES.get((form, f"{kind} all" if everything else kind)) or EXAMPLES[form, kind]
    plain = "table" if form == "rows" else "text"
    data = texts[0].name if texts and texts[0].name not in _OWN_NAMES else plain
    look = example.look
    kind_of, size = ("list[dict]", "800 items") if form == "rows" else ("str", "48,210 characters, 800 lines")
    begins = repr(look.partition("\n")[2][:183])
    shown = VariableInfo(data, kind_of, size, begins, False, "", look if guidance.first_look else "")
    own = Contract(task=example.task, variables=(shown,), functions=(), outputs=(output,))
    rendered = [user(own.render(short=guidance.short_contract))]
    for turn in example.turns:
        code = turn.code.replace("{data}", data).replace("{name}", output.name)
        rendered.append(assistant(reply(turn.plan, code, guidance)))
        if turn.output:
            observation = f"Output:\n{turn.output}"
            rendered.append(user(f"{observation}\n\n{own.reminder()}" if guidance.repeat_task else observation))
    return rendered


_OWN_NAMES = frozenset(
    "Counter counts csv found hits io json line name names numbers re row rows sentence sentences total".split()
)
"""What the examples call their own variables: one that bore the name of the data would hide it."""

FRESH = "A new task, in a fresh REPL: nothing of the above exists in it.\n\n"
"""What stands before the task where a demonstration stands before it."""


def _kind(type_: str, question: str) -> str:
    if type_ in ("int", "float"):
        return "sum" if _ADDS.search(question) else "count"
    if type_.startswith(("list", "set", "tuple")):
        return "list"
    return "compare" if _COMPARES.search(question) else "find"


def reply(plan: str, code: str, guidance: Guidance) -> str:
    """An assistant's reply in the dialect of ``guidance``."""
    if guidance.plain_dialect:
        return f"{plan}\n\n```python\n{code}\n```" if plan else f"```python\n{code}\n```"
    return f"[[ ## reasoning ## ]]\n{plan}\n\n[[ ## code ## ]]\n{code}\n\n[[ ## completed ## ]]"
