"""The facts of one evaluation, each looked up once: its plan, and of each side adapter, weights and server.

Preflight, estimate, freezing, answering and judging read them here. A fact is looked up when it is first asked for and
kept from then on; where it cannot be had, whoever asks gets the LabError that says why.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from vlmconsole.data.names import promised
from vlmconsole.engines.profile import ServerProfile, find_profile
from vlmconsole.engines.registry import find_engine
from vlmconsole.errors import LabError
from vlmconsole.evaluation.answerer import Who
from vlmconsole.evaluation.settings import LATER, EvaluateSettings, SideName
from vlmconsole.evaluation.whole_model import served_folder, with_model
from vlmconsole.gates.binding import bound_plan
from vlmconsole.gates.frozen import is_frozen, read_frozen_plan
from vlmconsole.gates.plan import Plan, load_plan
from vlmconsole.ledger.chain import Ledger
from vlmconsole.runs.places import Places

if TYPE_CHECKING:
    from vlmconsole.training.adapters.store import Adapter


@dataclass(frozen=True)
class NamedAdapter:
    """An adapter as the settings name it ("": none), whether this lab has it or not."""

    name: str
    places: Places

    @cached_property
    def found(self) -> Adapter | None:
        """The adapter in this lab; None where none is named. Raises AdapterError."""
        from vlmconsole.training.adapters.store import find_adapter

        return find_adapter(self.places, self.name) if self.name else None

    def find(self) -> Adapter:
        """Return the one named. Raises AdapterError."""
        assert self.found is not None
        return self.found

    @cached_property
    def identity(self) -> str | None:
        """As conditions and bound plans name it: with the hash of its weights where this lab has it."""
        from vlmconsole.training.adapters.store import AdapterError

        try:
            adapter = self.found
        except AdapterError:
            return Who("", adapter=self.name).identity  # whoever answers with it says what is wrong, if anything is
        return Who("", adapter=adapter.name, adapter_sha256=adapter.sha256).identity if adapter is not None else None

    @cached_property
    def development(self) -> tuple[Path, ...]:
        """The files of development answers that its training left in this lab; () where that is not known."""
        if LATER in self.name:
            return ()
        try:
            origin = self.found.provenance if self.found is not None else None
        except LabError:
            return ()
        return tuple(sorted((self.places.runs / origin.run).glob("dev-epoch*.jsonl"))) if origin and origin.run else ()


@dataclass(frozen=True)
class ResolvedSide:
    """What answers one side: its adapter, the weights below it, and the server that holds them, where one does."""

    name: SideName
    settings: EvaluateSettings
    places: Places

    @cached_property
    def adapter(self) -> NamedAdapter:
        """The adapter of this side."""
        return NamedAdapter(self.settings.adapter(self.name), self.places)

    @property
    def own_model(self) -> str:
        """The whole model that stands in the base's place; "" for none."""
        return self.settings.model(self.name)

    @property
    def model(self) -> str:
        """The model that answers in this process, by name."""
        return self.own_model or self.settings.base

    @property
    def server(self) -> str:
        """The name of the server profile."""
        return self.settings.server_of(self.name)

    @cached_property
    def profile(self) -> ServerProfile:
        """The profile of the side's server. Raises ProfileError."""
        return find_profile(self.server, self.places.servers)

    @cached_property
    def folder(self) -> Path:
        """The folder of the model that answers in this process, or of a server's own model. Raises BaseError."""
        from vlmconsole.training.bases import base_folder

        if self.settings.backend == "server":
            return served_folder(self.own_model, self.profile) or base_folder(self.own_model)
        return base_folder(self.model)

    @cached_property
    def answering_folder(self) -> Path:
        """The same, examined as one that can answer in this process. Raises LabError."""
        from vlmconsole.training.bases import answering_base

        return answering_base(self.model)

    @cached_property
    def device(self) -> str:
        """The torch device that answers in this process."""
        from vlmconsole.training.bases import device_for

        return device_for("auto")

    @cached_property
    def precision(self) -> str:
        """The precision at which the base is loaded into this process."""
        from vlmconsole.training.bases import precision_for

        return precision_for(self.settings.precision, self.device)

    @cached_property
    def who(self) -> Who:
        """The model that answers in this process. Raises LabError when it cannot, or its adapter does not fit it."""
        from vlmconsole.training.adapters.store import check_fits
        from vlmconsole.training.bases import base_name

        adapter, base, label = self.adapter.found, self.answering_folder, ""
        if adapter is not None:
            label = check_fits(adapter, base, self.precision, override=self.settings.override)
        return Who(
            model=base_name(self.model),
            model_sha256=self.weights_sha256,
            adapter=adapter.name if adapter else None,
            adapter_sha256=adapter.sha256 if adapter else None,
            label=label,
        )

    @cached_property
    def prompt(self) -> dict[str, str]:
        """The hashes of the prompt form in which it is asked in this process. Raises TemplateError."""
        from vlmconsole.models.door import door

        return door(self.answering_folder).facts()

    @cached_property
    def own_profile(self) -> ServerProfile:
        """The profile of a server that is started for this side alone, with its own model. Raises LabError."""
        return with_model(self.profile, self.folder) if self.own_model else self.profile

    @property
    def knows_adapters(self) -> bool:
        """Whether only adapters of this lab can answer: in this process, or by a server that takes no others."""
        from vlmconsole.training.adapters.serving import lab_adapters_only

        if self.settings.backend == "in-process":
            return True
        try:
            profile = self.profile
        except LabError:
            return False  # told with the side
        return lab_adapters_only(profile)

    @cached_property
    def weights_sha256(self) -> str | None:
        """Hash (hex) of the weights that answer, or below the adapter; None where a server keeps them elsewhere.

        Raises LabError where they are to answer in this process and are not here.
        """
        from vlmconsole.training.adapters.store import base_sha256

        if self.settings.backend == "in-process":
            return base_sha256(self.folder)
        try:
            if self.own_model:
                return base_sha256(self.folder)
            folder = None if find_engine(self.profile.engine).generic else self.profile.model_dir()
        except LabError:
            return None
        return base_sha256(folder) if folder is not None else None


