#!/bin/sh
# Passes SIGTERM on as SIGINT, as the real one's Node.js service does.
cd "$(dirname "$0")/.." || exit 1
[ -f .path ] && PATH=$(cat .path) && export PATH
./bin/Runner.Listener run --startuptype service &
child=$!
trap 'kill -INT $child' TERM INT
wait $child
wait $child
