"""`vlmconsole score` and `scorers`: a scorer over a JSONL file, a row an input line, in order, as it is read."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vlmconsole.cli.common import FAILED, USAGE, console, emit, fail, plain_json, say, state
from vlmconsole.text.counts import many
from vlmconsole.text.plain import one_line

if TYPE_CHECKING:
    from vlmconsole.scoring.scorer import Scorer

LONGEST_LINE = 2**26  # bytes
SHOWN_IDS = 10_000  # ids remembered, to tell of one that comes twice


class _BadLineError(ValueError):
    """A line that cannot be scored because of itself, not because of the answer in it."""


def register(app: typer.Typer) -> None:
    """Add `score` and `scorers` to the command tree."""

    @app.command("score")
    def score(
        scorer: Annotated[str, typer.Argument(metavar="SCORER", help="Name, or python:FILE.py:FUNCTION")],
        file: Annotated[str, typer.Argument(metavar="FILE.jsonl", help="Lines with prediction and truth; - is stdin")],
        sets: Annotated[
            list[str] | None, typer.Option("--set", metavar="OPTION=VALUE", help="Set an option; repeatable")
        ] = None,
    ) -> None:
        """Score a JSONL file of answers. `vlmconsole scorers` lists the scorers with their options.

        A line holds prediction, and truth (or answers: a list of human answers); its options go before --set.
        """
        from vlmconsole.scoring.registry import find_scorer

        rule = find_scorer(scorer)
        options = _options(sets or [])
        rule.parse(options)
        _Report(rule, options).write(file)

    @app.command("scorers")
    def scorers(name: Annotated[str, typer.Argument(metavar="[SCORER]", help="One scorer alone")] = "") -> None:
        """List the scorers with options and an example."""
        from vlmconsole.scoring.listing import described, lines
        from vlmconsole.scoring.registry import find_scorer, scorer_names

        listed = [find_scorer(name)] if name else [find_scorer(known) for known in scorer_names()]

        def human(out: Any) -> None:
            for line in lines(listed):
                out.print(line, markup=False, soft_wrap=True)

        emit({"scorers": [described(scorer) for scorer in listed]}, human)


def _options(sets: list[str]) -> dict[str, Any]:
    from vlmconsole.jobs.presets import parse_value

    options: dict[str, Any] = {}
    for item in sets:
        key, equals, text = item.partition("=")
        if not equals or not key.strip():
            fail(f"--set {item}: write it as option=value", "", USAGE, code="option-invalid")
        place = options
        *path, last = key.strip().split(".")
        for step in path:
            place = place.setdefault(step, {})
            if not isinstance(place, dict):
                fail(f"--set {item}: {step} has no options inside", "", USAGE, code="option-invalid")
        place[last] = parse_value(text.strip())
    return options


class _Report:
    """Writes a row for each line as it comes: one JSON value with `--json`, numbered lines without."""

    def __init__(self, scorer: Scorer[Any], options: dict[str, Any]) -> None:
        self.scorer, self.options = scorer, options
        self.rows = self.n = 0
        self.total = 0.0
        self.wrong: list[str] = []
        self.failed = 0  # lines without a score
        self.unjudged = 0  # answers that score 0 because the scorer itself failed
        self.cause = ""  # of the first of them
        self.seen: Counter[str] = Counter()

    def write(self, file: str) -> None:
        """Score the file. Exits 1 when a line could not be scored, and when the scorer failed on every one."""
        lines = _lines(file)
        first = next(lines, None)  # a file that is not there is told before any output
        if state.json:
            sys.stdout.write(f'{{"scorer": {json.dumps(self.scorer.label)}, "rows": [')
        out = None if state.json else console()
        for number, text in chain(() if first is None else (first,), lines):
            row = self._row(number, text)
            self.rows += 1
            if out is None:
                sys.stdout.write((", " if self.rows > 1 else "") + plain_json(row))
            else:
                failure = row.get("error")  # a text; a number is a figure of the scorer
                shown = failure if isinstance(failure, str) else "  ".join(f"{key} {row[key]}" for key in row)
                out.print(f"{number:>5}  {shown}", markup=False, soft_wrap=True)
        mean = self.total / self.n if self.n else None
        if out is None:
            sys.stdout.write(f'], "mean": {plain_json(mean)}, "n": {self.n}}}\n')
            sys.stdout.flush()
        elif not self.rows:
            out.print(f"{file} holds no line to score.", markup=False, soft_wrap=True)
        elif mean is not None:
            name = "reward" if self.scorer.name == "counting" else "score"
            out.print(f"mean {name} {mean:.4f} over {many(self.n, 'line')}  ({self.scorer.label})", markup=False)
        self._remarks()

    def _remarks(self) -> None:
        twice = [name for name, n in self.seen.items() if n > 1]
        if twice:
            names = ", ".join(map(one_line, twice[:5]))
            say(f"note: {many(len(twice), 'id')} in more than one line, each counted: {names}")
        if self.wrong:
            say(f"{self.failed} of {self.rows} lines could not be scored; the first: {self.wrong[0]}")
        if self.unjudged:
            n = f"{self.unjudged} of {self.rows}"
            say(f"{n} answers score 0 because {self.scorer.label} failed; the first: {self.cause}")
        if self.wrong or 0 < self.unjudged == self.rows:
            raise typer.Exit(FAILED)

    def _row(self, number: int, text: str) -> dict[str, Any]:
        named: dict[str, Any] = {}
        try:
            line = _object(text)
            if isinstance(line.get("id"), str | int):
                named = {"id": line["id"]}
                if len(self.seen) < SHOWN_IDS or str(line["id"]) in self.seen:
                    self.seen[str(line["id"])] += 1
            row = self._sound(scored_row(self.scorer, line, self.options))
        except Exception as error:  # whatever a scorer of another package raises ends here as its row
            cause = (
                error if isinstance(error, _BadLineError) else f"{self.scorer.label}: {type(error).__name__}: {error}"
            )
            message = f"line {number}: {one_line(cause, 400)}"
            self.failed += 1
            self.wrong = self.wrong or [message]
            return {**named, "error": message}
        if row.get("score") is not None:
            self.n += 1
            self.total += row["score"]
        if row.get("failed") is True:
            self.unjudged += 1
            self.cause = self.cause or f"line {number}: {one_line(row.get('reason', ''))}"
        return {**named, **row}

    def _sound(self, row: dict[str, Any]) -> dict[str, Any]:
        """The row, if it can be written and averaged. Raises _BadLineError and what `plain_json` raises."""
        score = row.get("score")
        if score is not None and not (isinstance(score, int | float) and 0 <= score <= 1):  # NaN too
            raise _BadLineError(f"{self.scorer.label} gave the score {score!r:.40}, not a number from 0 to 1")
        plain_json(row)
        return row


def scored_row(scorer: Scorer[Any], line: dict[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The row of one line. Raises _BadLineError naming what is missing or wrong in it."""
    from vlmconsole.errors import LabError

    key = "prediction" if "prediction" in line else "answer"
    if scorer.name == "textvqa" and (row := _textvqa_row(line)) is not None:
        return row
    if key not in line:
        raise _BadLineError("no field prediction")
    truth = next((line[name] for name in ("truth", "answers") if name in line), None)
    if truth is None:
        raise _BadLineError("no field truth")
    try:
        score = scorer.score(line[key], truth, _row_options(scorer, line, options))
    except LabError as error:
        raise _BadLineError(error.message) from error
    row = {"score": score.score, "correct": score.correct, "valid": score.valid, **score.details}
    if scorer.name == "counting":  # the keys of this scorer's rows before there were others
        row |= {"reward": score.score, "all_correct": score.correct, "partial": score.score}
    return row if scorer.name == "textvqa" else {**row, "reason": score.reason}


