"""Sections of runs that trained: curves, development choice, what the answers looked like, which weights moved."""

from __future__ import annotations

import base64
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vlmconsole.reports import svg
from vlmconsole.reports.outcome import learning_lines
from vlmconsole.reports.parts import (
    Column,
    Facts,
    Paragraph,
    Part,
    Pictures,
    ReportImage,
    ReportPlot,
    Section,
    Table,
    answer,
    flat,
    shown,
)
from vlmconsole.runs import titles
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.live_view import Curve, RunStory
from vlmconsole.text.counts import plain_name
from vlmconsole.text.numbers import figure, number, percent
from vlmconsole.text.plain import inert, one_line

MOST_POINTS = 800  # of one drawn curve
MOST_CURVES = 24
MOST_PICTURES = 24
MOST_TENSORS = 60
MOST_SAMPLES = 100
LONG_NAME = 16  # characters that all names begin with, from which on they are said once
PICTURE_BYTES = 512 * 1024  # of one picture taken into the page
DEV = re.compile(r"dev-epoch(\d+)\.jsonl")


def sections(run: RunFolder) -> list[Section]:
    """Return what of these there is of a run."""
    made = []
    for title, parts in (
        ("What it learned", _learned(run)),
        ("Training" if run.file("training.jsonl").exists() else "While it ran", _curves(run)),
        ("Dev set: epoch selection", _development(run)),
        ("Answers during the training", _rollouts(run)),
        ("Weights and mask", _weights(run)),
        ("Answers", _samples(run)),
    ):
        if parts:
            made.append(Section(title, parts))
    return made


def _learned(run: RunFolder) -> list[Part]:
    """Whether a training that scored its start learned something, and likely causes where it did not."""
    summary = run.read_json("summary.json")
    lines = learning_lines(summary) if isinstance(summary, dict) else []
    return [Paragraph("", lines, "warn" if len(lines) > 1 else "")] if lines else []


def _curves(run: RunFolder) -> list[Part]:
    """Every number of training.jsonl over its steps; without that file, the curves that the run's events tell."""
    made: list[Part] = []
    rows = [row for row in run.read_jsonl("training.jsonl") if number(row.get("step")) is not None]
    if rows:
        names = dict.fromkeys(key for row in rows for key, value in row.items() if number(value) is not None)
        for name in [name for name in names if name not in ("step", "epoch", "t")][:MOST_CURVES]:
            points = [(row["step"], y) for row in rows if (y := number(row.get(name))) is not None]
            if len(points) > 1:
                made.append(_plot(_curve_title(name), points, "step"))
        first, last = rows[0], rows[-1]
        facts = [("rows", str(len(rows)))]
        facts += [(_curve_title(n), f"{figure(first.get(n))} → {figure(last.get(n))}") for n in names if n != "step"]
        return [*made, Facts("First and last row of training.jsonl", facts)]
    curves = [curve for curve in told_curves(run) if len(curve.points) > 1][:MOST_CURVES]
    for curve in curves:
        name = plain_name(curve.name, curve.unit) + (f", {curve.unit}" if curve.unit else "")
        made.append(_plot(name, curve.points, "step" if curve.steps else "s"))
    return made


def _curve_title(key: str) -> str:
    """A column of training.jsonl, where shares are those of one step's answers."""
    of_step = {"seconds": "seconds a step", "valid": "valid answers, share", "entropy": "entropy, nats"}
    return of_step.get(key) or titles.title(key) + (", share" if key in ("all_correct", "zero_advantage") else "")


def told_curves(run: RunFolder) -> tuple[Curve, ...]:
    """Return the metrics that a run's events tell, read to their end."""
    story = RunStory(run)
    live = story.read()
    while (more := story.read()) is not live:
        live = more
    return live.curves


