#!/bin/sh
# The fake runner's config.sh: what the real one checks, then the Listener.
if [ "$(id -u)" -eq 0 ] && [ -z "$RUNNER_ALLOW_RUNASROOT" ]; then
    echo "Must not run with sudo"
    exit 1
fi
cd "$(dirname "$0")" || exit 1
if [ ! -x bin/Runner.Listener ]; then
    echo "bin/Runner.Listener is missing or not executable" >&2
    exit 1
fi
. ./env.sh
if [ "$1" = "remove" ]; then
    exec ./bin/Runner.Listener "$@"
fi
exec ./bin/Runner.Listener configure "$@"
