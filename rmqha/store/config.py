"""Configuration of a store's files. Values."""

from __future__ import annotations

from dataclasses import dataclass

from rmqha.model.config.delay_level import DEFAULT_DELAY_LEVELS, parse_delay_levels

PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """Sizes in bytes. Files that exist must have the sizes given here; all replicas of a group use the same."""

    mapped_file_size_commit_log: int = 1024 * 1024 * 1024
    mapped_file_size_consume_queue: int = 300_000 * 20
    mapper_file_size_batch_consume_queue: int = 300_000 * 46
    message_index_enable: bool = True
    max_hash_slot_num: int = 5_000_000
    max_index_num: int = 20_000_000
    """Hash slots and entries of an index file."""
    transient_store_pool_enable: bool = False
    """A master's appends wait in memory for `Store.commit`."""
    transient_store_pool_size: int = 5
    commit_commit_log_least_pages: int = 4
    max_message_size: int = 4 * 1024 * 1024
    """The largest body that append takes."""
    enabled_append_prop_crc: bool = False
    """Each record ends with a checksum of all of it, in the property __CRC32#."""
    delay_levels_ms: tuple[int, ...] = parse_delay_levels(DEFAULT_DELAY_LEVELS)
    """Time (ms) for which each level of the schedule topic waits."""

    @property
    def commit_least_bytes(self) -> int:
        """Number of bytes in the pool from which on appends commit by themselves."""
        return self.commit_commit_log_least_pages * PAGE_BYTES

    @property
    def pool_bytes(self) -> int:
        """Bytes that the pool may hold; 0: there is none."""
        return self.transient_store_pool_size * self.commit_least_bytes if self.transient_store_pool_enable else 0
