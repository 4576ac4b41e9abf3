"""The built-in demonstration: one worked task as the turns of a real run.

It stands before the task as long as nobody has compiled a better one. A model that has never seen this protocol
answers with a number instead of code, or prints the result and never submits it; one look at a whole run mends both.
It is picked from a few by what is known of the task at hand: the type of its only output, whether it compares, and
whether the text is records, JSON, or prose. The variable and the output bear the names that the task has.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from rlm_dspy.signatures.contract import Contract, OutputInfo, VariableInfo
from rlm_dspy.signatures.conversation import Message, assistant, user
from rlm_dspy.signatures.guidance import Guidance

_COMPARES = re.compile(
    r"\b(most|least|more|less|fewer|fewest|often|compare|exceeds?|high\w*|low\w*|larg\w+|small\w+|bigg\w+|"
    r"long(er|est)|"
    r"short(er|est)|slow\w+|fast\w+|earli\w+|later|latest|heav\w+|light(er|est)|old(er|est)|young\w+|near\w+|"
    r"far(ther|thest)|further|furthest|cheap\w+|greater|greatest|dear(er|est))\b",
    re.IGNORECASE,
)

_RECORDS = """\
Its first lines:
2031-01-04T09:12 IN apples crates=12 carrier=Otto
2031-01-04T09:40 OUT pears crates=7 carrier=Mila
Lines from its middle:
2031-02-11T16:03 IN plums crates=31 carrier=Otto note: two crates were crushed
Its last line:
2031-03-29T17:55 OUT apples crates=4 carrier=Juna"""

_JSON = """\
Its first lines:
{"at": "2031-01-04T09:12", "way": "IN", "fruit": "apples", "crates": 12, "carrier": "Otto"}
{"at": "2031-01-04T09:40", "way": "OUT", "fruit": "pears", "crates": 7, "carrier": "Mila"}
Lines from its middle:
{"at": "2031-02-11T16:03", "way": "IN", "fruit": "plums", "carrier": "Otto", "note": "two crates were crushed"}
Its last line:
{"at": "2031-03-29T17:55", "way": "OUT", "fruit": "apples", "crates": 4, "carrier": "Juna"}
Each line is JSON. json.loads(line) of the last one from the middle has the keys ['at', 'way', 'fruit', 'carrier']"""

_PROSE = """\
Its first lines:
THE HARBOUR YEARS

