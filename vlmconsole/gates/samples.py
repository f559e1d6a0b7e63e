"""Samples: one line of `before.jsonl` or `after.jsonl` for each picture, and reading them without trust."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from vlmconsole.data.example import Example
from vlmconsole.data.rows import IMAGE_TAG
from vlmconsole.runs.conditions import canonical_json
from vlmconsole.text.settings_errors import explain_all

Hash = str


class Sample(BaseModel):
    """One answer with everything needed to score, pair and replay it. Further keys are kept in the file, not used.

    `truth` is text (JSON for counting) or another JSON value; `answer` is None when the request failed; `scorer` with
    its version, `options`, `dataset` and `split` are empty where a file does not say; `batch` names the batch it was
    generated in; `t` is the wall time (seconds) at which it was written. Hashes of images are `images_hash`'s.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    id: str
    group: str
    picture_sha256: Hash = Field(pattern=r"^[0-9a-f]{64}$")
    pixel_sha256: Hash = Field(pattern=r"^[0-9a-f]{64}$")
    tensor_sha256: Hash | None = Field(None, pattern=r"^[0-9a-f]{64}$")  # a server keeps its input tensor to itself
    prompt_sha: Hash = Field(pattern=r"^[0-9a-f]{64}$")
    answer: str | None
    token_ids: tuple[int, ...] | None = None  # a server may not tell
    truth: JsonValue
    scorer: str = ""
    options: dict[str, JsonValue] = {}
    valid: bool
    all_correct: bool
    partial: float = Field(ge=0.0, le=1.0, allow_inf_nan=False)
    reward: float = Field(ge=0.0, le=1.0, allow_inf_nan=False)
    http_ok: bool = True
    batch: str | int | None = None
    dataset: str = ""
    split: str = ""
    t: float = Field(allow_inf_nan=False)

    @property
    def truth_sha(self) -> str:
        """Hash (hex) of the truth."""
        return truth_hash(self.truth)

    @property
    def options_sha(self) -> str:
        """Hash (hex) of the scorer's options."""
        return options_hash(self.options)


#: both sides' outcome → (rank, word): what was lost is looked at first
OUTCOMES = {
    (True, False): (0, "lost"),
    (False, False): (1, "wrong"),
    (False, True): (2, "won"),
    (True, True): (3, "right"),
}


@dataclass(frozen=True)
class Case:
    """One picture's two answers."""

    before: Sample
    after: Sample

    @property
    def rank(self) -> int:
        """Place of the outcome among `OUTCOMES`."""
        return OUTCOMES[self.before.all_correct, self.after.all_correct][0]

    @property
    def outcome(self) -> str:
        """`lost`, `won`, `wrong` or `right` (both times), by all-correct."""
        return OUTCOMES[self.before.all_correct, self.after.all_correct][1]

    @property
    def gain(self) -> float:
        """Difference of the partial reward."""
        return self.after.partial - self.before.partial


def prompt_hash(question: str) -> str:
    """Hash (hex) of a question's text, as samples and bound plans carry it."""
    return hashlib.sha256(question.encode()).hexdigest()


def asked_hash(example: Example) -> str:
    """Hash (hex) of what is asked: of the question's text where that is all, after its one image; else of all turns."""
    turns = example.asked
    if len(turns) == turns[0].images == 1 and turns[0].text.startswith(IMAGE_TAG):
        return prompt_hash(turns[0].words)
    return hashlib.sha256(canonical_json([[turn.role, turn.text] for turn in turns])).hexdigest()


def images_hash(hashes: Sequence[str]) -> str:
    """Return one hash (hex) for the images of a sample: a single one's own, that of no bytes for none, else the
    list's.
    """
    if len(hashes) == 1:
        return hashes[0]
    return hashlib.sha256(canonical_json(list(hashes)) if hashes else b"").hexdigest()


def truth_hash(truth: Any) -> str:
    """Hash (hex) of a truth: text, or another JSON value such as the list of human answers in order."""
    return hashlib.sha256(canonical_json(truth)).hexdigest()


def options_hash(options: Mapping[str, Any]) -> str:
    """Hash (hex) of a scorer's options; "" of none."""
    return hashlib.sha256(canonical_json(dict(options))).hexdigest() if options else ""


@dataclass(frozen=True)
class Side:
    """One side of a comparison as read: its samples by id, and what is wrong with the file (sentences)."""

    name: str
    samples: dict[str, Sample] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    @property
    def first(self) -> float | None:
        """Wall time (seconds) of the first sample."""
        return min((sample.t for sample in self.samples.values()), default=None)


def read_side(path: Path) -> Side:
    """Read one side strictly: a torn or bad line, or an id given twice, is a problem and no sample is guessed."""
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return Side(path.name, problems=(f"{path.name} is missing",))
    except OSError as error:
        return Side(path.name, problems=(f"{path.name} cannot be read: {error.strerror}",))
    samples: dict[str, Sample] = {}
    problems: list[str] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            sample = Sample.model_validate(json.loads(line))
        except ValidationError as error:
            problems.append(f"{path.name} line {number}: {explain_all(error.errors(), Sample)}")
            continue
        except (ValueError, RecursionError):
            problems.append(f"{path.name} line {number} is no JSON")
            continue
        if sample.id in samples:
            problems.append(f"{path.name} line {number}: {sample.id} is there twice")
            continue
        samples[sample.id] = sample
    if not samples and not problems:
        problems.append(f"{path.name} holds no sample")
    return Side(path.name, samples, tuple(problems))
