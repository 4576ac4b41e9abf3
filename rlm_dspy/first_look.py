"""The first look: lines of a large text, or some of many records, for the run's first message.

A root that has to spend a turn on looking may as well be shown; one that does not look guesses how the text is written.
Shown are lines from the beginning, the middle and the end, how a line falls into words or what the fields of records
hold, and the lines that have rare words of the task in them.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Mapping

from rlm_dspy import columns
from rlm_dspy.data import Data, shown
from rlm_dspy.forms import json_keys, line_at
from rlm_dspy.passages import SEARCHED, WIDTH, Span, around, line, occurrences, sentence
from rlm_dspy.places import find, where
from rlm_dspy.signatures.examples import WORDS
from rlm_dspy.tables import Table
from rlm_dspy.words import is_plain, spelled
from rlm_dspy.words import names as names_in

HEAD_LINES = 3
SAMPLES = 3
MATCHES = 4
SENTENCES = 10
ODD = 3
_WORD = re.compile(r"[^\W_][\w.:-]{2,}[^\W_]|(?<!\w)\d{3}(?!\w)")
_PLAIN_WORD = re.compile(r"[^\W\d_]{3,}")
_CODE = re.compile(r"(?<!\w)[A-Z][A-Z0-9]{1,2}(?!\w)")
_NAME = re.compile(r"(?<!\w)[A-Z][\w'-]{1,40}(?: [A-Z][\w'-]{1,40}){1,4}")
_RARE = 40
_COMPARED = 5_000
_WORDS = 12
_LONG_WORD = 60
_TASK = 20_000
_TEXT = 900
"""Characters that are shown of a text that has no lines to speak of."""

COMMON = frozenset(
    "about after also answer before between context count does each find first from give have here into last "
    "least line lines list many more most much name named names number only over same text than that their them "
    "then there these they this those times total under value were what when where which while whose with word "
    "words would your".split()
)


def look(data: Data, task: str = "", words: Mapping[str, int] | None = None) -> str:
    """What is shown of ``data`` for ``task``; bounded in length whatever they are.

    ``words`` are its telling words where they are known already.

    Lines that are longer than `WIDTH` are cut; a text of one or two endless lines is shown by its characters.
    """
    parts = _lines(data) if data.rows is None else _records(data)
    words = telling_words(data, task) if words is None else words
    if words:
        listed = (f"{word!r} {number:,} times{where(data, word)}" for word, number in words.items())
        parts.append(f"{WORDS}{'; '.join(listed)}")
    units = f"{data.unit.capitalize()}s"
    if found := matches(data, task):
        parts += [f"{units} with words of the task:", *(found if data.rows is not None else map(_cut, found))]
    elif words and data.form != "prose":
        # A name such as cart-api tells; a word of the language stands where it pleases.
        rarest = min(names_in(words) or words, key=lambda word: words[word])
        if odd := odd_lines(data, rarest):
            parts += [f"{units} with {rarest!r} that differ from the others:", *odd]
    return "\n".join(parts)


def _records(data: Data) -> list[str]:
    rows = data.rows or ()
    if len(rows) < 5:
        return ["Its records:", *map(shown, rows), *columns.fields(data)]
    lines = ["Its first records:", *map(shown, rows[:2]), "A record from its middle:", shown(rows[len(rows) // 2])]
    return [*lines, "Its last record:", shown(rows[-1]), *columns.fields(data)]


def _lines(data: Data) -> list[str]:
    text = data.text
    head = text[: HEAD_LINES * WIDTH * 4].split("\n")[:HEAD_LINES]
    if len(head) < HEAD_LINES or len(text) < 2 * HEAD_LINES * WIDTH:
        middle = len(text) // 2
        third = _TEXT // 3
        centre = text[max(0, middle - third // 2) : middle + third // 2]
        lines = [f"It begins:\n{text[:third]}\nIn its middle:\n{centre}\nIt ends:\n{text[-third:]}"]
    else:
        samples = [line_at(text, len(text) * (2 * n + 1) // (2 * SAMPLES)) for n in range(SAMPLES)]
        last = text[-2 * WIDTH :].rstrip("\n").rsplit("\n", 1)[-1]
        lines = ["Its first lines:", *map(_cut, head), "Lines from its middle:", *map(_cut, samples)]
        lines += ["Its last line:", _cut(last)]
        if parts := (_columns_of(data.table) if data.table else _parts(samples[-1])):
            lines.append(parts)
    return lines


def matches(data: Data, task: str) -> list[str]:
    """Lines of ``data`` that have rare words of ``task`` in them, the best of them first, at most `MATCHES`.

    Of prose, sentences in place of lines, at most `SENTENCES`. A word is rare if the text has it, as written or in
    lower case, at most some forty times.
    """
    text = data.text
    words = task_words(task) if len(text) <= SEARCHED else []
    if not words:
        return []
    round_, limit = (sentence, SENTENCES) if data.form == "prose" else (around, MATCHES)
    round_ = line if data.form == "rows" else round_
    score: dict[Span, float] = {}
    for word in words:
        for spelling in dict.fromkeys((word, word.lower(), word.rstrip("s"))):
            found = _places(text, spelling)
            if found:
                for at in found:
                    span = round_(text, at)
                    score[span] = score.get(span, 0.0) + 1 / len(found)
                break
    # A name tells whose line it is, also where it stands in too many to be looked for, and more than rare words.
    names = names_in(words)
    for span in score:
        score[span] += 2 * sum(name in text[slice(*span)] for name in names)
    best = sorted(score, key=lambda span: (-score[span], span))[:limit]
    return [data.passage(span, words) for span in best]


def task_words(task: str) -> list[str]:
    """The first words of ``task`` that are not in every task, names of several words before single ones.

    What is too long is no word of a language.
    """
    task = task[:_TASK]
    names = (name.split(" ") for name in _NAME.findall(task))
    # A sentence begins with a capital too.
    whole = (" ".join(name[1:] if name[0].lower() in COMMON else name) for name in names)
    words = dict.fromkeys([*(name for name in whole if " " in name), *_WORD.findall(task)])
    return [word for word in words if len(word) <= _LONG_WORD and word.lower() not in COMMON][:_WORDS]


def _places(text: str, word: str) -> list[int]:
    """Where ``word`` stands, or nothing if that is in more than a few places."""
    places: list[int] = []
    at = text.find(word)
    while at >= 0:
        places.append(at)
        if len(places) > _RARE:
            return []
        at = text.find(word, at + len(word))
    return places


def telling_words(data: Data, task: str) -> dict[str, int]:
    """Words of ``task`` that stand in ``data`` as they are written, and how often.

    Left out are those that most lines have, and plain words that next to none has: they stand there by accident. In
    prose plain words say nothing at all, and a part of a name says what the name does. The whole value of a field of
    records tells in any case, also where it is spelled in other capitals, or without the plural's s.
    """
    text = data.text
    if len(text) > SEARCHED:
        return {}
    lines = text.count("\n") + 1
    prose = data.form == "prose"
    values = _values(data, task) if data.rows is not None else {}
    found = {word: text.count(word) for word in task_words(task) if word not in values} | values
    names = [word for word, number in found.items() if " " in word and number]

    def tells(word: str, number: int) -> bool:
        plain = is_plain(word)
        return 0 < number <= max(lines // 2, _RARE) and not (plain and (prose or number * 1_000 < lines))

    return {
        word: number
        for word, number in found.items()
        if (word in values or tells(word, number)) and not any(word in name.split(" ") for name in names)
    }


def _values(data: Data, task: str) -> dict[str, int]:
    """Words of ``task`` that are the whole value of a field of some of the records, as they are spelled there."""
    text, rows = data.text, data.rows or ()
    found: dict[str, int] = {}
    for word in [*task_words(task), *dict.fromkeys(_CODE.findall(task[:_TASK]))]:
        for form in dict.fromkeys((word, word.rstrip("s"))):
            spelling = spelled(form, text)
            stands = find(data, spelling) if spelling else None
            if stands is not None and stands.how in ("whole", "number"):
                number = text.count(spelling)
                found.update({spelling: number} if number < len(rows) else {})
                break
    return found


def odd_lines(data: Data, word: str) -> list[str]:
    """Of the lines that have ``word``, those whose other words stand in next to no other of them, at most `ODD`.

    What a log says once stands among thousands of lines that say the same of something else. Only the first
    `_COMPARED` lines with the word are looked at.
    """
    text = data.text
    spans = [around(text, at) for at in itertools.islice(occurrences(text, word), _COMPARED)]
    lines = [text[slice(*span)] for span in spans]
    if len(lines) <= _RARE:
        return []
    words = [set(_PLAIN_WORD.findall(line)) for line in lines]
    number = Counter(itertools.chain.from_iterable(words))
    score = [sum(1 for found in each if number[found] <= 2) for each in words]
    best = sorted(range(len(lines)), key=lambda n: (-score[n], n))[:ODD]
    # One rare word tells too where next to no line has any.
    least = 1 if sum(map(bool, score)) <= ODD else 2
    best = [n for n in best if score[n] >= least]
    return [_cut(lines[n]) if data.rows is None else data.passage(spans[n], [word]) for n in best]


def _columns_of(read: Table) -> str:
    given = "" if read.delimiter == "," else f"(…, delimiter={read.delimiter!r})"
    return f"It is CSV. csv.DictReader{given} gives rows with the columns {list(read.columns[:30])}"


def _parts(line: str) -> str:
    """How a line falls into parts: the fields of a JSON object, the numbered words of a record, ``""`` for prose."""
    if keys := json_keys(line):
        return f"Each line is JSON. json.loads(line) of the last one from the middle has the keys {keys[:30]}"
    words = line[:WIDTH].split()
    digits = sum(any(character.isdigit() for character in word) for word in words)
    if not 3 <= len(words) <= 16 or digits < 2:
        return ""
    return "One line split at spaces: " + "  ".join(f"[{number}] {word}" for number, word in enumerate(words))


def _cut(line: str) -> str:
    line = line.rstrip("\r")
    return line if len(line) <= WIDTH + 2 else f"{line[:WIDTH]} …"
