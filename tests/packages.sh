# Installing what is missing, for tests/run and tests/vm/setup, which source it.
# shellcheck shell=bash
#
# Needs the functions say and die of whoever sources it, and the variable apt_log: the file for the words of apt.

# missing_packages PACKAGE...: prints those that are not installed.
missing_packages() {
    local package installed
    installed=$(dpkg-query -W -f='${db:Status-Status} ${Package}\n' "$@" 2>/dev/null) || true
    for package in "$@"; do
        grep -qx "installed $package" <<<"$installed" || echo "$package"
    done
}

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif sudo -n true 2>/dev/null; then
        sudo "$@"
    else
        die "this needs root: $*"
    fi
}

# 9 is a lock of tests/vm/setup; a daemon that a package starts must not inherit it.
apt_get() {
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=600 -o APT::Sandbox::User=root "$@" \
        9>&- >>"${apt_log:?}" 2>&1
}

apt_updated=
apt_update() {
    [ -z "$apt_updated" ] || return 0
    say 'apt-get update'
    apt_get update || die "apt-get update failed; see $apt_log"
    apt_updated=yes
}

candidate() { apt-cache policy "$1" | sed -n 's/^ *Candidate: //p'; }

# install_packages PACKAGE...
# Without --no-remove apt may settle a conflict by removing something that the user wants.
# A qemu-utils that is newer than the qemu-system-x86 on offer is such a conflict: take both in one version.
install_packages() {
    local install=(install --no-install-recommends --no-remove)
    command -v apt-get >/dev/null || die "there is no apt-get here; install what these Debian packages hold: $*"
    apt_update
    say "installing $*"
    apt_get "${install[@]}" "$@" && return
    say 'trying again with qemu-utils and qemu-system-x86 in one version'
    apt_get "${install[@]}" --allow-downgrades "$@" "qemu-utils=$(candidate qemu-system-x86)" && return
    tail -n 20 "$apt_log" >&2
    die "could not install the packages; see $apt_log"
}
