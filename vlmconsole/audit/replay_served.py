"""Replaying an answer that a server gave: the same server, asked again, must say the same text.

A server keeps token ids and input tensors to itself: they are not compared, and said to be kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from pydantic import ValidationError

from vlmconsole.audit.images import Seen
from vlmconsole.audit.replay_errors import ReplayError
from vlmconsole.evaluation.answerer import ModelAnswer
from vlmconsole.evaluation.items import Item
from vlmconsole.evaluation.resolve import resolve
from vlmconsole.evaluation.resume import ATTEMPT, differing
from vlmconsole.evaluation.served import served
from vlmconsole.evaluation.settings import EvaluateSettings
from vlmconsole.measure.bench import find_server
from vlmconsole.measure.settings import BenchSettings
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places
from vlmconsole.text.settings_errors import explain_all


def ask_again(
    run: RunFolder,
    places: Places,
    side: Literal["before", "after"],
    members: Sequence[Seen],
    lines: dict[str, dict[str, Any]],
    tick: Callable[[str], None],
) -> dict[str, ModelAnswer]:
    """Return the answers to `members` by the side's server now, by id; `lines` are the batch's as they were answered.

    Raises ReplayError when that server is not the one that was evaluated, or cannot be reached.
    """
    try:
        spec = EvaluateSettings.model_validate(run.job().get("spec"))
    except ValidationError as error:
        wrong = explain_all(error.errors(), EvaluateSettings)
        raise ReplayError(f"{run.name} does not say how its server was asked: {wrong}.") from None
    if spec.own_servers:
        raise ReplayError(
            f"Each side of {run.name} had a server of its own, which ended with the evaluation.",
            "Only answers of a server that is there, or in-process ones, can be replayed.",
        )
    known = (run.read_json(ATTEMPT, {}) or {}).get(side)
    asked = resolve(spec, places).sides[side]
    server = find_server(BenchSettings(server=asked.server), places, say=tick)
    tick(f"asking {len(members)} questions again")
    with served(asked, server) as model:
        was = known.get("facts") if isinstance(known, dict) else None
        if was != model.facts:
            raise ReplayError(
                f"The server is not as it was evaluated ({differing(was, model.facts)}): it would be no replay.",
                code="evidence-changed",
            )
        answers = model.ask([_item(row, lines[row.uid]) for row in members])
    made = {row.uid: answer for row, answer in zip(members, answers, strict=True)}
    failed = next((answer.error for answer in answers if not answer.http_ok), None)
    if failed is not None:
        raise ReplayError(f"The server did not answer: {failed}.")
    return made


def _item(row: Seen, line: dict[str, Any]) -> Item:
    """The row as it was asked; its truth is not sent, and plays no part."""
    place = (str(line.get("group")), str(line.get("scorer")), str(line.get("dataset")), str(line.get("split")))
    return Item(row.uid, *place, row.example, row.sha256, row.pixel_sha256, row.prompt_sha, "")
