# The unit is neither enabled nor started: an instance has settings of its own.
if [ -d /run/systemd/system ]; then systemctl daemon-reload || :; fi
