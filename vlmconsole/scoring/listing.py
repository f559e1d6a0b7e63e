"""The scorers as lists show them: for `vlmconsole scorers` and docs/scorers.md, one source for both."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from vlmconsole.scoring.scorer import Scorer
from vlmconsole.text.toml import toml_value


def described(scorer: Scorer[Any]) -> dict[str, Any]:
    """Return a scorer as JSON values."""
    return {
        "name": scorer.name,
        "label": scorer.label,
        "summary": scorer.summary,
        "truth": scorer.truth_form,
        "options": [
            {"name": name, "default": scorer_default(scorer, name), "description": info.description}
            for name, info in scorer.Options.model_fields.items()
        ],
        "examples": [
            {
                "prediction": example.prediction,
                "truth": example.truth,
                "options": dict(example.options),
                "score": example.score,
            }
            for example in scorer.examples
        ],
    }


def scorer_default(scorer: Scorer[Any], option: str) -> Any:
    """Return the default of an option, as a JSON value."""
    return scorer.Options().model_dump(mode="json")[option]


def lines(scorers: Sequence[Scorer[Any]]) -> Iterator[str]:
    """Text for a terminal: name, summary, truth, options with defaults, and the first example."""
    for scorer in scorers:
        yield f"{scorer.name}  {scorer.summary}"
        yield f"    truth: {scorer.truth_form}"
        for name, info in scorer.Options.model_fields.items():
            default = scorer_default(scorer, name)
            shown = "" if default is None else f" ({toml_value(default)})"
            yield f"    --set {name}={shown}  {info.description}"
        if scorer.examples:
            example = scorer.examples[0]
            yield f"    {json.dumps(_line(example), ensure_ascii=False)} → {example.score:g}"


def _line(example: Any) -> dict[str, Any]:
    line = {"prediction": example.prediction, "truth": example.truth}
    return {**line, "options": dict(example.options)} if example.options else line


def markdown(scorers: Sequence[Scorer[Any]]) -> str:
    """Return the chapters of docs/scorers.md, one a scorer."""
    return "\n".join(chapter for scorer in scorers for chapter in _chapter(scorer)) + "\n"


def _chapter(scorer: Scorer[Any]) -> Iterator[str]:
    yield f"## `{scorer.name}`\n"
    yield f"{scorer.summary}. Truth: {scorer.truth_form}. Identity: `{scorer.label}`.\n"
    if doc := type(scorer).__doc__:
        yield "\n".join(line.strip() for line in doc.strip().splitlines()) + "\n"
    if scorer.Options.model_fields:
        yield "| option | default | |\n|---|---|---|"
        for name, info in scorer.Options.model_fields.items():
            default = scorer_default(scorer, name)
            shown = "" if default is None else f"`{toml_value(default)}`"
            yield f"| `{name}` | {shown} | {str(info.description).replace('|', '∣')} |"
        yield ""
    if scorer.examples:
        yield "| prediction | truth | options | score |\n|---|---|---|---|"
    for example in scorer.examples:
        cells = [
            _cell(example.prediction),
            _cell(example.truth),
            _cell(dict(example.options)) if example.options else "",
        ]
        yield f"| {' | '.join(cells)} | {example.score:.4g} |"
    yield ""


def _cell(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return f"`{text.replace('|', '∣')}`"
