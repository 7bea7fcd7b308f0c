#!/usr/bin/env bash
# Installs a Debian package unless it or its commands are there: debian_packages.sh PACKAGE[=COMMAND,COMMAND...]...
# Without COMMAND, the package's own name is the command; `PACKAGE=` is for one without commands. Where this is not root
# on Debian it says what is missing and ends with 1: whoever needs it then skips, by name.
set -euo pipefail

missing=()
for argument; do
  package=${argument%%=*}
  commands=${argument#*=}
  installed=$(dpkg-query --show --showformat '${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$installed" != installed ] || continue
  [ -n "$commands" ] || missing+=("$package")
  for command in ${commands//,/ }; do
    command -v "$command" >/dev/null || {
      missing+=("$package")
      break
    }
  done
done
[ ${#missing[@]} -gt 0 ] || exit 0
if [ "$(id -u)" != 0 ] || [ ! -e /etc/debian_version ]; then
  echo "not installed, and only root on Debian can: ${missing[*]}" >&2
  exit 1
fi
echo "installing ${missing[*]}"
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -qq --yes --no-install-recommends "${missing[@]}" >/dev/null
