"""Hardened systemd units, one template per server: an instance `a` reads /etc/rmqha/a.conf. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

KINDS = {
    "broker": "rmqha broker: one replica of a group",
    "controller": "rmqha controller: elects the masters of broker groups",
    "namesrv": "rmqha name server, with or without a controller",
}
HIDDEN = tuple(Path(name) for name in ("/home", "/root", "/run/user", "/tmp", "/var/tmp"))
"""Directories that ProtectHome and PrivateTmp take out of a unit's sight."""
SECRET = """
# What all servers of a cluster share: `rmqha generate secret /etc/rmqha/ha.secret`, the same file on every machine, and
# haSecretFile=/run/credentials/rmqha-{kind}@NAME.service/ha.secret in the configuration.
LoadCredential=ha.secret:/etc/rmqha/ha.secret
"""
STOP_TIMEOUT_S = 20
"""A server hands over and flushes for ten seconds at most, then ends by itself."""


def hidden_from_units(paths: Iterable[Path]) -> Path | None:
    """The first of these absolute paths that a unit could not execute."""
    return next((path for path in paths if any(path.is_relative_to(place) for place in HIDDEN)), None)


def unit(kind: str, program: str) -> str:
    """The text of rmqha-KIND@.service. `program` is the absolute path of the rmqha command."""
    credential = "" if kind == "namesrv" else SECRET.format(kind=kind)
    return f"""# Written by `rmqha generate systemd {kind}`. Save it as /etc/systemd/system/rmqha-{kind}@.service, write
# /etc/rmqha/NAME.conf with logFile empty (journald has the log then), and run: systemctl enable --now rmqha-{kind}@NAME
[Unit]
Description={KINDS[kind]} (%i)
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=60
StartLimitBurst=5

[Service]
Type=exec
DynamicUser=yes
ExecStart={program} {kind} -c ${{CREDENTIALS_DIRECTORY}}/conf
# Root's files are handed over. Each file that the configuration names (a TLS key, accounts, credentials) needs a line
# of its own, and is found in /run/credentials/rmqha-{kind}@%i.service.
LoadCredential=conf:/etc/rmqha/%i.conf
ExecReload=/bin/kill -HUP $MAINPID
# SIGTERM hands the mastership over, drains and flushes; a kill leaves a log that the next start looks through.
KillSignal=SIGTERM
TimeoutStopSec={STOP_TIMEOUT_S}
Restart=on-failure
RestartSec=1
LimitNOFILE=1048576
OOMScoreAdjust=-500
# Relative paths of the configuration, as storePathRootDir=store, lie here.
StateDirectory=rmqha/{kind}/%i
WorkingDirectory=/var/lib/rmqha/{kind}/%i
UMask=0027
{credential}
CapabilityBoundingSet=
AmbientCapabilities=
NoNewPrivileges=yes
LockPersonality=yes
MemoryDenyWriteExecute=yes
PrivateDevices=yes
PrivateTmp=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHome=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectProc=invisible
ProtectSystem=strict
RemoveIPC=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM

[Install]
WantedBy=multi-user.target
"""
