#!/bin/sh
# Debian's Chromium and its driver for `make browser`, if they are not there.
set -eu
if [ -x /usr/bin/chromium ] && [ -x /usr/bin/chromedriver ]; then exit 0; fi
as_root=""
if [ "$(id -u)" != 0 ]; then
  as_root="sudo -n"
  if ! sudo -n true 2>/dev/null; then
    echo "make browser needs Chromium: run 'apt-get install chromium chromium-driver fonts-dejavu-core' as root" >&2
    exit 1
  fi
fi
export DEBIAN_FRONTEND=noninteractive
$as_root apt-get update -qq
$as_root apt-get install -y -qq --no-install-recommends chromium chromium-driver fonts-dejavu-core >/dev/null
