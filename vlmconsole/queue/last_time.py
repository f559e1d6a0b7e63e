"""How long a flow still takes, when the same flow was done here before: as long as it took then."""

from __future__ import annotations

from collections.abc import Sequence

from vlmconsole.queue.model import ACTIVE, FINAL, Job

LONGEST = 30 * 86400.0  # seconds; a step that took longer is a damaged record


def left_as_then(steps: Sequence[Job], then: Sequence[Job], now: float) -> float | None:
    """Seconds (0 or more) until the last of `steps` ends, each taking what it took in `then`, the steps of a flow
    that was done; None when one that is not over has other settings now, or was not there, and while none of them runs:
    nobody knows how long they wait.

    The smaller of two accounts: step after step, which is too much where some run beside each other, and the way the
    flow went then from where it is now, which is too much where it had to wait.
    """
    if not any(step.state in ACTIVE for step in steps):
        return None
    before = {job.step: job for job in then if job.state == "done" and job.started and job.ended}
    row, moments, end = 0.0, [], 0.0
    for step in steps:
        if step.state in FINAL:
            continue
        job = before.get(step.step)
        if job is None or (job.preset, job.kind, job.spec) != (step.preset, step.kind, step.spec):
            return None
        began, ended = job.started or 0.0, job.ended or 0.0
        took = max(0.0, ended - began)
        if took > LONGEST:
            return None
        passed = min(took, max(0.0, now - step.started)) if step.started and step.state != "queued" else 0.0
        row += took - passed
        moments.append(began + passed)
        end = max(end, ended)
    return min(row, max(0.0, end - min(moments))) if moments else 0.0
