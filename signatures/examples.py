"""The worked examples that the demonstration shows: a harbour's book, written in five ways, and a story.

The same questions are asked of the same deliveries, be they lines of ``key=value``, columns, JSON, CSV or dicts: only
how a row is read differs, which is what a form says. The tests run the code of every example over such a book.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Turn:
    """A reply and what the REPL showed of it; ``{data}`` and ``{name}`` stand for the names of text and output."""

    plan: str
    code: str
    output: str = ""


@dataclass(frozen=True)
class Example:
    """A task, the look at its text, and the turns that solve it."""

    task: str
    look: str
    turns: tuple[Turn, ...]


@dataclass(frozen=True)
class _Form:
    """How deliveries are written and read.

    Attributes:
        head: What is shown of the text.
        note: What stands under it.
        line: How the lines that `find` prints are written.
        read: Code that makes what ``each`` goes through.
        row: One delivery, as `repr` shows it, by its five fields.
        has: The condition that a field has a value, as code.
        get: A field, as code.
        guard: The condition that a row has all fields, as code; ``""`` if each has.
        where: What the first look says of where a field's word stands.
        unit: What one of them is called.
        found: Code that prints the deliveries that were found.
    """

    head: str
    note: str
    line: Callable[..., str]
    read: str
    each: str
    row: Callable[..., str]
    has: Callable[[str, str], str]
    get: Callable[[str], str]
    guard: str
    where: dict[str, str]
    unit: str = "line"
    found: str = "print('\\n'.join(hits[:10]))"


WORDS = "Words of the task that stand in it: "
"""How the line of the first look begins that names them; without any, a task is taken to name no condition."""

_BOOK = (
    ("2031-01-04T09:12", "IN", "apples", 12, "Otto", ""),
    ("2031-01-04T09:40", "OUT", "pears", 7, "Mila", ""),
    ("2031-02-11T16:03", "IN", "plums", 31, "Otto", "two crates were crushed"),
    ("2031-03-29T17:55", "OUT", "apples", 4, "Juna", ""),
)


def _look(line: Callable[..., str], before: str = "", unit: str = "line", from_middle: str = "") -> str:
    first, second, middle, last = (line(*row) for row in _BOOK)
    from_middle = from_middle or "Lines from its middle"
    return f"Its first {unit}s:\n{before}{first}\n{second}\n{from_middle}:\n{middle}\nIts last {unit}:\n{last}"


def _record(at: str, way: str, fruit: str, crates: int, carrier: str, note: str = "") -> str:
    return f"{at} {way} {fruit} crates={crates} carrier={carrier}" + (f" note: {note}" if note else "")


def _columns(at: str, way: str, fruit: str, crates: int, carrier: str, note: str = "") -> str:
    return f"{at} {way} {fruit} {crates} {carrier}" + (f" {note}" if note else "")


def _json(at: str, way: str, fruit: str, crates: int, carrier: str, note: str = "") -> str:
    more = f', "note": "{note}"' if note else ""
    return f'{{"at": "{at}", "way": "{way}", "fruit": "{fruit}", "crates": {crates}, "carrier": "{carrier}"{more}}}'


def _csv(at: str, way: str, fruit: str, crates: int, carrier: str, note: str = "") -> str:
    return f"{at},{way},{fruit},{crates},{carrier},{note}"


def _row(*fields: object) -> str:
    given = (*map(str, fields), "")[: len(_FIELDS) + 1]
    return repr(dict(zip((*_FIELDS, "note"), given, strict=True)))


_FIELDS = ("at", "way", "fruit", "crates", "carrier")
_PLACES = {name: place for place, name in enumerate(_FIELDS)}


def _record_has(name: str, value: str) -> str:
    wanted = {"at": value, "way": f" {value} ", "carrier": f"carrier={value}"}
    return f"{wanted.get(name, value)!r} in line"


_FORMS = {
    "records": _Form(
        head=_look(_record),
        note="",
        line=_record,
        read="",
        each="line for line in {data}.splitlines()",
        row=lambda *fields: repr(_record(*fields)),
        has=_record_has,
        get=lambda name: f"re.search(r'{name}=(\\S+)', line)[1]",
        guard="'carrier=' in line",
        where={"fruit": ", mostly as word [2]", "carrier": ", mostly as 'carrier={}'", "at": ""},
    ),
    "columns": _Form(
        head=_look(_columns),
        note="One line split at spaces: [0] 2031-02-11T16:03  [1] IN  [2] plums  [3] 31  [4] Otto  [5] two  "
        "[6] crates  [7] were  [8] crushed",
        line=_columns,
        read="rows = [line.split() for line in {data}.splitlines()]\n",
        each="row for row in rows",
        row=lambda *fields: repr(_columns(*fields).split()),
        has=lambda name, value: (
            f"row[0].startswith({value!r})" if name == "at" else f"row[{_PLACES[name]}] == {value!r}"
        ),
        get=lambda name: f"row[{_PLACES[name]}]",
        guard="len(row) > 4",
        where={"fruit": ", mostly as word [2]", "carrier": ", mostly as word [4]", "at": ""},
    ),
    "json": _Form(
        head=_look(_json),
        note="Each line is JSON. json.loads(line) of the last one from the middle has the keys ['at', 'way', 'fruit', "
        "'crates', 'carrier', 'note']",
        line=_json,
        read="import json\nrows = [json.loads(line) for line in {data}.splitlines()]\n",
        each="row for row in rows",
        row=lambda *fields: repr(dict(zip(_FIELDS, fields, strict=True))),
        has=lambda name, value: (
            f"row.get('at', '').startswith({value!r})" if name == "at" else f"row.get({name!r}) == {value!r}"
        ),
        get=lambda name: f"row[{name!r}]",
        guard="",
        where={
            "fruit": ", mostly in the field 'fruit'",
            "carrier": ", mostly in the field 'carrier'",
            "at": ", mostly at the beginning of the field 'at'",
        },
    ),
    "csv": _Form(
        head=_look(_csv, "at,way,fruit,crates,carrier,note\n"),
        note="It is CSV. csv.DictReader gives rows with the columns ['at', 'way', 'fruit', 'crates', 'carrier', "
        "'note']",
        line=_csv,
        read="import csv, io\nrows = list(csv.DictReader(io.StringIO({data})))\n",
        each="row for row in rows",
        row=lambda *fields: repr(dict(zip((*_FIELDS, "note"), (*map(str, fields), ""), strict=True))),
        has=lambda name, value: (
            f"row['at'].startswith({value!r})" if name == "at" else f"row[{name!r}] == {value!r}"
        ),
        get=lambda name: f"row[{name!r}]",
        guard="",
        where={
            "fruit": ", mostly in the column 'fruit'",
            "carrier": ", mostly in the column 'carrier'",
            "at": ", mostly at the beginning of the column 'at'",
        },
    ),
}
_FORMS["rows"] = dataclasses.replace(
    _FORMS["csv"],
    head=_look(_row, "", "record", "A record from its middle"),
    note="""\