@dataclass(frozen=True)
class Resolved:
    """One evaluation's settings with all that they name in this lab."""

    settings: EvaluateSettings
    places: Places

    @cached_property
    def before(self) -> ResolvedSide:
        """What the comparison starts from."""
        return ResolvedSide("before", self.settings, self.places)

    @cached_property
    def after(self) -> ResolvedSide:
        """What is tested."""
        return ResolvedSide("after", self.settings, self.places)

    @property
    def sides(self) -> dict[SideName, ResolvedSide]:
        """The sides to be answered, in order."""
        return {name: self.before if name == "before" else self.after for name in self.settings.sides}

    @cached_property
    def plan(self) -> Plan | None:
        """The plan as named: one frozen earlier, or limits to be bound now; None for none, or one of a later step.

        Raises PlanError and FrozenError.
        """
        name = self.settings.plan
        if not name or LATER in name:
            return None
        if not is_frozen(name):
            return load_plan(name)
        return read_frozen_plan(name, self.places.home, Ledger(self.places.ledger))

    def bound_plan(self, datasets: list[Path]) -> Plan:
        """Return the plan bound to these made datasets, and to what before is: as it is frozen for the run."""
        base = self.before.weights_sha256
        assert self.plan is not None
        return bound_plan(self.plan, is_frozen(self.settings.plan), datasets, self.before.adapter.identity, base)

    @cached_property
    def images(self) -> int | None:
        """Examples a side, from the plan or the datasets; None where one is not known yet."""
        if not is_frozen(self.settings.plan) and self.plan is not None:
            return sum(group.n for group in self.plan.groups)
        total = 0
        for name in self.settings.data:
            try:
                splits = promised(name, self.places.datasets)
            except LabError:
                return None  # told with the data, or made by an earlier step
            role = "test" if any(split.role == "test" for split in splits.values()) else "exploratory"
            for split, about in splits.items():
                chosen = {split, split.removeprefix("test-")} & set(self.settings.groups)
                if chosen if self.settings.groups else about.role == role:
                    if about.n is None:
                        return None
                    total += min(about.n, self.settings.limit or about.n)
        return min(total, self.settings.sample or total)


def resolve(settings: EvaluateSettings, places: Places) -> Resolved:
    """Return what the settings of an evaluation mean in this lab. Nothing is looked up before it is asked for."""
    return Resolved(settings, places)


def base_of(name: str) -> str:
    """Hash (hex) of the weights of a base by name ("": the bundled model). Raises LabError when it is not here."""
    from vlmconsole.training.adapters.store import base_sha256
    from vlmconsole.training.bases import base_folder

    return base_sha256(base_folder(name))
