#!/bin/sh
# Gets a checker of Kubernetes manifests (kubernetes-validate, which has the schemas of each version)
# into a directory of its own, unless it is there:
#
#     scripts/kubernetes.sh DIRECTORY      prints the checker's path
#
# Exit status 1, with the reason, where it cannot be had: no venv module, no package registry.
set -eu
checker=$1/bin/kubernetes-validate
if [ ! -x "$checker" ]; then
    python3 -m venv "$1" >&2 && "$1/bin/pip" install --quiet --disable-pip-version-check 'kubernetes-validate~=1.29' >&2 || {
        rm -rf "$1"
        echo 'terrace: kubernetes: no kubernetes-validate (python3-venv, a package registry)' >&2
        exit 1
    }
fi
echo "$checker"
