"""``make bench``: every engine does every work against one server, and a table says how they compare.

python -m benchmarks.engine [--only WORK,...] [--engines ENGINE,...] [--repeats N] [--minutes N] [--write]
python -m benchmarks.engine --curves [--only CURVE,...] [--largest N] [...]
python -m benchmarks.engine --replot
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks import machine, report, server, table, tree
from benchmarks.curves import CURVES
from benchmarks.engines import ENGINES
from benchmarks.measure import BENCH_PYTHON, Clock, measure, say, short
from benchmarks.process import ROOT
from benchmarks.store import Store
from benchmarks.work import WORKS, Work

FOLDER = ROOT / "benchmarks"
MINUTES = {"bars": 8.0, "curves": 15.0}
"""How long the command takes at most, unless it is told otherwise."""

INTERRUPTED = 130
"""Exit status after Ctrl-C, as a shell has it."""


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; with ``--write`` keep it, also what was measured until an interruption.

    Returns:
        0; 1 if something could not be measured; 130 if it was interrupted.
    """
    options = _options(arguments)
    folder: Path = options.folder
    try:
        store = Store(folder / "results.json" if options.write or options.replot else None)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    status = 0
    if not options.replot:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            status = _measure(options, store, time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()), arguments)
        except KeyboardInterrupt:
            say("interrupted" + ("; what was measured is kept" if options.write else ""))
            status = INTERRUPTED
        print(report.curves(store) if options.curves else report.bars(store), flush=True)
    if options.write or options.replot:
        store.save()
        _draw(folder)
        (folder / "RESULTS.md").write_text(report.whole(store, folder / "plots"))
    return status


def _measure(options: argparse.Namespace, store: Store, session: str, arguments: list[str] | None) -> int:
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    clock = Clock(options.minutes or MINUTES["curves" if options.curves else "bars"])
    engines = [engine for engine in ENGINES if not options.engines or engine in options.engines]
    words = _words(sys.argv[1:] if arguments is None else arguments)
    about = machine.about()
    say(f"{about}; at most {clock.minutes:g} minutes")
    before, sandbox = machine.noise(), machine.bwrap_start()
    starts = "no bwrap" if sandbox is None else f"bwrap python -I: {sandbox * 1000:.0f} ms"
    versions: dict[str, str] = {}
    store.sessions[session] = {
        "command": f"make bench ARGS={shlex.quote(words)}" if words else "make bench",
        "commit": machine.commit(),
        "machine": about,
        "noise": _noise(before),
        "starts": f"starts: {starts}; python -I: {machine.python_start() * 1000:.0f} ms",
        "versions": versions,
    }
    failed = False
    with server.running() as address:
        for work, chosen in _works(options, store, engines):
            if clock.left() <= 0:
                say(f"  {work.title}: no time left")
                failed = True
                continue
            found = measure(work, chosen, address, clock, versions)
            for engine, result in found.items():
                if engine == "ours" and work.name == "start":
                    result["sandbox"] = sandbox
                failed = failed or (not work.curve and "reason" in result)
                store.put(session, engine, work.name, result)
            store.save()
            # Said once it is kept: whoever interrupts after this loses nothing of it.
            for engine in chosen:
                if engine in dict(work.skip) or (engine == "bare" and work.record):
                    continue
                say(f"  {work.title}: {engine} {short(found.get(engine))}")
    if not options.curves and "ours" in engines and (not options.only or table.HELP in options.only):
        store.put(session, "ours", table.HELP, {"seconds": machine.help_times()})
    if not options.curves and "ours" in engines and (not options.only or table.TREE in options.only):
        found_tree = tree.measured(limit=max(1.0, min(tree.LIMIT, clock.left())))
        failed = failed or "reason" in found_tree
        store.put(session, "ours", table.TREE, found_tree)
        say(f"  tree: ours {short(found_tree)}")
    if not options.curves and "ours" in engines and (not options.only or table.TRACKING in options.only):
        # The last, because it loads DSPy and MLflow into this process.
        from benchmarks import tracking

        found_tracking = tracking.measured(options.repeats or 5)
        store.put(session, "ours", table.TRACKING, found_tracking)
        say(f"  tracking: {found_tracking}")
    store.sessions[session]["noise"] = _noise(before, machine.noise())
    return 1 if failed else 0


