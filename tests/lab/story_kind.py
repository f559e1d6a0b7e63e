"""A kind of job for the jobs screen's tests: it tells as much as a training does, while doing nothing."""

import math
import sys
from typing import Any, Literal

from pydantic import Field

from vlmconsole.jobs.contract import Context, Estimate, JobError, JobKind, Spec, Stopped


class StorySpec(Spec):
    """Settings of every kind that a form has to show."""

    steps: int = Field(60, ge=1, le=100000, description="optimizer steps")
    pause: float = Field(0.01, ge=0, description="seconds a step")
    rate: float = Field(2e-4, gt=0, description="AdamW learning rate", json_schema_extra={"unit": "1/step"})
    mode: Literal["fine", "fails", "waits"] = Field("fine", description="how it is to end")
    verbose: bool = Field(True, description="write every step into the log")
    adapter: str | None = Field(None, description="adapter it starts from; blank for the base model")
    sizes: list[int] = Field([224, 448], description="picture sizes, pixels")


def story(context: Context, spec: StorySpec) -> dict[str, Any]:
    context.log("loading \x1b[31mred\x1b[0m weights\u2028of a model [bold]not markup[/bold]")
    context.events.note("vision tower frozen: 0 of 48 tensors train")
    for step in range(1, spec.steps + 1):
        if context.wait(spec.pause):
            raise Stopped({"steps": step})
        epoch = 1 + 6 * step // (spec.steps + 1)
        context.events.progress(step, spec.steps, note=f"epoch {epoch} of 6")
        context.events.metric("loss", 1.9 * math.exp(-3 * step / spec.steps) + 0.05 * math.sin(step), step)
        context.events.metric("grad norm", 0.3 + 0.2 * math.sin(step / 7), step)
        context.events.metric("step time", 0.32 + 0.01 * math.sin(step), step, "s")
        if spec.verbose:
            context.log(
                f"\repoch {epoch} step {step} of {spec.steps}, loss {1.9 * math.exp(-3 * step / spec.steps):.4f}"
            )
        sys.stdout.write(f"\rdevelopment {step} of {spec.steps}")
        if step == spec.steps // 2:
            context.events.note("the loss rose three times in a row", "warning")
            if spec.mode == "fails":
                raise JobError("the picture scene-0042.png is gone: put it back and retry")
    while spec.mode == "waits" and not context.wait(0.5):
        pass
    context.check_stop()
    return {"steps": spec.steps, "loss": 0.094}


STORY = JobKind(
    "story",
    "Tells a story",
    StorySpec,
    story,
    lambda spec: Estimate(spec.steps * spec.pause, 1_200_000_000, 40_000_000, "from a run on two quiet cores"),
)
