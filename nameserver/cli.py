"""`rmqha namesrv`: run a name server, with or without an embedded controller."""

from __future__ import annotations

from functools import partial

import click


@click.command(
    "namesrv",
    short_help="Run a name server, with or without an embedded controller.",
    epilog="Example: rmqha namesrv -c conf/namesrv.conf",
)
@click.option("-c", "--config", "config_file", metavar="FILE", help="RocketMQ-style properties file.")
@click.option(
    "--check",
    is_flag=True,
    help="Only check the configuration: exit code 2 says what is wrong with it; names keys without effect.",
)
def namesrv(config_file: str | None, check: bool) -> None:
    """Run a name server in the foreground. With enableControllerInNamesrv=true it also holds a controller.

    SIGTERM stops it in order, a second one at once; SIGHUP reopens the logs
    and reloads certificates and accounts at once.
    """
    import trio

    from nameserver.config import read_config
    from nameserver.server import run_name_server
    from rmqha.host.access import security
    from rmqha.host.http.endpoint import expose
    from rmqha.host.process import freeze_loaded_objects
    from rmqha.host.process_environment import ProcessEnvironment

    config, controller_config = read_config(config_file)
    security.use(config)
    if check:
        for line in config.lines_without_effect():
            click.echo(line)
        return
    around = ProcessEnvironment(config, "namesrv")
    tracer = around.tracer

    async def serve(stopping: trio.Event) -> None:
        async with trio.open_nursery() as nursery:
            servers = ("namesrv",) if controller_config is None else ("namesrv", "controller")
            exposure = await expose(config, tracer, servers, nursery)
            controllers = () if controller_config is None else (controller_config.self_address,)
            await nursery.start(partial(run_name_server, config, tracer, exposure=exposure, controllers=controllers))
            if controller_config is not None:
                # a name server alone must start without loading the controller
                from controller.server import run_controller

                async with trio.open_nursery() as embedded:
                    await embedded.start(
                        partial(run_controller, controller_config, tracer, stopping=stopping, exposure=exposure)
                    )
                    freeze_loaded_objects()
            await stopping.wait()
            tracer.event("name_server_stopping")
            nursery.cancel_scope.cancel()

    around.run(serve)
