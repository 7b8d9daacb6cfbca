"""`rmqha broker -c FILE`: run one replica of a group until SIGTERM. Loads nothing that a server does not need."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rmqha.model.config.servers import BrokerConfig


def read_config(path: Path) -> BrokerConfig:
    """The configuration in a properties file. Raises UsageError or ConfigError with one sentence."""
    from rmqha.host.text_file import read_text
    from rmqha.model.config.servers import BrokerConfig, parse_properties

    text = read_text(path, "the configuration")
    return BrokerConfig.from_properties(parse_properties(text, str(path)), str(path))


@click.command(epilog="Example: rmqha broker -c conf/broker.conf")
@click.option(
    "-c",
    "--config",
    "config_path",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE",
    help="Properties file, as RocketMQ's broker.conf.",
)
@click.option(
    "--check",
    is_flag=True,
    help="Only check the configuration: exit code 2 says what is wrong with it; names keys without effect.",
)
def broker(config_path: Path, check: bool) -> None:
    """Run a broker: one replica of a group, until SIGTERM.

    SIGTERM hands the mastership over and flushes (at most ten seconds), a second one stops at once; SIGHUP reopens
    the logs and looks at certificates and accounts at once.
    """
    config = read_config(config_path)
    import trio

    from rmqha.broker.server import checked_addresses, run_broker
    from rmqha.host.access import security
    from rmqha.host.http.endpoint import expose
    from rmqha.host.process import freeze_loaded_objects
    from rmqha.host.process_environment import ProcessEnvironment

    security.use(config)
    checked_addresses(config, {})
    if check:
        for line in config.lines_without_effect():
            click.echo(line)
        return
    around = ProcessEnvironment(config, "broker", config.broker_name)
    tracer = around.tracer

    async def serve(stopping: trio.Event) -> None:
        async with trio.open_nursery() as shown:
            exposure = await expose(config, tracer, ("broker",), shown)
            async with trio.open_nursery() as nursery:
                await nursery.start(partial(run_broker, config, tracer, stopping, exposure=exposure))
                freeze_loaded_objects()
            shown.cancel_scope.cancel()

    around.run(serve)
