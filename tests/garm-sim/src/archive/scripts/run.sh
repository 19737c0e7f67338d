#!/bin/sh
# Turns nearly every exit code of the Listener into 0, dies on SIGTERM and leaves the Listener
# behind (unless RUNNER_MANUALLY_TRAP_SIG is set), as the real one does.
cd "$(dirname "$0")" || exit 1
if [ "$(id -u)" -eq 0 ] && [ -z "$RUNNER_ALLOW_RUNASROOT" ]; then
    echo "Must not run interactively with sudo"
    exit 1
fi
while :; do
    if [ -n "$RUNNER_MANUALLY_TRAP_SIG" ]; then
        ./bin/Runner.Listener run "$@" &
        child=$!
        trap 'kill -INT $child' INT TERM
        wait $child
        code=$?
        while kill -0 $child 2>/dev/null; do
            wait $child
            code=$?
        done
    else
        ./bin/Runner.Listener run "$@"
        code=$?
    fi
    case $code in
        2) echo "Runner listener exit with retryable error, re-launch runner in 5 seconds."
           ./safe_sleep.sh 5 ;;
        3|4) n=0
             while [ ! -e update.finished ] && [ $n -lt 30 ]; do ./safe_sleep.sh 1; n=$((n + 1)); done
             rm -f update.finished ;;
        6) ;;
        *) echo "Runner listener exit with code $code, stop the service, no retry needed."
           echo "Exiting runner..."
           exit 0 ;;
    esac
done
