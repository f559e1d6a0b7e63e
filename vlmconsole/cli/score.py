"""`vlmconsole score`: the lab's scorers over a JSONL file, one row an input line, in order, with the line's id."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer

from vlmconsole.cli.common import FAILED, USAGE, emit, fail, say
from vlmconsole.text.counts import many
from vlmconsole.text.plain import one_line


class _BadLineError(ValueError):
    """A line that cannot be scored because of itself, not because of the answer in it."""


def register(app: typer.Typer) -> None:
    """Add `score` and its two scorers to the command tree."""
    group = typer.Typer(no_args_is_help=True, help="Score a JSONL file of answers.")

    @group.command("counting")
    def counting(
        file: str = typer.Argument(..., metavar="FILE.jsonl", help="Lines with answer and truth; - is stdin"),
    ) -> None:
        """Strict counting score: rows {reward, all_correct, partial, valid}."""
        from vlmconsole.scoring.reward import SCORER

        _score(file, counting_row, SCORER, "reward")

    @group.command("textvqa")
    def textvqa(
        file: str = typer.Argument(
            ..., metavar="FILE.jsonl", help="Lines with prediction and answers, or raw; - is stdin"
        ),
    ) -> None:
        """Official TextVQA score: rows {score, normalised}. A line with only `raw` is normalised, not scored."""
        from vlmconsole.scoring.textvqa import SCORER

        _score(file, textvqa_row, SCORER, "score")

    app.add_typer(group, name="score")


def counting_row(line: dict[str, Any]) -> dict[str, Any]:
    """One row for one line with `answer` (text) and `truth` (object or JSON text)."""
    from vlmconsole.scoring.reward import TruthError, read_truth, score_counts

    for name in ("answer", "truth"):
        if name not in line:
            raise _BadLineError(f"no field {name}")
    if not isinstance(line["truth"], (str, dict)):
        raise _BadLineError("truth must be an object with two counts")
    try:
        score = score_counts(line["answer"], read_truth(line["truth"]))
    except TruthError as error:
        raise _BadLineError(str(error)) from error
    row = {"reward": score.reward, "all_correct": score.all_correct, "partial": score.partial, "valid": score.valid}
    return {**row, "reason": score.reason} if score.reason else row


def textvqa_row(line: dict[str, Any]) -> dict[str, Any]:
    """One row for one line with `prediction` and ten `answers`, or with `raw` text to normalise only."""
    from vlmconsole.scoring.textvqa import ANNOTATORS, normalise, soft_score

    text = line.get("prediction", line.get("raw"))
    if not isinstance(text, str):
        raise _BadLineError("no text in the field prediction (or raw)")
    if "prediction" not in line:
        return {"score": None, "normalised": normalise(text)}
    answers = line.get("answers")
    if not isinstance(answers, list) or not all(isinstance(answer, str) for answer in answers):
        raise _BadLineError("answers must be a list of texts")
    row: dict[str, Any] = {"score": soft_score(text, answers), "normalised": normalise(text)}
    if row["score"] is None:
        row["reason"] = f"the official score needs exactly {ANNOTATORS} answers, not {len(answers)}"
    return row


def _score(file: str, row_of: Callable[[dict[str, Any]], dict[str, Any]], scorer: str, measure: str) -> None:
    rows: list[dict[str, Any]] = []
    numbers: list[int] = []
    seen: Counter[str] = Counter()
    for number, text in _lines(file):
        numbers.append(number)
        named: dict[str, Any] = {}
        try:
            line = _object(text)
            if isinstance(line.get("id"), (str, int)):
                named = {"id": line["id"]}
                seen[str(line["id"])] += 1
            rows.append({**named, **row_of(line)})
        except _BadLineError as error:
            rows.append({**named, "error": f"line {number}: {error}"})
    wrong = [row["error"] for row in rows if "error" in row]
    scored = [row[measure] for row in rows if row.get(measure) is not None]
    mean = sum(scored) / len(scored) if scored else None

    def human(console: Any) -> None:
        if not rows:
            console.print(f"{file} holds no line to score.", markup=False, soft_wrap=True)
        for number, row in zip(numbers, rows, strict=True):
            text = row.get("error") or "  ".join(f"{key} {value}" for key, value in row.items())
            console.print(f"{number:>5}  {text}", markup=False, soft_wrap=True)
        if mean is not None:
            console.print(f"mean {measure} {mean:.4f} over {many(len(scored), 'line')}  ({scorer})", markup=False)

    emit({"rows": rows, "scorer": scorer, "mean": mean, "n": len(scored)}, human)
    twice = [name for name, n in seen.items() if n > 1]
    if twice:
        say(
            f"note: {many(len(twice), 'id')} in more than one line, each counted: {', '.join(map(one_line, twice[:5]))}"
        )
    if wrong:
        say(f"{len(wrong)} of {len(rows)} lines could not be scored; the first: {wrong[0]}")
        raise typer.Exit(FAILED)


def _lines(file: str) -> Iterator[tuple[int, str]]:
    """(line number from 1, text) of every line that is not blank. Lines end with \\n only: answers hold U+2028."""
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        fail(f"{file} cannot be read: {error.strerror}.", "Give a JSONL file, or - for standard input.", USAGE)
    for number, line in enumerate(data.split(b"\n"), 1):
        text = line.decode("utf-8", errors="replace").removeprefix("\ufeff" if number == 1 else "")
        if text.strip():
            yield number, text


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _BadLineError("not JSON") from error
    if not isinstance(value, dict):
        raise _BadLineError("not a JSON object")
    return value
