#!/bin/sh
# Writes .env and .path, as the real one does; sourced by config.sh.
touch .env 2>/dev/null
for name in LANG JAVA_HOME ANT_HOME M2_HOME ANDROID_HOME ANDROID_SDK_ROOT GRADLE_HOME NVM_BIN NVM_PATH LD_LIBRARY_PATH PERL5LIB; do
    eval "value=\${$name:-}"
    if [ -n "$value" ] && ! grep -q "^$name=" .env; then
        echo "$name=$value" >>.env
    fi
done
echo "$PATH" >.path
