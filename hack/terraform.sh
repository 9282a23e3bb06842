#!/bin/sh
# Checks terraform/ with the real terraform: format, `terraform validate`, `terraform test` with mocked providers, the
# chart's values, the first job. `hack/terraform.sh -k NAME` runs a part of the checks.
# Providers come from the registry. Where it can't be reached, the aws provider comes from a mirror of this machine, and the
# helm provider is built from its Go module. A check whose provider can't be had is skipped with a message.
set -eu
cd "$(dirname "$0")/.."
if ! command -v terraform >/dev/null; then
    echo "hack/terraform.sh: no terraform: install Terraform 1.11 or later" >&2
    exit 1
fi
here=$PWD/build/terraform
mirror=$here/mirror/registry.terraform.io/hashicorp
platform=$(go env GOOS 2>/dev/null || uname -s | tr '[:upper:]' '[:lower:]')_$(uname -m | sed 's/x86_64/amd64/; s/aarch64/arm64/')
rm -rf "$here/tree" "$here/mirror"
mkdir -p "$here/tree" "$mirror"
# terraform writes beside the files that it reads, so it works on a copy.
cp -R terraform VERSION "$here/tree/"
ln -s "$PWD/charts" "$here/tree/charts"

if python3 -c 'import urllib.request as r; r.urlopen("https://registry.terraform.io/.well-known/terraform.json", timeout=5)' 2>/dev/null; then
    echo 'provider_installation { direct {} }' > "$here/config.tfrc"
else
    # A mirror has the layout HOST/NAMESPACE/TYPE/VERSION/PLATFORM.
    for found in "${TF_PROVIDER_MIRROR:-/nowhere}" "$HOME/.terraform.d/plugins" /usr/share/terraform/plugins \
        /usr/local/share/terraform/plugins /opt/*; do
        aws=$(find "$found/registry.terraform.io/hashicorp/aws" -maxdepth 1 -name '5.*' 2>/dev/null | sort -V | tail -n 1)
        if [ -d "$aws/$platform" ] && [ ! -e "$mirror/aws" ]; then
            mkdir -p "$mirror/aws/${aws##*/}"
            ln -s "$aws/$platform" "$mirror/aws/${aws##*/}/"  # terraform follows a link only here
        fi
    done
    if programs=$(python3 -m hack.cluster bin terraform-provider-helm); then
        version=$(sed -n 's/^TERRAFORM_HELM = "\(.*\)"/\1/p' hack/cluster/versions.py)
        mkdir -p "$mirror/helm/$version/$platform"
        cp "$(readlink -f "$programs/terraform-provider-helm")" "$mirror/helm/$version/$platform/terraform-provider-helm_v$version"
    fi
    echo "provider_installation { filesystem_mirror { path = \"$here/mirror\" } }" > "$here/config.tfrc"
fi
export TF_CLI_CONFIG_FILE="$here/config.tfrc" TF_IN_AUTOMATION=1 CHECKPOINT_DISABLE=1
exec .venv/bin/python -m pytest -q -rs --durations=5 tests/integration/terraform/on_terraform.py "$@"
