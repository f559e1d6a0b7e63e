"""What a training says at its end, in its events and its log."""

from vlmconsole.jobs.contract import Context
from vlmconsole.scoring.learning import TrainingOutcome


def say_outcome(context: Context, outcome: TrainingOutcome) -> None:
    """Note whether it learned, as a warning with likely causes where it did not."""
    context.events.note(outcome.text, "info" if outcome.learned else "warning")
    for cause in outcome.causes:
        context.events.note(f"likely cause: {cause}", "warning")
    context.log("\n  ".join([outcome.text, *outcome.causes]))
