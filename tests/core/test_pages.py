"""A trajectory as a page: whole, escaped, without a script, and of bounded size."""

from __future__ import annotations

import html.parser
import itertools
import re
import shutil
import subprocess
from pathlib import Path

import dspy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlm_dspy import RLM, Trajectory, Turn
from rlm_dspy import events as ev
from rlm_dspy.environments.base import Environment, Image
from rlm_dspy.pages.text import money
from rlm_dspy.redact import hide
from rlm_dspy.testing import Call, Reply, ScriptedLM, code, outputs

HOSTILE = "<script>boo()</script>\"'><img src=x onerror=boo()></pre></details></style> \x1b[31m \u202e \ud800 \0 &lt;"
TAGS = set(
    "div style header section p span details summary b i code pre small img table thead tbody tr th td "
    "html head body meta title".split()
)
VOID = {"img", "meta"}
ATTRIBUTES = set("aria-hidden class style title open src alt charset name content lang http-equiv".split())


class Page(html.parser.HTMLParser):
    """What a browser would see: text by tag, and whether it all fits together."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.open: list[str] = []
        self.text: list[str] = []
        self.images: list[str] = []
        self.feed(markup)
        self.close()
        assert not self.open, f"left open: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.images += [value or "" for name, value in attrs if name == "src"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.text.append(data)

    @property
    def said(self) -> str:
        return "\n".join(self.text)


def safe(markup: str) -> Page:
    """The page, once it is known that nothing in it runs, is loaded, or acts on a terminal."""
    markup.encode()
    page = Page(markup)
    assert page.tags <= TAGS and page.attributes <= ATTRIBUTES, (page.tags - TAGS, page.attributes - ATTRIBUTES)
    assert all(source.startswith("data:") for source in page.images)
    assert "\x1b" not in markup and "\u202e" not in markup and "\0" not in markup
    assert not re.search(r"url\(|@import|https?://|javascript:", markup)
    return page


def root(call: Call) -> str | Reply:
    """Does all that a page shows: an error, a reply without code, calls that fail, children, a limit's last answer."""
    if "part of it" in call.own[0]["content"]:
        return code("print(llm_query('inner ' + text))\nSUBMIT('from the child')", "Inner plan.")
    steps = [
        code(f"print({HOSTILE!r})\n1/0", f"Plan {HOSTILE}"),
        "no code here",
        code("print(rlm_query_batched([{'prompt': 'part of it', 'text': t} for t in 'ab']))", "Two children."),
        code("print(llm_query_batched(['one', 'bad', 'three']))", "Calls."),
        code("SUBMIT(answer='the end', n=3)"),
    ]
    return steps[call.turn]


def answer(call: Call) -> str | Reply:
    """Plays the sub-LM."""
    return Reply(error=RuntimeError(HOSTILE)) if "bad" in call.prompt else f"yes {HOSTILE}"


def whole(sandbox: Environment) -> Trajectory:
    """The trajectory of such a run."""
    sub = ScriptedLM(answer)
    rlm = RLM("context, query -> answer, n: int", interpreter=sandbox, max_depth=2, max_seconds=60, sub_lm=sub)
    with dspy.context(lm=ScriptedLM(root)):
        found = rlm(context="x" * 1_000, query=f"What is it? {HOSTILE}").trajectory
    assert isinstance(found, Trajectory)
    return found


def test_all_that_happened_is_on_the_page(sandbox: Environment) -> None:
    trajectory = whole(sandbox)
    for markup in (trajectory.to_html(), trajectory._repr_html_()):
        page = safe(markup)
        for text in (
            "submitted",
            "5 turns",
            "2 children",
            "What is it?",
            "Turn 5",
            "ZeroDivisionError",
            "no code here",
        ):
            assert text in page.said, text
        assert not re.search(r"max_seconds \d+\.\d{4}", page.said)
        for text in ("Inner plan.", "inner a", "inner b", "from the child", "the end", "1 failed", "1,000 characters"):
            assert text in page.said, text
        assert "<script>boo()</script>" in page.said
        assert markup.count('class="child"') == 2
        for bar in ("act", "execute", "call", "child"):
            assert re.search(rf'<i class="b {bar}[^>]*left:[\d.]+%;width:[\d.]+%', markup), bar
        assert "of tokens" in page.said  # no price is known of a scripted model


