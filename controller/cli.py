"""`rmqha controller`: run a controller on its own."""

from __future__ import annotations

from functools import partial

import click


@click.command(
    "controller",
    short_help="Run a controller.",
    epilog="Example: rmqha controller -c conf/controller.conf",
)
@click.option("-c", "--config", "config_file", metavar="FILE", help="RocketMQ-style properties file.")
@click.option(
    "--check",
    is_flag=True,
    help="Only check the configuration: exit code 2 says what is wrong with it; names keys without effect.",
)
def controller(config_file: str | None, check: bool) -> None:
    """Run a controller in the foreground: one of the nodes that elect the masters of broker groups.

    SIGTERM hands its leadership over and stops it, a second one stops it at once; SIGHUP reopens the logs
    and looks at certificates and accounts at once.
    """
    import trio

    from controller.config import ControllerConfig
    from controller.server import read_config, run_controller
    from rmqha.host.access import security
    from rmqha.host.http.endpoint import expose
    from rmqha.host.process import freeze_loaded_objects
    from rmqha.host.process_environment import ProcessEnvironment

    config = ControllerConfig() if config_file is None else read_config(config_file)
    security.use(config)
    if check:
        for line in config.lines_without_effect():
            click.echo(line)
        return
    around = ProcessEnvironment(config, "controller")
    tracer = around.tracer

    async def serve(stopping: trio.Event) -> None:
        async with trio.open_nursery() as shown:
            exposure = await expose(config, tracer, ("controller",), shown)
            async with trio.open_nursery() as nursery:
                await nursery.start(partial(run_controller, config, tracer, stopping=stopping, exposure=exposure))
                freeze_loaded_objects()
            shown.cancel_scope.cancel()

    around.run(serve)
