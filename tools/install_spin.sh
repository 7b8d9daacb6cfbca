#!/bin/sh
# Debian's Spin and a C compiler for `make spec`, if they are not there.
set -eu
if command -v spin >/dev/null && command -v gcc >/dev/null; then exit 0; fi
as_root=""
if [ "$(id -u)" != 0 ]; then
  as_root="sudo -n"
  if ! sudo -n true 2>/dev/null; then
    echo "make spec needs Spin and a C compiler: run 'apt-get install spin gcc libc6-dev' as root" >&2
    exit 1
  fi
fi
export DEBIAN_FRONTEND=noninteractive
$as_root apt-get update -qq
$as_root apt-get install -y -qq --no-install-recommends spin gcc libc6-dev >/dev/null