def _row_options(scorer: Scorer[Any], line: dict[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    given = line.get("options", {})
    own = scorer.row_option
    if own and own in line:
        given = {own: line[own]}
    elif own and "options" in line and not (isinstance(given, dict) and own in given):
        given = {own: given}
    if not isinstance(given, dict):
        raise _BadLineError("options must be an object")
    return {**options, **given}


def _textvqa_row(line: dict[str, Any]) -> dict[str, Any] | None:
    """A line with `raw` text is normalised, not scored; one with too few answers has no official score."""
    from vlmconsole.scoring.textvqa import ANNOTATORS, normalise

    text = line.get("prediction", line.get("raw"))
    if not isinstance(text, str):
        raise _BadLineError("no text in the field prediction (or raw)")
    if "prediction" not in line:
        return {"score": None, "normalised": normalise(text)}
    answers = line.get("answers", line.get("truth"))
    if not isinstance(answers, list) or not all(isinstance(answer, str) for answer in answers):
        raise _BadLineError("answers must be a list of texts")
    if len(answers) == ANNOTATORS:
        return None
    reason = f"the official score needs exactly {ANNOTATORS} answers, not {len(answers)}"
    return {"score": None, "normalised": normalise(text), "reason": reason}


def _lines(file: str) -> Iterator[tuple[int, str]]:
    """(line number from 1, text) of every line that is not blank. Lines end with \\n only: answers hold U+2028."""
    try:
        stream = sys.stdin.buffer if file == "-" else Path(file).open("rb")  # noqa: SIM115 - read to its end below
    except OSError as error:
        fail(f"{file} cannot be read: {error.strerror}.", "Give a JSONL file, or - for standard input.", USAGE)
    with stream:
        number = 0
        try:
            while line := stream.readline(LONGEST_LINE):
                number += 1
                text = line.decode("utf-8", errors="replace").removeprefix("\ufeff" if number == 1 else "")
                if text.strip():
                    yield number, text.removesuffix("\n")
        except OSError as error:
            fail(f"{file} cannot be read: {error.strerror}.", "Give a JSONL file, or - for standard input.", USAGE)


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _BadLineError("not JSON") from error
    if not isinstance(value, dict):
        raise _BadLineError("not a JSON object")
    return value