def _plot(name: str, points: Sequence[tuple[float, float]], x: str) -> ReportPlot:
    every = max(1, -(-len(points) // MOST_POINTS))
    thin = [*points[::every], *([points[-1]] if (len(points) - 1) % every else [])]
    note = f"{len(points)} points" + (f", one of {every} drawn." if every > 1 else ".")
    values = [y for _, y in points]
    note += f" First {figure(values[0])}, last {figure(values[-1])}."
    return ReportPlot(name, svg.curves(name, [svg.Polyline(name, thin)], "seconds" if x == "s" else x, name), note)


def _development(run: RunFolder) -> list[Part]:
    scores = []
    for path in _names(run):
        match = DEV.fullmatch(path)
        if match:
            rows = list(run.read_jsonl(path))
            if rows:
                scores.append((int(match[1]), rows))
    if not scores:
        return []
    scores.sort(key=lambda score: score[0])
    summary = run.read_json("summary.json")
    kept = summary.get("epoch") if isinstance(summary, dict) else None
    rows_of, marks = [], []
    for epoch, rows in scores:
        rewards, right = [number(row.get("reward")) or 0.0 for row in rows], [row.get("all_correct") for row in rows]
        rows_of.append(
            [str(epoch), str(len(rows)), percent(sum(bool(x) for x in right) / len(rows), unit=""),
             figure(sum(rewards) / len(rows), 4), "kept" if epoch == kept else ""]
        )  # fmt: skip
        marks.append("")
    columns = [Column("epoch"), Column("n"), Column("all correct, %"), Column("mean reward"), Column("", False)]
    made: list[Part] = [Table("Dev set images", columns, rows_of, marks)]
    if len(scores) > 1:
        line = svg.Polyline(
            "mean reward", [(epoch, float(row[3])) for (epoch, _), row in zip(scores, rows_of, strict=True)]
        )
        made.append(ReportPlot("Mean reward on the dev set", svg.curves("mean reward", [line], "epoch", "mean reward")))
    rule = run.read_json("selection.json")
    if isinstance(rule, dict):
        made.append(Facts("The rule, frozen before the first step", flat(rule)))
    return made


def _parts(row: dict[str, Any]) -> str:
    parts = row.get("parts")
    return ", ".join(f"{inert(str(name))} {figure(part)}" for name, part in parts.items()) if parts else ""


def _rollouts(run: RunFolder) -> list[Part]:
    groups: dict[tuple[Any, Any], list[dict[str, Any]]] = defaultdict(list)
    for row in run.read_jsonl("rollouts.jsonl"):
        groups[str(row.get("step")), str(row.get("uid"))].append(row)
    if not groups:
        return []
    listed_groups = list(groups.values())
    rewards = [[number(row.get("reward")) or 0.0 for row in rows] for rows in listed_groups]
    even = sum(max(some) == min(some) for some in rewards)
    facts = [
        ("answers", str(sum(map(len, listed_groups)))),
        ("questions (groups)", str(len(listed_groups))),
        ("groups whose rewards are all equal, so without advantage", str(even)),
        ("mean reward", figure(sum(map(sum, rewards)) / sum(map(len, rewards)), 4)),
    ]
    made: list[Part] = [Facts("All answers", facts)]
    chosen = listed_groups if len(listed_groups) <= 6 else [*listed_groups[:3], *listed_groups[-3:]]
    columns = [Column("step"), Column("question", False), Column("truth", False), Column("answer", False)]
    parts = any(len(row.get("parts") or ()) > 1 for some in chosen for row in some)
    columns += [Column("reward"), Column("advantage"), *([Column("parts of the reward", False)] if parts else [])]
    rows = [
        [
            shown(row.get("step")),
            shown(row.get("uid")),
            answer(row.get("truth")),
            answer(row.get("answer")),
            figure(row.get("reward")),
            figure(row.get("advantage")),
            *([_parts(row)] if parts else []),
        ]
        for some in chosen
        for row in some[:16]
    ]
    made.append(Table("The first three groups and the last three", columns, rows, note="All are in rollouts.jsonl."))
    pictures = []
    for some in chosen:
        source = _picture(run, some[0])
        if source:
            caption = f"step {shown(some[0].get('step'))}, truth {answer(some[0].get('truth'))}; " + "; ".join(
                f"{answer(row.get('answer'))} → {figure(row.get('reward'))}" for row in some[:4]
            )
            pictures.append(ReportImage(source, caption))
    return [*made, Pictures("Their images", pictures[:MOST_PICTURES])] if pictures else made


def _picture(run: RunFolder, row: dict[str, Any]) -> str:
    """The row's picture out of the run's own folder as a data URL; "" when there is none that may be shown."""
    sha = str(row.get("picture_sha256") or "")
    named = [str(row.get("picture") or ""), f"pictures/{sha[:16]}.png", f"pictures/{sha}.png"]
    for name in named:
        if re.fullmatch(r"pictures/[A-Za-z0-9_-]{1,80}\.png", name):
            url = data_url(run.file(name))
            if url:
                return url
    return ""


def data_url(path: Path) -> str:
    """Return a PNG file as a data URL; "" for anything that is none, or that is too large."""
    try:
        if path.is_symlink() or path.stat().st_size > PICTURE_BYTES:
            return ""
        data = path.read_bytes()
    except OSError:
        return ""
    return f"data:image/png;base64,{base64.b64encode(data).decode()}" if data.startswith(b"\x89PNG\r\n\x1a\n") else ""


def _weights(run: RunFolder) -> list[Part]:
    made: list[Part] = []
    for name, title in (("mask.json", "Which tokens are learned from"), ("weights.json", "Which weights changed")):
        value = run.read_json(name)
        if not isinstance(value, dict):
            continue
        rest = {key: item for key, item in value.items() if key != "tensors"}
        made.append(Facts(title, flat(rest)))
        tensors = value.get("tensors")
        if isinstance(tensors, list):
            made += listed("Tensors", [tensor for tensor in tensors if isinstance(tensor, dict)], name, MOST_TENSORS)
    if made and run.file("selection.json").exists() and not _names(run, DEV):
        made.append(Paragraph("", ["The run has a selection rule but no development answers."], "warn"))
    return made


def listed(title: str, rows: Sequence[dict[str, Any]], file: str, most: int) -> list[Part]:
    """Objects of a file as a table of their plain values, at most `most` of them."""
    if not rows:
        return []
    names = [key for key in dict.fromkeys(key for row in rows for key in row) if not isinstance(rows[0].get(key), dict)]
    columns = [
        Column(one_line(titles.title(name), 40), all(number(row.get(name)) is not None for row in rows))
        for name in names
    ]
    lines = [[_cell(name, row.get(name)) for name in names] for row in rows[:most]]
    note = f"{len(rows) - most} more in {file}." if len(rows) > most else ""
    if "name" in names and len(lines) > 1:
        at = names.index("name")
        shared = _shared([line[at] for line in lines])
        if len(shared) > LONG_NAME:
            for line in lines:
                line[at] = line[at].removeprefix(f"{shared}.")
            note = f"Every name begins with {shared}. {note}".strip()
    return [Table(title, columns, lines, note=note)]


def _shared(names: Sequence[str]) -> str:
    """The dotted parts that all names begin with."""
    parts: list[str] = []
    for some in zip(*(name.split(".")[:-1] for name in names), strict=False):
        if len(set(some)) > 1:
            break
        parts.append(some[0])
    return ".".join(parts)


def _cell(name: str, value: object) -> str:
    """A figure or text of a table; of a hash its beginning, since the list of raw files holds it whole."""
    if name.endswith("_sha256") and isinstance(value, str) and len(value) > 12:
        return f"{inert(value[:12])}…"
    return figure(value) if number(value) is not None else shown(value)


def _samples(run: RunFolder) -> list[Part]:
    """What single questions came to, and the pictures that lie in the run folder itself."""
    made = listed("Answers", list(run.read_jsonl("samples.jsonl")), "samples.jsonl", MOST_SAMPLES)
    pictures = [
        ReportImage(url, name)
        for name in _names(run, re.compile(r"[\w.-]+\.png"))[:8]
        if (url := data_url(run.file(name)))
    ]
    return [*made, Pictures("Images of this run", pictures)] if pictures else made


def _names(run: RunFolder, pattern: re.Pattern[str] | None = None) -> list[str]:
    """Files that lie in the run folder itself."""
    try:
        names = sorted(path.name for path in run.path.iterdir() if path.is_file())
    except OSError:
        return []
    return [name for name in names if pattern is None or pattern.fullmatch(name)]
