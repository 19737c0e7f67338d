#!/bin/bash
# What the userdata of today does for a runner with JIT files, step by step and one after the other: the
# yardstick of `cargo xtask bench`. Written for it; the steps are those of GARM's template, less systemd.
# Takes: METADATA_URL CALLBACK_URL BEARER_TOKEN DOWNLOAD_URL RUNNER_HOME RUNNER_USER, and optionally
# CA_FILE, and RUNNER_ASSETS (an unpacked runner that is to be copied).
set -eu

CURL=(curl --silent --show-error --fail --retry 5 --retry-delay 5 --retry-connrefused)
if [ -n "${CA_FILE:-}" ]; then
    CURL+=(--cacert "$CA_FILE")
fi
AUTHORIZATION="Authorization: Bearer $BEARER_TOKEN"

post() {
    "${CURL[@]}" -X POST -H "$AUTHORIZATION" -H "Content-Type: application/json" -d "$2" "$1" >/dev/null
}

send_status() {
    post "$CALLBACK_URL/status" "{\"status\": \"installing\", \"message\": \"$1\"}"
}

get_file() {
    "${CURL[@]}" -H "$AUTHORIZATION" "$METADATA_URL/$1" -o "$2"
}

give_to_user() {
    if [ "$(id -u)" = 0 ]; then
        chown -R "$RUNNER_USER" "$RUNNER_HOME"
    fi
}

stop() {
    kill -TERM "$RUNNER" 2>/dev/null || true
    wait "$RUNNER" || true
    exit 0
}

if [ -x "$RUNNER_HOME/bin/Runner.Listener" ]; then
    send_status "using the runner in $RUNNER_HOME"
elif [ -n "${RUNNER_ASSETS:-}" ]; then
    send_status "using cached runner found in $RUNNER_ASSETS"
    cp -a "$RUNNER_ASSETS" "$RUNNER_HOME"
    give_to_user
else
    send_status "downloading tools from $DOWNLOAD_URL"
    ARCHIVE="$(dirname "$RUNNER_HOME")/runner.tar.gz"
    "${CURL[@]}" --location -o "$ARCHIVE" "$DOWNLOAD_URL"
    send_status "extracting runner"
    mkdir -p "$RUNNER_HOME"
    tar xf "$ARCHIVE" -C "$RUNNER_HOME"
    give_to_user
    send_status "installing dependencies"
    (cd "$RUNNER_HOME" && ./bin/installdependencies.sh >/dev/null)
fi

send_status "configuring runner"
cd "$RUNNER_HOME"
get_file "credentials/runner" .runner
get_file "credentials/credentials" .credentials
get_file "credentials/credentials_rsaparams" .credentials_rsaparams
give_to_user
send_status "installing runner service"
SERVICE="$("${CURL[@]}" -H "$AUTHORIZATION" "$METADATA_URL/system/service-name")"
get_file "systemd/unit-file?runAsUser=$RUNNER_USER" "../$SERVICE"
. /etc/os-release
post "$CALLBACK_URL/system-info/" "{\"os_name\": \"$NAME\", \"os_version\": \"${VERSION_ID:-}\", \"agent_id\": null}"
send_status "starting service"
if [ "$(id -u)" = 0 ]; then
    setpriv --reuid "$RUNNER_USER" --regid "$RUNNER_USER" --init-groups ./bin/Runner.Listener run &
else
    ./bin/Runner.Listener run &
fi
RUNNER=$!
trap stop TERM
AGENT_ID="$(grep -ioP '"agentId": *"?\K[0-9]+' .runner)"
post "$CALLBACK_URL/status" "{\"status\": \"idle\", \"message\": \"runner successfully installed\", \"agent_id\": $AGENT_ID}"
wait "$RUNNER"
