#!/bin/sh
# Install one part of the locked libraries into the image's Python, hashes checked: install.sh cuda | torch | libraries
#
# TORCH_INDEX_URL set: torch comes from that index, in the version that the lock names. An index builds torch for itself
# (for the CPU, for another CUDA): its files have other hashes than the lock's and need other nvidia packages, or none. So
# torch and what it needs come from there, checked by nothing but the version; then all else is put to what is locked.
set -eu
cd "$(dirname "$0")"

install() { python3 -m pip install --no-cache-dir --no-input --progress-bar off "$@"; }

# The entries of LOCK whose name matches, or with `-` before the pattern does not match, PATTERN.
entries() {
    awk -v pattern="${2#-}" -v except="$2" '
        /^[a-zA-Z0-9]/ { name = $1; sub(/==.*/, "", name); keep = (name ~ "^(" pattern ")$") != (except ~ /^-/) }
        keep' "$1"
}

locked() {
    entries "$@" > chosen.lock
    install --no-deps --require-hashes -r chosen.lock
    rm chosen.lock
}

cuda='nvidia-.*|cuda-.*'
case $1-${TORCH_INDEX_URL:+index} in
    cuda-) locked torch.lock "$cuda" ;;
    torch-) locked torch.lock "-$cuda" ;;
    cuda-index) ;;
    torch-index)
        install --index-url "$TORCH_INDEX_URL" "$(sed -n 's/^\(torch==[^ ;]*\).*/\1/p' torch.lock)"
        locked torch.lock "-torch|triton|$cuda"
        ;;
    libraries-*) locked trainer.lock "-$(sed -n 's/^\([a-zA-Z0-9._-]*\)==.*/\1/p' torch.lock | paste -sd '|')" ;;
esac
