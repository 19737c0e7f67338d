#!/bin/sh
# User data as a script, for an image that has a user called runner.
#
# The JSON is what GARM gives a provider on stdin, as it is, or this much of it. The two keys of garm_bootstrap are for
# an image that does not hold the binary; GARM's JSON has them if the pool's extra_context has.
set -u
umask 077
url=
sha256=
bootstrap=/run/garm-bootstrap.json

cat > "$bootstrap" <<'END' || exit 1
{
  "callback-url": "https://garm.example/api/v1/callbacks",
  "metadata-url": "https://garm.example/api/v1/metadata",
  "instance-token": "the token",
  "garm_bootstrap_url": "https://downloads.example/garm-bootstrap-linux-amd64",
  "garm_bootstrap_sha256": "the 64 digits of its SHA-256"
}
END
set -- run --bootstrap-file "$bootstrap"

# --- The words to GARM: the same in every script of garm-bootstrap's packaging. ---
PATH=${PATH:-/usr/bin:/bin}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH

# A text of the bootstrap file.
value() {
    sed -nE "s/.*\"$1\" *: *\"(([^\"\\\\]|\\\\.)*)\".*/\\1/p" "$bootstrap" |
        sed 's/\\u0026/\&/g; s/\\\(["\\]\)/\1/g'
}

# Tells GARM that nothing comes of this instance, and why. The token goes through a pipe: an argument is seen by all.
fail() {
    echo "garm-bootstrap: $1" >&2
    why=$(printf '%s' "$1" | tr '\000-\037\177' ' ' | sed 's/["\\]/\\&/g')
    to=$(value callback-url)
    to=${to%/}
    to=${to%/status}/status
    told=$bootstrap.failed
    printf '{"status": "failed", "message": "%s"}' "$why" > "$told"
    # GARM's own authority may be known from here alone.
    value ca-cert-bundle | base64 -d > "$told.pem" 2>/dev/null
    if [ -s "$told.pem" ]; then
        cat /etc/ssl/certs/ca-certificates.crt >> "$told.pem" 2>/dev/null
        export CURL_CA_BUNDLE="$told.pem"
    fi
    if command -v curl >/dev/null; then
        printf 'header = "Authorization: Bearer %s"\n' "$(value instance-token)" |
            curl -q -K - -fsS --retry 5 --retry-delay 3 --max-time 60 --data-binary "@$told" "$to" >&2
    elif command -v wget >/dev/null; then
        printf 'header = Authorization: Bearer %s\n' "$(value instance-token)" > "$told.wgetrc"
        [ ! -s "$told.pem" ] || echo "ca_certificate = $told.pem" >> "$told.wgetrc"
        WGETRC=$told.wgetrc wget -q -O /dev/null --tries=5 --timeout=60 --post-file="$told" "$to" >&2
    else
        false
    fi || echo "garm-bootstrap: GARM could not be told of it" >&2
    rm -f "$told" "$told.pem" "$told.wgetrc"
    exit 1
}

# --- The binary and its start: the same in every script that boots a runner. ---
# Names that do not resolve and refused connections are usual for a while when a machine boots: six tries in a minute.
download() {
    tries=1
    until
        if command -v curl >/dev/null; then
            said=$(curl -q -fsSL --connect-timeout 20 --speed-limit 1000 --speed-time 60 -o "$2" "$1" 2>&1)
        elif command -v wget >/dev/null; then
            said=$(wget -nv --tries=1 --timeout=60 -O "$2" "$1" 2>&1)
        else
            fail "garm-bootstrap is not in the image, and neither curl nor wget is there to get it"
        fi
    do
        [ "$tries" -lt 6 ] || { rm -f "$2"; fail "garm-bootstrap could not be downloaded from $1: $said"; }
        sleep $((tries * tries))
        tries=$((tries + 1))
    done
}

if ! binary=$(command -v garm-bootstrap); then
    given=$(value garm_bootstrap_url)
    [ -z "$given" ] || { url=$given; sha256=$(value garm_bootstrap_sha256); }
    [ -n "$url" ] || fail "garm-bootstrap is not in the image, and no URL of it is given"
    [ -n "$sha256" ] || fail "the SHA-256 of garm-bootstrap is not given, so it is not downloaded"
    # Not in /tmp, from which nothing may be executed on a hardened machine; and whole before it has its name.
    for place in /usr/local/bin "${HOME:-/root}/.local/bin"; do
        new=
        (umask 022 && mkdir -p "$place") 2>/dev/null
        new=$(mktemp "$place/.garm-bootstrap.XXXXXX" 2>/dev/null) && break
    done
    [ -n "$new" ] || fail "there is no place for garm-bootstrap: /usr/local/bin cannot be written to"
    download "$url" "$new"
    sum=$(sha256sum < "$new")
    sum=${sum%% *}
    if [ "$sum" != "$(printf '%s' "$sha256" | tr 'A-F' 'a-f')" ]; then
        rm -f "$new"
        fail "garm-bootstrap from $url has the SHA-256 $sum, not $sha256"
    fi
    binary=$place/garm-bootstrap
    { chmod 755 "$new" && mv -f "$new" "$binary"; } || fail "garm-bootstrap could not be put into $place"
fi
said=$("$binary" --version 2>&1) || fail "$binary does not run on this machine: $said"

# From here on garm-bootstrap itself tells GARM the truth. A unit outlives cloud-init, and has a journal.
if [ "$(id -u)" = 0 ] && [ -d /run/systemd/system ]; then
    systemd-run --unit=garm-runner --description="CI runner for GARM" --property=Type=exec \
        --property=KillMode=mixed --property=TimeoutStopSec=infinity "$binary" "$@" && exit 0
fi
exec "$binary" "$@"
