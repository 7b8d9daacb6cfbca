"""haSecretFile: made once, for its owner alone, long enough."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner

from rmqha.cli.generate.command import generate
from rmqha.host.access import shared_secret
from rmqha.host.access.shared_secret import make_secret_file, secret_file
from rmqha.model.error import UsageError


def test_it_is_made_once_and_for_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "ha.secret"
    assert make_secret_file(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    secret = secret_file(str(path)).current
    assert len(secret) == 64
    assert not make_secret_file(path)
    assert secret_file(str(path)).current == secret
    assert make_secret_file(tmp_path / "other") and secret_file(str(tmp_path / "other")).current != secret


def test_a_full_disk_leaves_no_empty_secret_and_one_that_is_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ha.secret"

    def full() -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(shared_secret, "new_secret", full)
        with pytest.raises(OSError, match="No space left on device"):
            make_secret_file(path)
    assert not path.exists()
    path.touch()
    assert make_secret_file(path) and len(secret_file(str(path)).current) == 64
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_is_no_file_is_not_replaced_by_a_secret(tmp_path: Path) -> None:
    """A pipe is as empty as a new file; so is /dev/zero, which root's command would have replaced."""
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to("nowhere")
    assert not make_secret_file(pipe) and pipe.is_fifo()
    assert not make_secret_file(link) and link.is_symlink()


def test_what_cannot_be_used_is_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "ha.secret"
    with pytest.raises(UsageError, match="cannot read haSecretFile"):
        secret_file(str(path))
    path.write_text("short")
    path.chmod(0o600)
    with pytest.raises(UsageError, match="must hold 32 characters or more; make one with `rmqha generate secret`"):
        secret_file(str(path))
    make_secret_file(tmp_path / "other")
    (tmp_path / "other").chmod(0o644)
    with pytest.raises(UsageError, match="others may open it: chmod 600"):
        secret_file(str(tmp_path / "other"))


def test_generate_secret_replaces_nothing(tmp_path: Path) -> None:
    path = tmp_path / "ha.secret"
    done = CliRunner().invoke(generate, ["secret", str(path)])
    assert done.output == f"haSecretFile={path}\n"
    done = CliRunner().invoke(generate, ["secret", str(path)])
    assert isinstance(done.exception, UsageError) and "exists" in str(done.exception)
