"""`vlmconsole eval DATASET`: ask a dataset's test questions, and say the score; no preset needed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vlmconsole.cli.common import USAGE, emit, fail, say, state

if TYPE_CHECKING:
    from vlmconsole.runs.folder import RunFolder

KIND = "evaluate"
DEMO = "demo"  # the profile whose model also answers in this process


def register(app: typer.Typer) -> None:
    """Add `eval` to the command tree."""
    app.command("eval")(evaluate)


def evaluate(
    dataset: Annotated[str, typer.Argument(help="Dataset: a name, a folder, or a shipped recipe, which is made first")],
    split: Annotated[str, typer.Option(help="Split or group; default: every test split")] = "",
    server: Annotated[str, typer.Option(help="Server profile that answers; default: the setting `server`")] = "",
    base: Annotated[str, typer.Option(help="Model folder or asset:NAME that answers in this process")] = "",
    adapter: Annotated[str, typer.Option(help="Adapter under test")] = "",
    against: Annotated[
        str, typer.Option(metavar="B", help="Compare with B: `base`, an adapter, a server profile, a model folder")
    ] = "",
    blind: Annotated[
        str, typer.Option(metavar="HOW", help="Ask without the images too: grey, swap (another example's) or none")
    ] = "",
    plan: Annotated[str, typer.Option(metavar="HASH", help="Judge by this frozen gate plan; needs --against")] = "",
    examples: Annotated[
        int | None, typer.Option("-n", "--examples", min=2, help="So many examples, drawn by the seed; default: all")
    ] = None,
    concurrency: Annotated[int | None, typer.Option("-c", "--concurrency", help="Requests in flight, C")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Max tokens of an answer; default 64")] = None,
    scorer: Annotated[str, typer.Option(help="Scorer by name; default: as the dataset says")] = "",
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change any setting; repeatable")
    ] = None,
    hand_over: Annotated[
        bool, typer.Option("--hand-over", help="Allow stopping a server that holds the device; it restarts afterwards")
    ] = False,
) -> None:
    """Evaluate a model on a dataset: score with 95 % interval, invalid answers, groups; paired against another; blind.

    Without --server, --base and --adapter the lab's server answers; while that is the demo, its model in this process.
    """
    from vlmconsole.cli.foreground import follow_job, interruptions
    from vlmconsole.evaluation.named_sides import sides_of
    from vlmconsole.jobs.presets import Preset
    from vlmconsole.queue import adding, process
    from vlmconsole.queue.store import Store
    from vlmconsole.runs.folder import RunFolder

    places = state.lab.places
    if blind not in ("", "grey", "swap", "none"):
        fail(f"--blind {blind}: there is no such way.", "It is grey, swap or none.", USAGE, code="blind-unknown")
    if not server and not base and not adapter and (chosen := state.lab.settings.server) != DEMO:
        server = chosen
    given: dict[str, Any] = {
        "data": [dataset],
        "groups": [split] if split else None,
        "blind": blind or None,
        "plan": plan or None,
        "sample": examples,
        "concurrency": concurrency,
        "max_new_tokens": max_tokens,
        "scorer": scorer or None,
    }
    spec = sides_of(places, server=server, base=base, adapter=adapter, against=against)
    spec |= {key: value for key, value in given.items() if value is not None}
    what = adapter or server or base or "the bundled model"
    title = f"Evaluate {what}{f' against {against}' if against else ''} on {dataset}"
    planned = adding.plan(Preset("eval", KIND, title, spec), sets or [], places)
    store = Store(places.queue)
    with interruptions() as noted:
        number = adding.add(store, planned, hand_over=hand_over)
        for warning in dict.fromkeys(job_plan.warning for job_plan in planned if job_plan.warning):
            say(f"warning: {warning}")
        process.ensure(places)
        say(f"job {number}: {planned[0].job.title}")
        code = follow_job(store, number, places, cancels=noted) or 0
    job = store.get(number)
    if not job.run:  # it never came to run
        emit({"run": None, "dataset": dataset, "state": job.state, "reason": job.reason}, job.state)
        raise typer.Exit(code)
    run = RunFolder(Path(job.run))
    from vlmconsole.cli.run import ending, verdict_line
    from vlmconsole.desks.queue import verdict_of

    verdict = verdict_of(job)
    text = ending(run) + (f"\n{verdict_line(job)}" if verdict else "")
    emit(result_of(run, dataset) | {"verdict": verdict or None}, text)
    raise typer.Exit(code)


def result_of(run: RunFolder, dataset: str) -> dict[str, Any]:
    """The shape of `eval --json`: the tested side's score, over all and by group; what failed is counted apart."""
    held, now = run.read_json("summary.json"), run.state()
    summary: dict[str, Any] = held if isinstance(held, dict) else {}
    scores = summary.get("scores") or {}
    side = "after" if "after" in scores else "before"
    score = scores.get(side) or {}
    groups = summary.get("groups") or {}
    value: dict[str, Any] = {
        "run": run.name,
        "dataset": dataset,
        "n": score.get("answered", 0),
        "score": {key: score.get(key) for key in ("mean", "low", "high")},
        "correct": score.get("correct", 0),
        "invalid": score.get("invalid", 0),
        "failed": score.get("failed", 0),
        "groups": {name: (group.get("scores") or {}).get(side) for name, group in groups.items()},
    }
    if summary.get("paired"):
        value["paired"] = summary["paired"]
        value["against"] = scores.get("before")
    if summary.get("blind"):
        value["blind"] = summary["blind"]
    started, ended = now.get("started"), now.get("ended")
    return value | {
        "conditions": run.read_json("conditions.json"),
        "scorers": summary.get("scorers"),
        "seconds": round(ended - started, 3) if started and ended else None,
        "path": str(run.path),
        "state": now.get("state"),
        "reason": now.get("reason"),
    }
