"""Replaying one answer of an evaluation: the same text, token ids and input tensor, or the difference named.

A check that a later call of the final adapter is the call that was evaluated. It is no new score.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vlmconsole.audit.images import AuditDataError, Seen, read_split
from vlmconsole.audit.replay_errors import ReplayError
from vlmconsole.data.generations import generations
from vlmconsole.gates.trained import evaluated_adapter
from vlmconsole.models.door import bare_door, door
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places

if TYPE_CHECKING:
    from vlmconsole.training.generation import Generated
    from vlmconsole.training.model import Loaded

Side = Literal["before", "after"]
COMPARED = ("answer", "token_ids", "tensor_sha256")


@dataclass(frozen=True)
class Replayed:
    """One answer, then and now. `members` were generated together, as they were in the evaluation.

    `alone_same` says whether the sample by itself gives the same token ids (None: not tried).
    """

    run: str
    side: Side
    sample: str
    truth: Any
    batch: str
    members: int
    then: dict[str, Any]
    now: dict[str, Any]
    alone_same: bool | None = None

    @property
    def differs(self) -> tuple[str, ...]:
        """Which of text, token ids and input tensor are not the same."""
        return tuple(key for key in COMPARED if key not in self.kept and self.then[key] != self.now[key])

    @property
    def kept(self) -> tuple[str, ...]:
        """What a server kept to itself, so that it cannot be compared."""
        return tuple(key for key in COMPARED if self.then[key] is None and self.now[key] is None)

    def to_json(self) -> dict[str, Any]:
        """Return the shape of `audit replay --json`."""
        return {
            "run": self.run,
            "side": self.side,
            "sample": self.sample,
            "truth": self.truth,
            "batch": self.batch,
            "members": self.members,
            "then": self.then,
            "now": self.now,
            "alone_same": self.alone_same,
            "same": not self.differs,
            "differs": list(self.differs),
            "kept_by_server": list(self.kept),
        }


def choose_sample(run: RunFolder, side: Side = "after") -> str:
    """Return the sample to replay when none is named: truth 11 and 12 where there is one, else the largest counts.

    Raises ReplayError when there is none.
    """

    def size(line: dict[str, Any]) -> tuple[bool, int]:
        try:
            truth = json.loads(line["truth"])
            counts = (int(truth["red_circles"]), int(truth["blue_squares"]))
        except (ValueError, KeyError, TypeError):
            return (False, -1)
        return (counts == (11, 12), sum(counts))

    lines = [line for line in run.read_jsonl(f"{side}.jsonl") if line.get("id")]
    if not lines:
        raise ReplayError(f"{run.name} holds no answers of {side}.")
    return str(max(lines, key=size)["id"])


def replay(
    run: RunFolder,
    places: Places,
    sample: str,
    *,
    side: Side = "after",
    alone: bool = False,
    ask_server: bool = False,
    tick: Callable[[str], None] = lambda _: None,
) -> Replayed:
    """Generate the sample again, in the batch that it was made in; `alone` also by itself.

    ask_server: whether an answer of a server is asked for there again, which starts one of ours. Raises ReplayError.
    """
    lines = [line for line in run.read_jsonl(f"{side}.jsonl") if line.get("id")]
    line = next((row for row in lines if row["id"] == sample), None)
    if line is None:
        near = ", ".join(str(row["id"]) for row in lines[:3])
        raise ReplayError(
            f"{run.name} has no sample {sample!r} in {side}.jsonl.",
            f"It has, among others: {near}.",
            code="sample-missing",
        )
    spec = run.job().get("spec")
    at_server = isinstance(spec, dict) and spec.get("backend") == "server"
    if not (at_server and ask_server) and (line.get("token_ids") is None or line.get("tensor_sha256") is None):
        raise ReplayError(
            f"{sample} came from a server, which keeps token ids and input tensors to itself.",
            "`vlmconsole audit replay` asks that server again, for the text alone.",
            code="answer-served",
        )
    if line.get("batch") is None:
        raise ReplayError(f"{sample} does not say in which batch it was made.")
    members = _members(places, [row for row in lines if row.get("batch") == line["batch"]])
    if at_server:
        from vlmconsole.audit.replay_served import ask_again

        batch = {str(row["id"]): row for row in lines if row.get("batch") == line["batch"]}
        replayed = ask_again(run, places, side, members, batch, tick)
        then, now = {key: line[key] for key in COMPARED}, dict.fromkeys(COMPARED)
        now["answer"] = replayed[sample].answer
        return Replayed(run.name, side, sample, line.get("truth"), str(line["batch"]), len(members), then, now)
    tick("loading the model")
    loaded, limit = _model(run, places, side)
    tick(f"generating {len(members)} answers together")
    from vlmconsole.training.generation import answers, prompt_of

    asks = [prompt_of(row.example) for row in members]
    made = {
        ask.uid: got
        for ask, got in zip(asks, answers(loaded, asks, max_new_tokens=limit, batch=len(asks)), strict=True)
    }
    alone_same = None
    if alone:
        asked = [ask for ask in asks if ask.uid == sample]
        single = next(iter(answers(loaded, asked, max_new_tokens=limit, batch=1)))
        alone_same = single.token_ids == made[sample].token_ids
    then = {key: line[key] for key in COMPARED}
    return Replayed(
        run.name, side, sample, line.get("truth"), str(line["batch"]), len(asks), then, _now(made[sample]), alone_same
    )


def _now(made: Generated) -> dict[str, Any]:
    return {"answer": made.text, "token_ids": list(made.token_ids), "tensor_sha256": made.tensor_sha256}


def _members(places: Places, lines: list[dict[str, Any]]) -> list[Seen]:
    """The rows of a batch in their dataset's order: that is how they were asked, however they were written."""
    wanted = {str(line["id"]): line for line in lines}
    rows: dict[str, Seen] = {}
    for dataset, split in dict.fromkeys((str(line.get("dataset")), str(line.get("split"))) for line in lines):
        newest = places.datasets / dataset / f"{split}.parquet"
        earlier = [folder / newest.name for folder in generations(places.datasets, dataset)[1:]]
        try:
            # An earlier generation's row is taken where the newest has none, or another picture by that name.
            every = (row for path in (*filter(Path.is_file, earlier), newest) for row in read_split(path))
            for row in (question for example in every for question in example.questions()):
                line = wanted.get(row.uid)
                if line is not None and (row.uid not in rows or row.sha256 == line.get("picture_sha256")):
                    rows[row.uid] = row
        except AuditDataError as error:
            raise ReplayError(f"The images of the batch cannot be read: {error}.") from None
    for uid, line in wanted.items():
        if uid not in rows:
            raise ReplayError(f"{uid}, of the same batch, is in no dataset of this lab any more.")
        if rows[uid].sha256 != line.get("picture_sha256"):
            raise ReplayError(f"{uid} is another image now than was evaluated.")
    return list(rows.values())