def _works(options: argparse.Namespace, store: Store, engines: Sequence[str]) -> Iterator[tuple[Work, list[str]]]:
    """What to do next, and who does it: whoever could not do a point of a curve is not asked for a larger one."""
    if not options.curves:
        for work in WORKS:
            if not options.only or work.name in options.only:
                if options.repeats:
                    work = work.repeated(options.repeats)
                yield work, list(engines)
        return
    for curve in CURVES:
        if options.only and curve.name not in options.only:
            continue
        able = list(engines)
        for point in curve.points:
            if options.largest and point.size > options.largest:
                break
            yield (point.repeated(options.repeats) if options.repeats else point), list(able)
            for engine in [name for name in able if "reason" in store.results.get((name, point.name), {})]:
                able.remove(engine)
                # What an earlier session found at larger sizes would not continue this curve.
                for larger in curve.points:
                    if larger.size > point.size:
                        store.results.pop((engine, larger.name), None)


def _words(arguments: Sequence[str]) -> str:
    """The command line, less where the results go, which is a matter of this machine."""
    kept = []
    given = iter(arguments)
    for word in given:
        if word == "--folder":
            next(given, None)
        elif not word.startswith("--folder="):
            kept.append(word)
    return shlex.join(kept)


def _noise(*found: tuple[float, float]) -> str:
    times = " and then ".join(f"{least * 1000:.0f} ms" for least, _ in found)
    above = max(share for _, share in found)
    return f"noise: a fixed loop took {times}; its median was {above:.0%} above its least time"


def _draw(folder: Path) -> None:
    """The plots, by the environment that has what draws them."""
    command = [str(BENCH_PYTHON), "-m", "benchmarks.plots", str(folder)]
    if not BENCH_PYTHON.exists():
        say("plots not drawn: there is no .venv-bench; `make bench` makes it")
        return
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        say(f"plots not drawn: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")


def _options(arguments: list[str] | None) -> argparse.Namespace:
    def names(text: str) -> list[str]:
        return [name for name in text.split(",") if name]

    works, curves = (
        [*(work.name for work in WORKS), table.HELP, table.TREE, table.TRACKING],
        [curve.name for curve in CURVES],
    )
    parser = argparse.ArgumentParser(prog="make bench", description="Measure RLMs beside each other.")
    parser.add_argument("--curves", action="store_true", help="how it scales, instead of the table of the bars")
    parser.add_argument(
        "--only", type=names, default=[], help=f"works: {', '.join(works)}; with --curves: {', '.join(curves)}"
    )
    parser.add_argument("--engines", type=names, default=[], help=f"engines: {', '.join(ENGINES)}")
    parser.add_argument("--repeats", type=int, default=0, help="how often to time each work; 0 for its own number")
    parser.add_argument("--largest", type=int, default=0, help="leave out points of curves above this size")
    parser.add_argument(
        "--minutes", type=float, default=0, help=f"stop then; else {MINUTES['bars']:g}, curves {MINUTES['curves']:g}"
    )
    parser.add_argument("--write", action="store_true", help="keep it in results.json, RESULTS.md and plots")
    parser.add_argument("--replot", action="store_true", help="make RESULTS.md and plots again, without measuring")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where to keep it; default: benchmarks")
    options = parser.parse_args(arguments)
    for given, known in ((options.only, curves if options.curves else works), (options.engines, list(ENGINES))):
        unknown = sorted(set(given) - set(known))
        if unknown:
            parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(known)}")
    if min(options.repeats, options.largest, options.minutes) < 0:
        parser.error("--repeats, --largest and --minutes must not be negative")
    if not options.folder.is_dir():
        parser.error(f"--folder: {options.folder} is not a folder")
    options.folder = options.folder.resolve()
    return options


if __name__ == "__main__":
    sys.exit(main())
