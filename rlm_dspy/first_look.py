"""The first look: lines of a large text, for the run's first message.

A root that has to spend a turn on looking may as well be shown; one that does not look guesses how the text is written.
Shown are lines from the beginning, the middle and the end, how a line falls into words, and the lines that have rare
words of the task in them.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections import Counter
from collections.abc import Mapping

from rlm_dspy.passages import SEARCHED, WIDTH, Span, around, cut, occurrences, sentence
from rlm_dspy.places import place
from rlm_dspy.signatures.contract import Form
from rlm_dspy.signatures.examples import WORDS
from rlm_dspy.tables import Table, table

HEAD_LINES = 3
SAMPLES = 3
MATCHES = 4
SENTENCES = 10
ODD = 3
_WORD = re.compile(r"[^\W_][\w.:-]{2,}[^\W_]|(?<!\w)\d{3}(?!\w)")
_PLAIN_WORD = re.compile(r"[^\W\d_]{3,}")
_NAME = re.compile(r"(?<!\w)[A-Z][\w'-]{1,40}(?: [A-Z][\w'-]{1,40}){1,4}")
_PAIR = re.compile(r"\w=[^=\s]")
_LINES = 20
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


def look(text: str, task: str = "", words: Mapping[str, int] | None = None) -> str:
    """What is shown of ``text`` for ``task``; bounded in length whatever the text is.

    ``words`` are its telling words where they are known already.

    Lines that are longer than `WIDTH` are cut; a text of one or two endless lines is shown by its characters.
    """
    head = text[: HEAD_LINES * WIDTH * 4].split("\n")[:HEAD_LINES]
    if len(head) < HEAD_LINES or len(text) < 2 * HEAD_LINES * WIDTH:
        middle = len(text) // 2
        third = _TEXT // 3
        centre = text[max(0, middle - third // 2) : middle + third // 2]
        shown = [f"It begins:\n{text[:third]}\nIn its middle:\n{centre}\nIt ends:\n{text[-third:]}"]
    else:
        samples = [_line_at(text, len(text) * (2 * n + 1) // (2 * SAMPLES)) for n in range(SAMPLES)]
        last = text[-2 * WIDTH :].rstrip("\n").rsplit("\n", 1)[-1]
        shown = ["Its first lines:", *map(_cut, head), "Lines from its middle:", *map(_cut, samples)]
        shown += ["Its last line:", _cut(last)]
        read = table(text)
        if parts := (_columns_of(read) if read else _parts(samples[-1])):
            shown.append(parts)
    kind = form(text)
    words = telling_words(text, task) if words is None else words
    if words:
        places = {word: place(text, word, kind) for word in words}
        where = {word: f", mostly {found}" if found else "" for word, found in places.items()}
        listed = (f"{word!r} {number:,} times{where[word]}" for word, number in words.items())
        shown.append(f"{WORDS}{'; '.join(listed)}")
    prose = kind == "prose"
    if found := matches(text, task):
        what = "Sentences" if prose else "Lines"
        shown += [f"{what} with words of the task:", *map(_cut, found)]
    elif words and not prose:
        # A name such as cart-api tells; a word of the language stands where it pleases.
        names = [word for word in words if not (word.isalpha() and word.islower())]
        rarest = min(names or words, key=lambda word: words[word])
        if (odd := odd_lines(text, rarest)):
            shown += [f"Lines with {rarest!r} that differ from the others:", *odd]
    return "\n".join(shown)


def matches(text: str, task: str) -> list[str]:
    """Lines of ``text`` that have rare words of ``task`` in them, the best of them first, at most `MATCHES`.

    Of prose, sentences in place of lines, at most `SENTENCES`. A word is rare if the text has it, as written or in
    lower case, at most some forty times.
    """
    if len(text) > SEARCHED:
        return []
    words = task_words(task)
    kind = form(text) if words else "records"
    round_, limit = (sentence, SENTENCES) if kind == "prose" else (around, MATCHES)
    score: dict[Span, float] = {}
    for word in words:
        for spelling in dict.fromkeys((word, word.lower(), word.rstrip("s"))):
            found = _places(text, spelling)
            if found:
                for at in found:
                    line = round_(text, at)
                    score[line] = score.get(line, 0.0) + 1 / len(found)
                break
    best = sorted(score, key=lambda line: (-score[line], line))[:limit]
    return [cut(text, line, words) for line in best]


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


def telling_words(text: str, task: str) -> dict[str, int]:
    """Words of ``task`` that stand in ``text`` as they are written, and how often.

    Left out are those that most lines have, and plain words that next to none has: they stand there by accident. In
    prose plain words say nothing at all, and a part of a name says what the name does.
    """
    if len(text) > SEARCHED:
        return {}
    lines = text.count("\n") + 1
    prose = form(text) == "prose"
    found = {word: text.count(word) for word in task_words(task)}
    names = [word for word, number in found.items() if " " in word and number]

    def tells(word: str, number: int) -> bool:
        plain = word.isalpha() and word.islower()
        return 0 < number <= max(lines // 2, _RARE) and not (plain and (prose or number * 1_000 < lines))

    return {
        word: number
        for word, number in found.items()
        if tells(word, number) and not any(word in name.split(" ") for name in names)
    }


def odd_lines(text: str, word: str) -> list[str]:
    """Of the lines that have ``word``, those whose other words stand in next to no other of them, at most `ODD`.

    What a log says once stands among thousands of lines that say the same of something else. Only the first
    `_COMPARED` lines with the word are looked at.
    """
    lines = [text[slice(*around(text, at))] for at in itertools.islice(occurrences(text, word), _COMPARED)]
    if len(lines) <= _RARE:
        return []
    words = [set(_PLAIN_WORD.findall(line)) for line in lines]
    number = Counter(itertools.chain.from_iterable(words))
    score = [sum(1 for found in each if number[found] <= 2) for each in words]
    best = sorted(range(len(lines)), key=lambda n: (-score[n], n))[:ODD]
    # One rare word tells too where next to no line has any.
    least = 1 if sum(map(bool, score)) <= ODD else 2
    return [_cut(lines[n]) for n in best if score[n] >= least]


def form(text: str) -> Form:
    """How ``text`` is written, as far as a few places of it tell; what is nothing else is records."""
    lines = text[:100_000].split("\n")[:2]
    if len(lines) == 2 and all(map(json_keys, lines)):
        return "json"
    if table(text) is not None:
        return "csv"
    votes = 0
    for at in (len(text) * (2 * n + 1) // 10 for n in range(5)):
        window = text[at : at + 1_000]
        marks = sum(window.count(mark) for mark in '={}|<>_\t"')
        digits = sum(character.isdigit() for character in window)
        sentences = len(re.findall(r"[^\W\d_][.!?][ \n]", window))
        votes += sentences >= 2 and marks < 15 and digits < 40
    if votes >= 3:
        return "prose"
    return "columns" if _has_columns(text) else "records"


def _has_columns(text: str) -> bool:
    """Whether most lines have the same number of words, and no ``key=value`` in them."""
    lines = [_line_at(text, len(text) * (2 * n + 1) // (2 * _LINES)) for n in range(_LINES)]
    words = Counter(len(line.split()) for line in lines if len(line) <= 4 * WIDTH)
    number, alike = words.most_common(1)[0] if words else (0, 0)
    pairs = sum(_PAIR.search(line) is not None for line in lines)
    return number >= 4 and 2 * alike >= _LINES and 3 * pairs < _LINES


def json_keys(line: str) -> list[str]:
    """The keys of a line that is one JSON object, else nothing."""
    if line.startswith("{") and line.rstrip().endswith("}"):
        with contextlib.suppress(ValueError, RecursionError):
            return list(json.loads(line))
    return []


def field_names(text: str) -> list[str]:
    """The names of the fields of JSON lines or CSV, else nothing."""
    read = table(text)
    return list(read.columns) if read else json_keys(text[:10_000].partition("\n")[0])


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


def _line_at(text: str, at: int) -> str:
    """The first line with something in it that begins behind ``at``, or what stands at ``at`` in an endless one."""
    window = text[at : at + 8 * WIDTH]
    _, end, rest = window.partition("\n")
    rest = rest.lstrip("\n")
    return rest.split("\n", 1)[0] if end and rest else window


def _cut(line: str) -> str:
    line = line.rstrip("\r")
    return line if len(line) <= WIDTH + 2 else f"{line[:WIDTH]} …"
