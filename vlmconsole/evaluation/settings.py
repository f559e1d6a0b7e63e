"""The settings of an evaluation. Light: forms and the command line import it without the model stacks."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from vlmconsole.scoring.registry import unknown
from vlmconsole.system.typed_paths import PathOrName

SideName = Literal["before", "after"]
Blind = Literal["grey", "swap", "none"]
LATER = "${"  # of a setting that an earlier step of a flow will give


class EvaluateSettings(BaseModel):
    """Before and after over the same pictures. What may differ between them is the model or the adapter, no more."""

    model_config = ConfigDict(extra="forbid")

    backend: Literal["in-process", "server"] = Field(
        "in-process", description="Where answers are computed: in this process or by a server"
    )
    base: PathOrName = Field("", description="Model folder or asset:NAME, in-process; empty: the bundled model")
    before_adapter: PathOrName = Field("", description="Adapter before; empty: the base model")
    after_adapter: PathOrName = Field("", description="Adapter under test (after); empty: none")
    before_model: PathOrName = Field("", description="Model folder before, in place of the base")
    after_model: PathOrName = Field("", description="Model folder under test (after), in place of the base")
    paired: bool = Field(True, description="Compare before with after; false: evaluate one side alone")
    data: list[PathOrName] = Field(min_length=1, description="Datasets (recipes are made first); the plan's own first")
    groups: list[str] = Field([], description="Groups or splits; empty: every test split, else every exploratory one")
    plan: PathOrName = Field("", description="Gate plan: hash of one frozen before the training, or a name, frozen now")
    diagnostic: str = Field("", description="DATASET:SPLIT of training images to answer as well (no measure of skill)")
    scorer: str = Field("", description="a scorer by name; empty: as each example says")
    batch: int = Field(32, ge=1, le=1024, description="Images answered together, in-process")
    max_new_tokens: int = Field(64, ge=1, le=4096, description="Max tokens of an answer")
    seed: int = Field(42, ge=0, le=2**32 - 1, description="Seed of the generation (which is greedy)")
    limit: int | None = Field(None, ge=1, description="Only the first N images of each group; not under a plan")
    sample: int | None = Field(None, ge=2, description="So many examples in all, drawn by the seed; not under a plan")
    blind: Blind | None = Field(
        None, description="Also ask the tested model without the images: grey, swap (another example's) or none"
    )
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="auto: float32 on a CPU, bfloat16 on a GPU"
    )
    threads: int = Field(2, ge=1, le=256, description="CPU threads, in-process")
    server: str = Field("", description="Server profile; with two models it is restarted for each")
    after_server: str = Field("", description="Server profile for after, if it differs")
    concurrency: int = Field(1, ge=1, le=256, description="Requests kept in flight at a server (C)")
    textvqa: PathOrName = Field("", description="Folder or file of TextVQA Parquet shards to make textvqa64 from")
    override: bool = Field(False, description="Use an adapter on a base that is not its own; recorded")

    @model_validator(mode="after")
    def _fits(self) -> EvaluateSettings:
        if self.scorer and (reason := unknown(self.scorer)):
            raise ValueError(reason)
        if self.plan and self.limit is not None:
            raise ValueError("limit leaves images out that the plan names: give one of the two")
        if self.plan and self.sample is not None:
            raise ValueError("sample leaves examples out that the plan names: give one of the two")
        if self.plan and (self.groups or self.scorer):
            raise ValueError("the plan itself names the groups and their scorers")
        if self.plan and not self.paired:
            raise ValueError("a plan compares before with after: paired must be true")
        if self.backend == "server" and not self.server:
            raise ValueError("a server profile is needed (server)")
        if self.diagnostic and self.diagnostic.count(":") != 1:
            raise ValueError("diagnostic is written DATASET:SPLIT")
        if not self.paired and (self.after_adapter or self.after_model or self.after_server):
            raise ValueError("with paired = false there is no after: name the model as before")
        return self

    @property
    def sides(self) -> tuple[SideName, ...]:
        """The sides to be answered, in order."""
        return ("before", "after") if self.paired else ("before",)

    @property
    def together(self) -> int:
        """Pictures answered, and written, together: a batch in-process, as many as are in flight at a server."""
        return self.batch if self.backend == "in-process" else self.concurrency

    @property
    def own_servers(self) -> bool:
        """Whether each side's server is started for it alone: it must be where whole models are compared."""
        return self.backend == "server" and bool(self.before_model or self.after_model)

    def adapter(self, side: str) -> str:
        """Return the adapter of a side, as named; "" for none."""
        return self.before_adapter if side == "before" else self.after_adapter

    def model(self, side: str) -> str:
        """Return the whole model of a side that stands in the base's place; "" for the base."""
        return self.before_model if side == "before" else self.after_model

    def server_of(self, side: str) -> str:
        """Return the server profile of a side."""
        return (self.after_server or self.server) if side == "after" else self.server
