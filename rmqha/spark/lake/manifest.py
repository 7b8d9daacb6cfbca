"""The batches of an archive: which messages each has, and where its files are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from rmqha.model.error import StoreError
from rmqha.spark.lake.files import STATE, ArchiveFiles

VERSION = 2
"""Version 1 had no `spans` and no `removed`."""
STAGING, BATCHES = f"{STATE}/staging", f"{STATE}/batches"
PENDING = f"{STATE}/pending.json"


@dataclass(frozen=True, slots=True)
class ArchivedEnd:
    """Place in a log up to which it is archived."""

    physical_offset: int
    epoch: int = -1
    epoch_start: int = -1
    broker_id: str | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """A batch of an archive. `places`: where it ends in each log (by cluster#brokerName, or by directory). `files`: the
    path aside of each, "" if it stood in its place before. A batch that compaction made stands for all before it."""

    number: int
    places: dict[str, ArchivedEnd]
    files: dict[str, str]
    row_count: int
    log_bytes: int
    spans: list[dict[str, int]] = field(default_factory=list)
    """Physical offsets at which each of the batches that it stands for ends, by log."""
    removed: list[str] = field(default_factory=list)
    """Removed files, whose rows are in others of this batch."""
    version: int = VERSION

    @classmethod
    def parse(cls, content: bytes, where: str) -> Manifest:
        """The manifest in a file's content. StoreError for content that is none, or of a newer version."""
        try:
            given = json.loads(content)
            if int(given["version"]) > VERSION:
                raise StoreError(f"{where} has version {given['version']}, this release reads up to {VERSION}")
            places = {name: ArchivedEnd(**place) for name, place in given["places"].items()}
            return cls(**{**given, "places": places})
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise StoreError(f"{where}: expected a batch of an archive, found other content ({error})") from None

    def encode(self) -> bytes:
        """The file's content."""
        return json.dumps(asdict(self), ensure_ascii=False).encode()

    @property
    def ends(self) -> list[dict[str, int]]:
        """The physical offsets at which this batch, or each one that it stands for, ends in each log."""
        return self.spans or [{name: place.physical_offset for name, place in self.places.items()}]


@dataclass(frozen=True, slots=True)
class Stretch:
    """Part of a log: physical offsets [low, high)."""

    broker_name: str | None
    """Name of the log's broker group; None if there is only one log."""
    low: int
    high: int


def path_of(number: int) -> str:
    """Path of the manifest of a batch."""
    return f"{BATCHES}/{number:020}.json"


def batches(target: ArchiveFiles) -> list[Manifest]:
    """The batches that an archive has, in order. StoreError for one that cannot be read."""
    names = [name for name in target.names(BATCHES) if name.endswith(".json")]
    return [Manifest.parse(target.read(f"{BATCHES}/{name}"), f"{target.address}/{BATCHES}/{name}") for name in names]


def stretches(manifests: Sequence[Manifest]) -> list[list[Stretch]] | None:
    """The stretches of the logs that each batch has, in order; None if rows do not tell which log they are of."""
    names = {name for item in manifests for end in item.ends for name in end}
    if len(names) > 1 and not all("#" in name for name in names):
        return None
    found, before = [], dict.fromkeys(names, 0)
    for end in (end for item in manifests for end in item.ends):
        found.append(
            [
                Stretch(name.partition("#")[2] if len(names) > 1 else None, before[name], offset)
                for name, offset in end.items()
                if before[name] < offset
            ]
        )
        before |= end
    return found
