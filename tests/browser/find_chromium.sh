#!/bin/sh
# Makes sure that the browser tests find a Chromium: one that is there, else Debian's where it may be installed.
# Never fails: without a browser those tests are skipped, and say so.
for name in chromium chromium-browser google-chrome google-chrome-stable; do
    if command -v "$name" >/dev/null 2>&1; then
        exit 0
    fi
done
if [ -n "$PLAYWRIGHT_CHROMIUM" ] && [ -x "$PLAYWRIGHT_CHROMIUM" ]; then
    exit 0
fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "no Chromium found, and none may be installed here: the browser tests will be skipped"
    exit 0
fi
echo "installing Debian's chromium for the browser tests"
if ! { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium; } >/dev/null 2>&1; then
    echo "chromium could not be installed: the browser tests will be skipped"
fi
exit 0
