#!/bin/sh
# Gets memcached's source package of this Debian release into a directory: source.sh DIRECTORY
#
# With a package list of its own, as few machines have one of source packages.
set -eu
cd "$1"
for program in apt-get dpkg-source; do
    command -v "$program" >/dev/null || { echo "no $program (Debian: dpkg-dev)"; exit 1; }
done
release=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
mirrors=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE)' | awk '$2 ~ /^[a-z]+$/ && !seen[$1]++ { print $1 }')
mkdir -p lists
for mirror in $mirrors; do
    echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $release main" >sources.list
    apt="-o Dir::Etc::sourcelist=$PWD/sources.list -o Dir::Etc::sourceparts=- -o Dir::State::lists=$PWD/lists"
    apt-get $apt -qq update </dev/null && apt-get $apt -qq source memcached </dev/null && exit 0
done
echo "no mirror of apt's has the source of memcached for $release"
exit 1
