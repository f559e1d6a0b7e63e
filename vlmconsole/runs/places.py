"""Where a lab home keeps its things. Paths only: nothing here reads settings or starts anything."""

import stat
from dataclasses import dataclass, field
from pathlib import Path

from vlmconsole.system.typed_paths import named


@dataclass(frozen=True)
class Places:
    """Every path of one lab home; `config` is its settings file (default `home/config.toml`)."""

    home: Path
    config: Path = field(default=Path())

    def __post_init__(self) -> None:
        # Workers and the supervisor run elsewhere: a relative home would mean another place to them.
        object.__setattr__(self, "home", named(self.home).absolute())
        if self.config == Path():
            object.__setattr__(self, "config", self.home / "config.toml")

    @property
    def runs(self) -> Path:
        return self.home / "runs"

    def is_run(self, path: Path) -> bool:
        """Return whether a path names a run folder of this lab: right inside `runs`, and no link to elsewhere.

        Asked before anything is written, killed or removed by a path that was read from a file or a database. What
        cannot be a path at all (too long, a NUL) names none. A folder that is not there (yet, any more) is no link.
        """
        if not path.is_absolute() or path.name in ("", ".", "..") or ".." in path.parts:
            return False
        try:
            if path.parent != self.runs and path.parent.resolve() != self.runs.resolve():
                return False
            return not stat.S_ISLNK(path.lstat().st_mode)
        except FileNotFoundError:
            return True
        except (OSError, ValueError):
            return False

    @property
    def chats(self) -> Path:
        return self.home / "chats.sqlite"

    @property
    def pictures(self) -> Path:
        """The pictures of conversations, named by their SHA-256."""
        return self.home / "pictures"

    @property
    def queue(self) -> Path:
        return self.home / "queue.sqlite"

    @property
    def servers(self) -> Path:
        """Folder of the user's own server profiles (TOML)."""
        return self.home / "servers"

    @property
    def presets(self) -> Path:
        """Folder of the user's own job presets (TOML)."""
        return self.home / "presets"

    @property
    def environments(self) -> Path:
        """Folder of the Python environments that `vlmconsole env make` builds."""
        return self.home / "environments"

    @property
    def inbox(self) -> Path:
        return self.home / "inbox"

    @property
    def adapters(self) -> Path:
        return self.home / "adapters"

    @property
    def datasets(self) -> Path:
        return self.home / "datasets"

    @property
    def cache(self) -> Path:
        return self.home / "cache"

    @property
    def state(self) -> Path:
        """Pid files, locks and the logs of servers and of the supervisor."""
        return self.home / "state"

    @property
    def ledger(self) -> Path:
        return self.home / "ledger.jsonl"

    def ensure(self) -> "Places":
        """Make the folders, readable by their owner only; existing ones are left as they are."""
        for folder in (
            self.home,
            self.runs,
            self.servers,
            self.presets,
            self.environments,
            self.inbox,
            self.adapters,
            self.datasets,
            self.cache,
            self.state,
        ):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self
