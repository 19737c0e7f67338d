# A runner that runs is left alone: it may have a job. Only its next start is taken away.
if [ "$1" = 0 ] && command -v systemctl >/dev/null 2>&1; then
    systemctl --no-reload disable garm-bootstrap.service >/dev/null 2>&1 || :
fi
