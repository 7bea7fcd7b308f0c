#!/usr/bin/env bash
# python_headers.sh PYTHON FOLDER: print include folders that hold Python.h for PYTHON, as CPATH wants them; nothing when
# its own are in place. Debian keeps them in a package of their own, which not every machine has: then it is fetched with
# apt, as an ordinary user and into FOLDER, touching nothing outside.
set -euo pipefail
python=$1 folder=$2
read -r version own < <("$python" -c 'import sys, sysconfig; print("%d.%d" % sys.version_info[:2], sysconfig.get_path("platinclude"))')
include=$("$python" -c 'import sysconfig; print(sysconfig.get_config_var("INCLUDEPY"))')
if [ -e "$include/Python.h" ] || [ -e "$own/Python.h" ]; then exit 0; fi

fetched=$folder/usr/include
if [ ! -e "$fetched/python$version/Python.h" ]; then
  echo "Python.h is not installed: fetching Debian's libpython$version-dev into $folder" >&2
  mkdir -p "$folder/lists/partial" "$folder/cache/archives/partial"
  apt=(apt-get -qq -o "Dir::State::Lists=$PWD/$folder/lists" -o "Dir::Cache=$PWD/$folder/cache" -o Debug::NoLocking=1)
  if ! { "${apt[@]}" update && (cd "$folder" && "${apt[@]}" download "libpython$version-dev") &&
    dpkg -x "$folder"/libpython*.deb "$folder"; } >&2; then
    echo "fanin compiles a Python extension and needs Python.h, which could not be fetched. Remedy: sudo apt-get" \
      "install python3-dev (or the headers of the Python that you use), then run make again" >&2
    exit 1
  fi
fi
echo "$PWD/$fetched:$PWD/$fetched/python$version"