Its fields, all of them text:
'at': dates as text, '2031-01-04T09:12' to '2031-03-29T17:55'
'way': 'IN' 701 times, 'OUT' 99 times
'fruit': 'plums' 409 times, 'apples' 214 times, 'pears' 177 times
'crates': numbers as text, '1' to '40'; a number by int(row['crates'])
'carrier': 'Otto' 301 times, 'Mila' 263 times, 'Juna' 236 times
'note': 41 different texts, most often 'wet' 9 times, 'late' 8 times, 'returned' 6 times; empty 702 times""",
    line=_row,
    read="",
    each="row for row in {data}",
    unit="record",
    found="for row in hits[:10]:\n    print(row)",
    where={
        "fruit": ", mostly in the field 'fruit'",
        "carrier": ", mostly in the field 'carrier'",
        "at": ", mostly at the beginning of the field 'at'",
    },
)
_TIMES = {"apples": 214, "plums": 409, "Otto": 301, "2031-02-11": 96}


def _words_line(form: _Form, wanted: dict[str, str]) -> str:
    stand = ((name, value) for name, value in wanted.items() if name != "way")
    said = "; ".join(f"{value!r} {_TIMES[value]} times{form.where[name].format(value)}" for name, value in stand)
    return f"{WORDS}{said}" if said else ""


def _example(
    form: _Form, task: str, wanted: dict[str, str], then: str, output: str, submit: Turn, guard: bool
) -> Example:
    """A task about the book: the rows that it means are selected, and ``then`` does the rest with them."""
    looked = "\n".join(filter(None, [form.head, form.note, _words_line(form, wanted)]))
    conditions = [form.guard] if guard and form.guard else []
    conditions += [form.has(name, value) for name, value in wanted.items()]
    joined = " and ".join(conditions)
    if len(joined) > 70:
        joined = "\n        and ".join(conditions)
    everything = "rows" if form.read else "{data}"
    selected = f"[{form.each}\n        if {joined}]" if conditions else everything
    code = f"{form.read}hits = {selected}\nprint(len(hits), hits[:1])"
    imports = "import re\n" if "re." in then else ""
    imports += "from collections import Counter\n" if "Counter(" in then else ""
    if wanted:
        plan = (
            f"Conditions: {', '.join(wanted.values())}. The other words of the task are none. Each {form.unit} is one "
            "delivery; I keep those that meet all of them."
        )
    else:
        plan = f"The task names no condition: each {form.unit} is one delivery, and I take them all."
    return Example(task, looked, (Turn(plan, f"{imports}{code}{then}", output), submit))


def _count(form: _Form) -> Example:
    row = form.row("2031-02-11T08:02", "IN", "apples", 12, "Otto")
    return _example(
        form,
        "How many IN deliveries of apples did Otto carry on 2031-02-11?",
        {"way": "IN", "fruit": "apples", "carrier": "Otto", "at": "2031-02-11"},
        "",
        f"7 [{row}]",
        Turn("These are the right ones, and their number is the answer.", "SUBMIT({name}=len(hits))"),
        guard=bool(form.read),
    )


_PLUMS = ("2031-01-05T10:31", "IN", "plums", 3, "Mila")


_FIRST = ("2031-01-04T09:12", "IN", "apples", 12, "Otto")


def _sum(form: _Form, every: bool = False) -> Example:
    return _example(
        form,
        f"What is the sum of the crates{'' if every else ' in the IN deliveries of plums'}?",
        {} if every else {"way": "IN", "fruit": "plums"},
        f"\ntotal = sum(int({form.get('crates')}) for {_variable(form)} in hits)\nprint(total)",
        f"200 [{form.row(*_FIRST)}]\n1169" if every else f"187 [{form.row(*_PLUMS)}]\n1108",
        Turn("These are the right ones, and the sum is the answer.", "SUBMIT({name}=total)"),
        guard=True,
    )


def _list(form: _Form, every: bool = False) -> Example:
    return _example(
        form,
        "Which carriers are there?" if every else "Who carried IN deliveries of plums?",
        {} if every else {"way": "IN", "fruit": "plums"},
        f"\nnames = sorted({{{form.get('carrier')} for {_variable(form)} in hits}})\nprint(len(names), names)",
        (f"200 [{form.row(*_FIRST)}]" if every else f"187 [{form.row(*_PLUMS)}]") + "\n3 ['Juna', 'Mila', 'Otto']",
        Turn("These are the names, each once: that is the answer.", "SUBMIT({name}=names)"),
        guard=True,
    )


def _compare(form: _Form, every: bool = False) -> Example:
    counts = "[('Otto', 96), ('Juna', 56), ('Mila', 48)]" if every else "[('Otto', 87), ('Juna', 54), ('Mila', 46)]"
    return _example(
        form,
        "Which carrier had the most deliveries?" if every else "Who carried the most IN deliveries of plums?",
        {} if every else {"way": "IN", "fruit": "plums"},
        f"\ncounts = Counter({form.get('carrier')} for {_variable(form)} in hits)\nprint(counts.most_common())",
        (f"200 [{form.row(*_FIRST)}]" if every else f"187 [{form.row(*_PLUMS)}]") + f"\n{counts}",
        Turn(
            "The task asks for the most, which is the first; the fewest would be the last, [-1].",
            "SUBMIT({name}=counts.most_common()[0][0])",
        ),
        guard=True,
    )


def _variable(form: _Form) -> str:
    return form.each.partition(" ")[0]


def _find(form: _Form) -> Example:
    lines = [
        form.line("2031-02-11T08:02", "IN", "plums", 12, "Mila"),
        form.line("2031-02-11T16:03", "IN", "plums", 31, "Otto", "two crates were crushed"),
    ]
    each, plums, day = "line for line in {data}.splitlines()", "'plums' in line", "'2031-02-11' in line"
    if form.unit == "record":
        each, plums, day = form.each, form.has("fruit", "plums"), form.has("at", "2031-02-11")
    return Example(
        "What happened to the plums that came on 2031-02-11?",
        "\n".join(filter(None, [form.head, form.note, _words_line(form, {"fruit": "plums", "at": "2031-02-11"})])),
        (
            Turn(
                f"Conditions: plums, 2031-02-11. I print the {form.unit}s that have both, and read them.",
                f"hits = [{each} if {plums} and {day}]\nprint(len(hits))\n{form.found}",
                "\n".join(["2", *lines]),
            ),
            Turn(f"The second {form.unit} says what happened.", "SUBMIT({name}='two crates were crushed')"),
        ),
    )


_STORY = """\
Its first lines:
THE HARBOUR YEARS