Nobody had swept the stairs since autumn. Mila Brandt wagered a spoon on the tide, and lost it by noon. The …
Lines from its middle:
It rained on the nets. In those days Otto Lind kept two goats, Pepper and Salt, behind the customs house. A …
Its last line:
The lamps went out one by one, and Juna Roth counted them."""


_LOOKS = {"records": _RECORDS, "json": _JSON, "prose": _PROSE}


@dataclass(frozen=True)
class _Turn:
    plan: str
    code: str
    output: str = ""


@dataclass(frozen=True)
class _Example:
    task: str
    turns: tuple[_Turn, ...]


_ABOUT_OTTO = _Turn(
    "Name: Otto Lind. I print every sentence with the name, and read them.",
    "import re\n"
    "sentences = re.findall(r'[^.\\n]*Otto Lind[^.\\n]*', {data})\n"
    "print(len(sentences))\nprint('\\n'.join(sentences[:30]))",
    "5\nOtto Lind bet his hat on a race of snails\n In those days Otto Lind kept two goats, Pepper and Salt, behind "
    "the customs house\n For a wager Otto Lind swam the canal\n People said that Otto Lind never slept\n Mila Brandt "
    "would not dance, and Otto Lind bet against her",
)

_PLUMS = "{'at': '2031-01-05T10:31', 'way': 'IN', 'fruit': 'plums', 'crates': 3, 'carrier': 'Mila'}"
_ROWS = "import json\nrows = [json.loads(line) for line in {data}.splitlines()]\n"

_EXAMPLES = {
    ("json", "count"): _Example(
        "How many IN deliveries of apples did Otto carry on 2031-02-11?",
        (
            _Turn(
                "Conditions: IN, apples, Otto, 2031-02-11. Each line is one delivery; I select those that meet all.",
                _ROWS + "hits = [row for row in rows if row.get('way') == 'IN' and row.get('fruit') == 'apples'\n"
                "        and row.get('carrier') == 'Otto' and row.get('at', '').startswith('2031-02-11')]\n"
                "print(len(hits), hits[:1])",
                "7 [{'at': '2031-02-11T08:02', 'way': 'IN', 'fruit': 'apples', 'crates': 12, 'carrier': 'Otto'}]",
            ),
            _Turn("These are the right ones, and their number is the answer.", "SUBMIT({name}=len(hits))"),
        ),
    ),
    ("json", "list"): _Example(
        "Who carried IN deliveries of plums?",
        (
            _Turn(
                "Conditions: IN, plums. Each line is JSON, one delivery; I select those that meet both, and keep each "
                "carrier once.",
                _ROWS + "hits = [row for row in rows if row.get('way') == 'IN' and row.get('fruit') == 'plums']\n"
                "names = sorted({row['carrier'] for row in hits})\nprint(len(hits), hits[:1])\n"
                "print(len(names), names)",
                f"187 [{_PLUMS}]\n3 ['Juna', 'Mila', 'Otto']",
            ),
            _Turn("These are the names, each once: that is the answer.", "SUBMIT({name}=names)"),
        ),
    ),
    ("json", "compare"): _Example(
        "Who carried the most IN deliveries of plums?",
        (
            _Turn(
                "Conditions: IN, plums. Each line is JSON, one delivery; I select those that meet both, and count them "
                "by carrier.",
                _ROWS + "from collections import Counter\n"
                "hits = [row for row in rows if row.get('way') == 'IN' and row.get('fruit') == 'plums']\n"
                "counts = Counter(row['carrier'] for row in hits)\nprint(len(hits), hits[:1])\n"
                "print(counts.most_common())",
                f"187 [{_PLUMS}]\n[('Otto', 87), ('Juna', 54), ('Mila', 46)]",
            ),
            _Turn("The task asks for the most, which is the first.", "SUBMIT({name}=counts.most_common()[0][0])"),
        ),
    ),
    ("json", "find"): _Example(
        "What happened to the plums that came on 2031-02-11?",
        (
            _Turn(
                "Conditions: plums, 2031-02-11. I print the lines that have both, and read them.",
                "hits = [line for line in {data}.splitlines() if 'plums' in line and '2031-02-11' in line]\n"
                "print(len(hits))\nprint('\\n'.join(hits[:10]))",
                '2\n{"at": "2031-02-11T08:02", "way": "IN", "fruit": "plums", "crates": 12, "carrier": "Mila"}\n'
                '{"at": "2031-02-11T16:03", "way": "IN", "fruit": "plums", "carrier": "Otto", '
                '"note": "two crates were crushed"}',
            ),
            _Turn("The second line says it.", "SUBMIT({name}='two crates were crushed')"),
        ),
    ),
    ("records", "count"): _Example(
        "How many IN deliveries of apples did Otto carry on 2031-02-11?",
        (
            _Turn(
                "Conditions: IN, apples, Otto, 2031-02-11. Each line is one delivery; I select those that meet all.",
                "hits = [line for line in {data}.splitlines()\n"
                "        if ' IN ' in line and 'apples' in line and 'Otto' in line and '2031-02-11' in line]\n"
                "print(len(hits), hits[:2])",
                "7 ['2031-02-11T08:02 IN apples crates=12 carrier=Otto', "
                "'2031-02-11T08:31 IN apples crates=9 carrier=Otto']",
            ),
            _Turn("These are the right lines, and their number is the answer.", "SUBMIT({name}=len(hits))"),
        ),
    ),
    ("records", "list"): _Example(
        "Who carried IN deliveries of plums?",
        (
            _Turn(
                "Conditions: IN, plums. Each line is one delivery, the carrier behind `carrier=`; I select those that "
                "meet both, and keep each carrier once.",
                "import re\n"
                "hits = [line for line in {data}.splitlines() if ' IN ' in line and 'plums' in line]\n"
                "names = sorted({re.search(r'carrier=([^ ]+)', line)[1] for line in hits})\n"
                "print(len(hits), hits[:1])\nprint(len(names), names)",
                "187 ['2031-01-05T10:31 IN plums crates=3 carrier=Mila']\n3 ['Juna', 'Mila', 'Otto']",
            ),
            _Turn("These are the names, each once: that is the answer.", "SUBMIT({name}=names)"),
        ),
    ),
    ("records", "compare"): _Example(
        "Who carried the most IN deliveries of plums?",
        (
            _Turn(
                "Conditions: IN, plums. Each line is one delivery, the carrier behind `carrier=`; I select those that "
                "meet both, and count them by carrier.",
                "import re\n"
                "from collections import Counter\n"
                "hits = [line for line in {data}.splitlines() if ' IN ' in line and 'plums' in line]\n"
                "counts = Counter(re.search(r'carrier=([^ ]+)', line)[1] for line in hits)\n"
                "print(len(hits), hits[:1])\nprint(counts.most_common())",
                "187 ['2031-01-05T10:31 IN plums crates=3 carrier=Mila']\n[('Otto', 87), ('Juna', 54), ('Mila', 46)]",
            ),
            _Turn("The task asks for the most, which is the first.", "SUBMIT({name}=counts.most_common()[0][0])"),
        ),
    ),
    ("records", "find"): _Example(
        "What happened to the plums that came on 2031-02-11?",
        (
            _Turn(
                "Conditions: plums, 2031-02-11. I print the lines that have both, and read them.",
                "hits = [line for line in {data}.splitlines() if 'plums' in line and '2031-02-11' in line]\n"
                "print(len(hits))\nprint('\\n'.join(hits[:10]))",
                "2\n2031-02-11T08:02 IN plums crates=12 carrier=Mila\n"
                "2031-02-11T16:03 IN plums crates=31 carrier=Otto note: two crates were crushed",
            ),
            _Turn("The second line says it.", "SUBMIT({name}='two crates were crushed')"),
        ),
    ),
    ("prose", "count"): _Example(
        "How often did Otto Lind make a bet?",
        (
            _Turn(
                "Name: Otto Lind. I take every sentence with the name, keep those about bets, and read them.",
                "import re\n"
                "sentences = re.findall(r'[^.\\n]*Otto Lind[^.\\n]*', {data})\n"
                "hits = [sentence for sentence in sentences if 'bet ' in sentence or 'wager' in sentence]\n"
                "print(len(sentences), len(hits))\nprint('\\n'.join(hits))",
                "17 3\nOtto Lind bet his hat on a race of snails\n For a wager Otto Lind swam the canal\n"
                " Mila Brandt would not dance, and Otto Lind bet against her",
            ),
            _Turn("Each of these is a bet of his.", "SUBMIT({name}=len(hits))"),
        ),
    ),
    ("prose", "list"): _Example(
        "What are the goats of Otto Lind called?",
        (_ABOUT_OTTO, _Turn("The second sentence names them.", "SUBMIT({name}=['Pepper', 'Salt'])")),
    ),
    ("prose", "find"): _Example(
        "Where did Otto Lind keep his goats?",
        (_ABOUT_OTTO, _Turn("The second sentence says it.", "SUBMIT({name}='behind the customs house')")),
    ),
    ("prose", "compare"): _Example(
        "Who owns more goats, Otto Lind or Juna Roth? Give first and last name.",
        (
            _Turn(
                "Names: Otto Lind, Juna Roth. I print the sentences with each name that have the word of the task.",
                "import re\n"
                "for name in ('Otto Lind', 'Juna Roth'):\n"
                "    found = re.findall(r'[^.\\n]*' + name + r'[^.\\n]*', {data})\n"
                "    print(name, [sentence for sentence in found if 'goat' in sentence])",
                "Otto Lind [' In those days Otto Lind kept two goats, Pepper and Salt, behind the customs house']\n"
                "Juna Roth [' The five goats of Juna Roth ate the washing']",
            ),
            _Turn(
                "He has 2 and she has 5. The task asks for more, which is the largest number: max. For fewer it would "
                "be min.",
                "numbers = {'Otto Lind': 2, 'Juna Roth': 5}\nSUBMIT({name}=max(numbers, key=numbers.get))",
            ),
        ),
    ),
}


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
    texts = [variable for variable in contract.variables if variable.type == "str" and not variable.whole]
    form = texts[0].form if texts else "records"
    example = _EXAMPLES[form, kind]
    data = texts[0].name if texts and texts[0].name not in _OWN_NAMES else "text"
    look = _LOOKS[form]
    shown = VariableInfo(
        data, "str", "48,210 characters, 800 lines", repr(look[17:200]), False, "", look if guidance.first_look else ""
    )
    own = Contract(task=example.task, variables=(shown,), functions=(), outputs=(output,))
    rendered = [user(own.render(short=guidance.short_contract))]
    for turn in example.turns:
        code = turn.code.replace("{data}", data).replace("{name}", output.name)
        rendered.append(assistant(reply(turn.plan, code, guidance)))
        if turn.output:
            observation = f"Output:\n{turn.output}"
            rendered.append(user(f"{observation}\n\n{own.reminder()}" if guidance.repeat_task else observation))
    return rendered


_OWN_NAMES = frozenset("Counter counts found hits json line name names numbers re row rows sentence sentences".split())
"""What the examples call their own variables: one that bore the name of the data would hide it."""

FRESH = "A new task, in a fresh REPL: nothing of the above exists in it.\n\n"
"""What stands before the task where a demonstration stands before it."""


def _kind(type_: str, question: str) -> str:
    if type_ in ("int", "float"):
        return "count"
    if type_.startswith(("list", "set", "tuple")):
        return "list"
    return "compare" if _COMPARES.search(question) else "find"


def reply(plan: str, code: str, guidance: Guidance) -> str:
    """An assistant's reply in the dialect of ``guidance``."""
    if guidance.plain_dialect:
        return f"{plan}\n\n```python\n{code}\n```" if plan else f"```python\n{code}\n```"
    return f"[[ ## reasoning ## ]]\n{plan}\n\n[[ ## code ## ]]\n{code}\n\n[[ ## completed ## ]]"
