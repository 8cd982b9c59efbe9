#!/bin/sh
# Unpacks lib25519 of Debian 13 into a folder, without installing it, and prints where it lies:
#     LD_LIBRARY_PATH=$(tests/campaigns/lib25519.sh) hpcfl bench sparse
# It runs on Debian 12 as well. Packages come from where the system's own come from.
set -eu
folder=${1:-$(mktemp -d)}
mkdir -p "$folder/lists/partial" "$folder/cache/archives/partial" "$folder/sources"
cd "$folder"
for sources in /etc/apt/sources.list.d/*.sources; do
    sed "s/$(. /etc/os-release && echo "$VERSION_CODENAME")/trixie/g" "$sources" >"sources/${sources##*/}"
done
get() {
    timeout 300 apt-get -qq -o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts="$folder/sources" \
        -o Dir::State::Lists="$folder/lists" -o Dir::Cache="$folder/cache" "$@" 2>log || { cat log >&2; exit 1; }
}
get update
get download lib25519-1 librandombytes1
for package in *.deb; do dpkg -x "$package" .; done
dirname "$folder"/usr/lib/*/lib25519.so.1