def test_a_file_is_whole_in_itself(sandbox: Environment) -> None:
    markup = whole(sandbox).to_html("A <title>")
    assert markup.startswith("<!DOCTYPE html>") and markup.rstrip().endswith("</html>")
    assert "<title>A &lt;title&gt;</title>" in markup and "default-src 'none'" in markup
    assert "prefers-color-scheme" in markup or "color-scheme:light dark" in markup
    assert "@media print" in markup


def test_costs_are_shown_where_prices_are_known(sandbox: Environment) -> None:
    rlm = RLM("q -> a", interpreter=sandbox, prices={"scripted/lm": (1_000, 1_000)})
    with dspy.context(lm=ScriptedLM([code("SUBMIT('x')")])):
        pred = rlm(q="x")
    page = safe(pred.trajectory.to_html())
    assert "of cost" in page.said and money(pred.usage["cost"]) in page.said


def test_what_a_turn_cost_is_beside_it_and_all_of_it_is_the_cost_of_the_run(sandbox: Environment) -> None:
    prices = {"scripted/lm": (500, 1_000), "scripted/sub": (100, 100)}
    steps = ["print(rlm_query('part of it', text='a'))", "llm_query_batched(['one', 'three'])", "print('no end')"]

    def play(call: Call) -> str:
        if "No more code can run" in call.system + call.prompt:
            return outputs(a="so far")
        return root(call) if "part of it" in call.own[0]["content"] else code(steps[call.turn])

    sub = ScriptedLM(answer, model="scripted/sub")
    rlm = RLM("q -> a", interpreter=sandbox, max_depth=2, max_iters=3, sub_lm=sub, prices=prices)
    with dspy.context(lm=ScriptedLM(play)):
        pred = rlm(q="x")
    assert pred.outcome == "extracted"
    account = [event.used for event in pred.trajectory.events if isinstance(event, ev.TurnEnded)]
    assert len(account) == 3 and account[2]["cost"] < pred.usage["cost"]
    assert account[1]["lm_calls"] - account[0]["lm_calls"] == 3
    page = safe(pred.trajectory.to_html())
    costs = [0.0, *(used["cost"] for used in account), pred.usage["cost"]]
    for before, after in itertools.pairwise(costs):  # three turns, and the last answer
        assert money(after - before) in page.said
    child = pred.trajectory.children[0].trajectory.events[-1]
    assert isinstance(child, ev.RunEnded) and money(child.usage["cost"]) in page.said


def test_a_turn_that_a_limit_cut_short_has_its_cost(sandbox: Environment) -> None:
    prices = {"scripted/lm": (500, 1_000)}
    rlm = RLM("q -> a", interpreter=sandbox, max_seconds=1, prices=prices)
    endless = ScriptedLM(lambda call: code("while True: pass") if "REPL" in call.system else outputs(a="x"))
    with dspy.context(lm=endless):
        pred = rlm(q="x")
    struck = next(event for event in pred.trajectory.events if isinstance(event, ev.LimitStruck))
    assert 0 < struck.used["cost"] < pred.usage["cost"]
    turn = re.search(r'>turn 1\b.*?class="num spent"[^>]*>(\$[\d.]+)<', pred.trajectory.to_html())
    assert turn is not None and turn[1] == money(struck.used["cost"])


TEXT = st.text(max_size=60) | st.just(HOSTILE)