Nobody had swept the stairs since autumn. Mila Brandt wagered a spoon on the tide, and lost it by noon. The …
Lines from its middle:
It rained on the nets. In those days Otto Lind kept two goats, Pepper and Salt, behind the customs house. A …
Its last line:
The lamps went out one by one, and Juna Roth counted them."""



_ABOUT_OTTO = Turn(
    "Name: Otto Lind. I print every sentence with the name, and read them.",
    "import re\n"
    "sentences = re.findall(r'[^.\\n]*Otto Lind[^.\\n]*', {data})\n"
    "print(len(sentences))\nprint('\\n'.join(sentences[:30]))",
    "5\nOtto Lind bet his hat on a race of snails\n In those days Otto Lind kept two goats, Pepper and Salt, behind "
    "the customs house\n For a wager Otto Lind swam the canal\n People said that Otto Lind never slept\n Mila Brandt "
    "would not dance, and Otto Lind bet against her",
)

_STORY_EXAMPLES = {
    "count": Example(
        "How often did Otto Lind make a bet?",
        _STORY,
        (
            Turn(
                "Name: Otto Lind. I take every sentence with the name, keep those about bets, and read them.",
                "import re\n"
                "sentences = re.findall(r'[^.\\n]*Otto Lind[^.\\n]*', {data})\n"
                "hits = [sentence for sentence in sentences if 'bet ' in sentence or 'wager' in sentence]\n"
                "print(len(sentences), len(hits))\nprint('\\n'.join(hits))",
                "17 3\nOtto Lind bet his hat on a race of snails\n For a wager Otto Lind swam the canal\n"
                " Mila Brandt would not dance, and Otto Lind bet against her",
            ),
            Turn("Each of these is a bet of his.", "SUBMIT({name}=len(hits))"),
        ),
    ),
    "list": Example(
        "What are the goats of Otto Lind called?",
        _STORY,
        (_ABOUT_OTTO, Turn("The second sentence names them.", "SUBMIT({name}=['Pepper', 'Salt'])")),
    ),
    "find": Example(
        "Where did Otto Lind keep his goats?",
        _STORY,
        (_ABOUT_OTTO, Turn("The second sentence says it.", "SUBMIT({name}='behind the customs house')")),
    ),
    "compare": Example(
        "Who owns more goats, Otto Lind or Juna Roth? Give first and last name.",
        _STORY,
        (
            Turn(
                "Names: Otto Lind, Juna Roth. I print the sentences with each name that have the word of the task.",
                "import re\n"
                "for name in ('Otto Lind', 'Juna Roth'):\n"
                "    found = re.findall(r'[^.\\n]*' + name + r'[^.\\n]*', {data})\n"
                "    print(name, [sentence for sentence in found if 'goat' in sentence])",
                "Otto Lind [' In those days Otto Lind kept two goats, Pepper and Salt, behind the customs house']\n"
                "Juna Roth [' The five goats of Juna Roth ate the washing']",
            ),
            Turn(
                "He has 2 and she has 5. The task asks for more, which is the largest number: max. For fewer it would "
                "be min.",
                "numbers = {'Otto Lind': 2, 'Juna Roth': 5}\nSUBMIT({name}=max(numbers, key=numbers.get))",
            ),
        ),
    ),
}


_KINDS = {"count": _count, "sum": _sum, "list": _list, "compare": _compare, "find": _find}
_EVERY = {"sum": _sum, "list": _list, "compare": _compare}

EXAMPLES: dict[tuple[str, str], Example] = {
    **{(name, kind): make(form) for name, form in _FORMS.items() for kind, make in _KINDS.items()},
    **{(name, f"{kind} all"): make(form, True) for name, form in _FORMS.items() for kind, make in _EVERY.items()},
    **{("prose", kind): example for kind, example in _STORY_EXAMPLES.items()},
    ("prose", "sum"): _STORY_EXAMPLES["count"],
}
"""By how the text is written and what is asked for: ``count``, ``sum``, ``list``, ``compare``, ``find``.

With ``" all"`` where the task names no condition.
"""
