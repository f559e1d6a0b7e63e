"""`vlmconsole verify [RUN]`: whether runs, frozen plans, their data and the audits are what they were."""

from typing import Annotated

import typer

from vlmconsole.cli.common import FAILED, emit, state
from vlmconsole.gates.evidence import PLAN
from vlmconsole.gates.tamper_check import altered as altered_in
from vlmconsole.gates.trained import Freezing, freezing
from vlmconsole.ledger.chain import Chain, Ledger, sha256_file
from vlmconsole.ledger.freezing import frozen_when
from vlmconsole.runs.folder import RunFolder, find_run, list_runs
from vlmconsole.runs.places import Places
from vlmconsole.text.signs import BAD, sign_of

FINE = ("intact", "not sealed")


def register(app: typer.Typer) -> None:
    app.command("verify")(verify)


def verify(
    run: Annotated[str, typer.Argument(help="Run: a name or part of one, a path, or `last`; default: all")] = "",
) -> None:
    """Say of each run, frozen plan, dataset that a plan names, and kept audit whether it is intact, changed or missing.

    Of a judged run it also says when its plan was frozen against its training. Exit 1 when one is not intact.
    """
    places = state.lab.places
    ledger = Ledger(places.ledger)
    chain = ledger.read()
    if run:
        folders = [find_run(places.runs, run)]
    else:
        present = list_runs(places.runs)
        names = {folder.name for folder in present}
        sealed = [str(entry["run"]) for entry in chain.entries if entry.get("kind") == "sealed"]
        gone = [RunFolder(places.runs / name) for name in dict.fromkeys(sealed) if name not in names]
        folders = [*present, *gone]
    verdicts = [ledger.verify(folder, chain) for folder in folders]
    plans = [_freezing(folder, places, chain) for folder in folders]
    tampered = {} if run else altered_in(places, chain)
    changes = [text for texts in tampered.values() for text in texts]
    bad = [verdict for verdict in verdicts if verdict.status not in FINE]
    value = {
        "ledger": {"path": str(ledger.path), "entries": len(chain.entries), "broken": chain.broken},
        "runs": [
            {**verdict.to_json(), **({"plan": plan.to_json()} if plan else {})}
            for verdict, plan in zip(verdicts, plans, strict=True)
        ],
        **{kind: tampered.get(kind, []) for kind in ("plans", "data", "audits")},
        "intact": not bad and not changes and chain.broken is None,
    }
    lines = []
    for verdict, plan in zip(verdicts, plans, strict=True):
        lines.append(f"{sign_of(verdict.status, BAD).mark} {verdict.run}  {verdict.status}: {verdict.why}")
        lines += [f"  {'! ' if plan.late else ''}its gate plan was {plan.text}"] if plan else []
    lines += [f"✗ {text}" for text in changes]
    whole = chain.broken or f"the chain of {len(chain.entries)} entries is whole"
    emit(value, "\n".join([*lines, f"{'✗' if chain.broken else '✓'} ledger: {whole}"]))
    raise typer.Exit(0 if value["intact"] else FAILED)


def _freezing(run: RunFolder, places: Places, chain: Chain) -> Freezing | None:
    """When the run's gate plan was frozen, against the training that it judges; None for a run without either."""
    if chain.broken or run.job().get("kind") != "evaluate" or not run.file(PLAN).is_file():
        return None
    return freezing(run, places, frozen_when(chain, sha256_file(run.file(PLAN))))
