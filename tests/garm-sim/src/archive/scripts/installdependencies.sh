#!/bin/sh
# The fake runner's: needs root as the real one does, then does what the script says.
if [ "$(id -u)" -ne 0 ]; then
    echo "Need to run with sudo privilege"
    exit 1
fi
exec "$(dirname "$0")/Runner.Listener" sim-deps "$@"
