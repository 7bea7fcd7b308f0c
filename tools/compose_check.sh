#!/usr/bin/env bash
# docker-compose.yml on a real container engine: builds the image of the Dockerfile and runs tests/compose with it.
# Usage: tools/compose_check.sh PYTHON [PYTEST-ARGUMENTS]
#
# Takes the engine that answers. Where none does, and this is root on Debian, installs Debian's docker.io and
# docker-compose and starts an engine for the time of the check: its data is in a folder that goes again, and it leaves
# the machine's firewall and routing alone. The image is built on the machine's own network, and the clusters run in a
# network namespace: a firewall that drops what it forwards (an engine that ran earlier leaves one) would drop what
# containers say to each other. Where the base image cannot be pulled, debootstrap makes it under its name.
set -euo pipefail
cd "$(dirname "$0")/.."

python=$1
shift
base=debian:bookworm-slim
pull_timeout_s=30
start_timeout_s=60
folder=$(mktemp -d /var/tmp/fanin-compose.XXXXXX)
engine=
namespace=
made_wheels=

stop_engine() {
  kill "$engine" 2>/dev/null && wait "$engine" || true
  ! mountpoint -q "$folder/exec/netns/default" || umount "$folder/exec/netns/default"
  engine=
}

clean_up() {
  [ -z "$made_wheels" ] || rm -rf wheels
  [ -z "$engine" ] || stop_engine
  [ -z "$namespace" ] || ip netns delete "$namespace"
  rm -rf --one-file-system "$folder"
}
trap clean_up EXIT

skip() {
  echo "skipped: $1"
  exit 0
}

start_engine() { # [PREFIX...]: of the command, to run the engine in a namespace
  # iptables is needed for names: the engine sets up each container's resolver with it, in the container's namespace
  tools/debian_packages.sh docker.io=dockerd,docker iptables || skip 'no container engine answers'
  export DOCKER_HOST=unix://$folder/docker.sock
  "$@" dockerd --data-root "$folder/data" --exec-root "$folder/exec" --pidfile "$folder/pid" --host "$DOCKER_HOST" \
    --bridge none --iptables=false --ip6tables=false --ip-masq=false --ip-forward=false >"$folder/log" 2>&1 &
  engine=$!
  for ((waited_s = 0; waited_s < start_timeout_s; waited_s++)); do
    if docker info >/dev/null 2>&1; then
      echo "started $(dockerd --version)"
      return
    fi
    kill -0 "$engine" 2>/dev/null || break
    sleep 1
  done
  tail -n 5 "$folder/log"
  engine=
  skip 'dockerd does not start here (its last words are above)'
}

docker info >/dev/null 2>&1 || start_engine
docker compose version >/dev/null 2>&1 || tools/debian_packages.sh docker-compose || skip 'no docker compose'
tools/debian_packages.sh iproute2=ip || skip 'no ip, which unplugs containers'

if ! docker image inspect "$base" >/dev/null 2>&1 && ! timeout "$pull_timeout_s" docker pull --quiet "$base" 2>/dev/null; then
  tools/debian_packages.sh debootstrap || skip "$base cannot be pulled, and debootstrap is not there to make it"
  echo "$base cannot be pulled: making it with debootstrap"
  debootstrap --variant=minbase bookworm "$folder/base" >"$folder/debootstrap.log"
  rm -rf "$folder"/base/var/lib/apt/lists/* "$folder"/base/var/cache/apt/archives/*.deb
  tar --directory "$folder/base" --exclude=./dev --create . | docker import - "$base" >/dev/null
  rm -rf --one-file-system "$folder/base"
fi

if [ ! -d wheels ]; then
  made_wheels=yes
  tools/fetch_wheels.sh "$python"
fi
echo 'building the image'
# --network host: an engine started here gives builds no other network. Quick: containers here need no speed.
docker build --network host --quiet --build-arg FANIN_BUILD_QUICK=1 --tag fanin:local .

inside=()
if [ -n "$engine" ]; then
  stop_engine
  namespace=fanin-compose-$$
  ip netns add "$namespace"
  ip -netns "$namespace" link set lo up
  inside=(ip netns exec "$namespace") # the tests, too: they unplug containers from the engine's bridges
  start_engine nsenter "--net=/run/netns/$namespace"
fi
FANIN_COMPOSE_CHECK=1 "${inside[@]}" "$python" -m pytest -p no:cacheprovider tests/compose/test_cluster.py "$@"
