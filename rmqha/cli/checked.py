"""Words of `--check`, the same for every server."""

from __future__ import annotations

import click

from rmqha.model.config.base import Config


def tell_keys_without_effect(config: Config) -> None:
    """A line for each reason."""
    for keys, reason in config.keys_without_effect():
        click.echo(f"without effect: {keys}: {reason}")