def _model(run: RunFolder, places: Places, side: Side) -> tuple[Loaded, int]:
    """The side's model as it was evaluated, and the ceiling of an answer (tokens). Raises ReplayError for another."""
    try:
        import torch
    except ImportError:
        raise ReplayError("Replaying needs torch.", "pip install 'vlmconsole[train]'") from None

    from transformers.utils import logging

    from vlmconsole.training import bases, model
    from vlmconsole.training.adapters import store

    logging.disable_progress_bar()
    spec, summary = run.job().get("spec"), run.read_json("summary.json", {})
    conditions = (run.read_json("conditions.json", {}) or {}).get(side)
    if not isinstance(spec, dict) or not isinstance(conditions, dict):
        raise ReplayError(f"{run.name} does not say how {side} was asked: its settings or conditions are missing.")
    stored = summary.get(side) if isinstance(summary, dict) else None
    who: dict[str, Any] = stored if isinstance(stored, dict) else {}
    settings = conditions.get("settings") or {}
    folder = bases.base_folder(str(spec.get(f"{side}_model") or spec.get("base") or ""))
    _same("model", store.base_sha256(folder), who.get("model_sha256"))
    torch.set_num_threads(int(settings.get("threads") or 1))
    device = bases.device_for(str(settings.get("device") or "auto"))
    try:
        loaded = model.load(folder, dtype=str(conditions.get("precision") or "float32"), device=device)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ReplayError(f"The model in {folder} cannot be loaded: {reason}") from None
    if conditions.get("prompt_sha256") is None:
        loaded.template = bare_door()  # as it was asked then
    else:
        _same("prompt", door(folder).prompt_sha256, conditions["prompt_sha256"])
    named = str(spec.get(f"{side}_adapter") or "")
    if named:
        adapter = store.find_adapter(places, evaluated_adapter(run, side, places) or named)
        _same("adapter", adapter.sha256, who.get("adapter_sha256"))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of the libraries among themselves
            store.load_peft(loaded, adapter.path)
    return loaded, int(conditions.get("max_tokens") or spec.get("max_new_tokens") or 64)


def _same(what: str, now: str, then: Any) -> None:
    if then is not None and now != then:
        raise ReplayError(
            f"The {what} is {now[:12]}… now, {str(then)[:12]}… was evaluated: it would be no replay.",
            code="evidence-changed",
        )
