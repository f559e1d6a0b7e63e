"""Whether a judge decides as you do: its verdicts on answers of a run beside your own notes on them."""

from __future__ import annotations

from pathlib import Path

from vlmconsole.errors import LabError
from vlmconsole.evaluation.notes import read_notes
from vlmconsole.gates.samples import read_side
from vlmconsole.runs.folder import RunFolder
from vlmconsole.scoring.kappa import LEAST_NOTES, KappaAgreement, cohens_kappa

RIGHT, WRONG = "right", "wrong"  # the tags of notes that are verdicts


def judge_agreement(home: Path, run: RunFolder, side: str = "before") -> KappaAgreement:
    """κ between a run's scores and your notes tagged `right` or `wrong` on the same answers; of two notes the later.

    Raises LabError where fewer than LEAST_NOTES answers have both.
    """
    samples = read_side(run.file(f"{side}.jsonl")).samples
    verdicts = {
        note.sample: note.tag == RIGHT
        for note in sorted(read_notes(home, run), key=lambda note: note.t)
        if note.side == side and note.tag in (RIGHT, WRONG)
    }
    both = [name for name in samples if name in verdicts and samples[name].http_ok]
    if len(both) < LEAST_NOTES:
        raise LabError(
            f"{run.name} has {len(both)} answers of {side} with a note {RIGHT} or {WRONG}, {LEAST_NOTES} are needed.",
            "Note what you think of them: vlmconsole gates note RUN --sample ID --tag right",
            code="notes-few",
        )
    return cohens_kappa([verdicts[name] for name in both], [samples[name].all_correct for name in both])