@settings(deadline=None)
@given(st.lists(TEXT, min_size=12, max_size=12), st.booleans())
def test_no_text_of_any_event_becomes_markup(texts: list[str], error: bool) -> None:
    a, b, c, d, e, f, g, h, i, j, k, m = texts
    child = (
        ev.RunStarted(run_id=a, signature=b, variables={c: d}, limits={e: f}, environment=g),
        ev.TurnStarted(turn=1),
        ev.Acted(turn=1, reply=h, reasoning=i, code=j, seconds=1),
        ev.RunEnded(outcome=k, limit=m, error=a, outputs={b: c}, usage={"cost": 1.0, "table": []}),
    )
    log = (
        ev.RunStarted(run_id=a, signature=b, variables={c: d}, limits={e: f}, environment=g),
        ev.SessionOpened(environment=h, confined=None, missing=(i,)),
        ev.Acted(turn=1, reply=a, reasoning=b, code=c, error=d if error else None, seconds=0.5, at=1.0),
        ev.CallStarted(turn=1, call=1, name=d, preview=e),
        ev.CallEnded(turn=1, call=1, name=d, seconds=0.1, error=f if error else None, preview=g, at=2.0),
        ev.ChildStarted(turn=1, name=h, run_id=m, at_depth=1, at=2.0),
        ev.ChildEnded(turn=1, name=h, run_id=m, outcome=i, limit=j, error=k, seconds=1.0, at=3.0, events=child),
        ev.Executed(turn=1, output=a, error=b, lost=(c,), at=3.0, seconds=2.0),
        ev.Aided(turn=1, aid=d),
        ev.TurnEnded(turn=1, observation=e, error=error),
        ev.Compacted(turn=1, tokens_before=2, tokens_after=1, summary=f),
        ev.LimitStruck(limit=g, where=h),
        ev.Extracted(error=i, seconds=0.1),
        ev.Note(message=j),
        ev.RunEnded(
            outcome=k,
            limit=m,
            error=a,
            outputs={b: c},
            usage={"cost": None, "table": [{"role": d, "model": e, "depth": 0, "lm_calls": 1, "cost": None}]},
        ),
    )
    safe(Trajectory.from_events(log).to_html(m or None))
    for part in range(len(log)):
        safe(Trajectory.from_events(log[:part])._repr_html_())


def test_secrets_are_not_on_the_page(sandbox: Environment) -> None:
    hide("the-secret-of-the-page")
    with dspy.context(lm=ScriptedLM([code("print('the-secret-' + 'of-the-page')\nSUBMIT('x')")])):
        pred = RLM("q -> a", interpreter=sandbox)(q="the-secret-of-the-page")
    assert "the-secret-of" not in pred.trajectory.to_html() and "[hidden]" in pred.trajectory.to_html()


def test_a_run_of_any_size_gives_a_page_that_opens() -> None:
    turns = Trajectory(Turn(output="x" * 100_000, code="y" * 100_000, reply="z", number=n) for n in range(1, 400))
    assert len(turns._repr_html_()) < 4_000_000 and len(turns.to_html()) < 25_000_000
    calls = [ev.CallEnded(turn=1, call=n, name="f", seconds=0.1, at=1.0) for n in range(10_000)]
    wide = Trajectory.from_events([ev.Acted(turn=1, reply="r"), *calls])
    assert len(wide._repr_html_()) < 500_000 and "9,500 more" in wide._repr_html_()


def test_pictures_are_shown_and_cannot_run() -> None:
    svg = Image("image/svg+xml", b"<svg onload='boo()'/>")
    page = safe(Trajectory([Turn(number=1, reply="r", images=[svg])])._repr_html_())
    assert page.images == [f"data:image/svg+xml;base64,{svg.base64}"]


@pytest.mark.heavy
@pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium here")
def test_a_browser_runs_nothing_and_prints_everything(sandbox: Environment, tmp_path: Path) -> None:
    path, printed = tmp_path / "page.html", tmp_path / "page.pdf"
    path.write_text(whole(sandbox).to_html())
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    for what in (["--dump-dom"], [f"--print-to-pdf={printed}"]):
        done = subprocess.run(
            ["chromium", *options, *what, path.as_uri()], capture_output=True, text=True, timeout=120, check=True
        )
        if what == ["--dump-dom"]:
            assert Page(done.stdout).tags <= TAGS
    pypdf = pytest.importorskip("pypdf")
    text = "".join(page.extract_text() for page in pypdf.PdfReader(printed).pages)
    # Of what is closed on the screen.
    assert "Inner plan." in text and "max_llm_calls" in text
