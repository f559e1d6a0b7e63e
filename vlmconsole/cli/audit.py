"""`vlmconsole audit`: recompute what a run claims from its files; `audit replay`: generate one answer again."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vlmconsole.cli.common import CANNOT_JUDGE, FAILED, OK, USAGE, emit, fail, say, state
from vlmconsole.text.signs import sign_of

if TYPE_CHECKING:
    from rich.console import Console

    from vlmconsole.audit.replay import Replayed
    from vlmconsole.runs.folder import RunFolder

CODES = {"PASS": OK, "FAIL": FAILED, "CANNOT JUDGE": CANNOT_JUDGE}
ORDER = {"wrong": 0, "not verifiable": 1, "ok": 2}


def register(app: typer.Typer) -> None:
    app.command("audit")(audit)


def audit(
    words: Annotated[list[str], typer.Argument(metavar="[replay] RUN", help="Run to audit; `last` is the newest")],
    sample: str = typer.Option(
        "", "--sample", metavar="ID", help="With replay: sample ID; default: one with 11 and 12"
    ),
    before: bool = typer.Option(False, "--before", help="With replay: the side before instead of after"),
    alone: bool = typer.Option(False, "--alone", help="With replay: also alone, outside its batch"),
) -> None:
    """Recompute a training or an evaluation: images, labels, mask, weights, choice, plan, pairs, seals.

    `audit replay RUN --sample ID` loads the evaluated model or adapter and generates one answer of the run again, from
    the image in the dataset, in the batch that it was made in. Text, token ids and the hash of the input tensor must
    be those of the evaluation: a check of the call, not a new score. It needs torch; where a server answered, that
    server is asked again, with the same settings in force, and only the text can be compared. A sample's ID is in the
    run's after.jsonl and on the Gates screen. Exit codes: 0 all holds (replay: the same), 1 something is wrong (another
    answer), 3 evidence is missing.
    """
    if words[0] == "replay" and len(words) == 2:
        _replay(_run(words[1]), sample, before, alone)
    elif len(words) == 1:
        if sample or before or alone:
            fail("--sample, --before and --alone belong to `audit replay RUN`", exit_status=USAGE)
        _audit(_run(words[0]))
    else:
        fail("Give one run: `vlmconsole audit RUN`, or `vlmconsole audit replay RUN --sample ID`", exit_status=USAGE)


def _run(name: str) -> RunFolder:
    from vlmconsole.runs.folder import find_run

    return find_run(state.lab.places.runs, name)


def _audit(run: RunFolder) -> None:
    from vlmconsole.audit.run import audit as examine
    from vlmconsole.audit.run import keep

    began = time.monotonic()
    result = examine(run, state.lab.places, tick=lambda text: say(f"{text} …"))
    try:
        path = keep(result, state.lab.places)
    except OSError as error:
        path = None
        say(f"note: the audit could not be saved ({error.strerror})")
    value = {**result.to_json(), "path": str(path) if path else None}
    emit(value, lambda console: _print(console, value, time.monotonic() - began))
    raise typer.Exit(CODES[result.verdict])


def _print(console: Console, value: dict[str, Any], seconds: float) -> None:
    counts = value["counts"]
    style = {"PASS": "green", "FAIL": "bold red"}.get(value["verdict"], "yellow")
    console.print(value["verdict"], style=style, end="")
    text = f"  {counts['ok']} hold · {counts['wrong']} wrong · {counts['not verifiable']} not verifiable"
    console.print(f"{text}   {value['run']}", markup=False, highlight=False, soft_wrap=True)
    for finding in sorted(value["findings"], key=lambda finding: ORDER[finding["state"]]):
        console.print(sign_of(finding["state"]).mark, style=sign_of(finding["state"]).rich, end=" ")
        console.print(f"{finding['name']}: {finding['text']}", markup=False, highlight=False, soft_wrap=True)
    console.print(f"{seconds:.1f} s · {value['path']}", style="dim", markup=False, highlight=False, soft_wrap=True)


def _replay(run: RunFolder, sample: str, before: bool, alone: bool) -> None:
    from vlmconsole.audit.replay import choose_sample, replay

    side: Any = "before" if before else "after"
    done = replay(run, state.lab.places, sample or choose_sample(run, side), side=side, alone=alone, ask_server=True)
    emit(done.to_json(), lambda console: _print_replay(console, done))
    raise typer.Exit(FAILED if done.differs else OK)


def _print_replay(console: Console, done: Replayed) -> None:
    word, style = ("other", "bold red") if done.differs else ("the same", "green")
    console.print(word, style=style, end="")
    where = f"{done.side} of {done.run}, batch {done.batch} of {done.members}"
    console.print(f"  {done.sample}, {where}", markup=False, highlight=False, soft_wrap=True)
    for key, name in (("answer", "text"), ("token_ids", "token ids"), ("tensor_sha256", "input tensor")):
        if key in done.kept:
            console.print(f"· {name:<12} kept by the server, not compared", style="dim", markup=False)
            continue
        mark = "✗" if key in done.differs else "✓"
        then, now = (str(side[key]) for side in (done.then, done.now))
        console.print(f"{mark} {name:<12} {then}", markup=False, highlight=False, soft_wrap=True)
        if key in done.differs:
            console.print(f"  {'now':<12} {now}", markup=False, highlight=False, soft_wrap=True)
    if done.alone_same is not None:
        text = "the same token ids by itself" if done.alone_same else "other token ids by itself: not batch-invariant"
        console.print(f"· {text}", style="dim", markup=False)
    console.print("a check of the call, not a new score", style="dim", markup=False)
