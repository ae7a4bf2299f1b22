# Installing what is missing on Debian and Ubuntu, for tools/demo, tests/run and tests/vm/setup, which source it.
# shellcheck shell=bash
#
#   install_missing PACKAGE...    installs those that are not installed; says so before
#   missing_packages PACKAGE...   prints those that are not installed
#   as_root COMMAND...            runs a command as root
#
# Needs the functions say and die of whoever sources it, and the variable apt_log: the file for the words of apt.

missing_packages() {
    local package installed
    installed=$(dpkg-query -W -f='${db:Status-Status} ${Package}\n' "$@" 2>/dev/null) || true
    for package in "$@"; do
        grep -qx "installed $package" <<<"$installed" || echo "$package"
    done
}

# Whether commands can be run as root without asking anybody.
can_be_root() { [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null; }

# By sudo where need be, which may ask for the password at a terminal.
as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif can_be_root || { command -v sudo >/dev/null && [ -t 0 ]; }; then
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
    apt_get update || say 'apt-get update failed; trying with what is known'
    apt_updated=yes
}

candidate() { apt-cache policy "$1" | sed -n 's/^ *Candidate: //p'; }

# Without --no-remove apt may settle a conflict by removing something that the user wants.
# A qemu-utils that is newer than the qemu-system-x86 on offer is such a conflict: take both in one version.
install_missing() {
    local missing install=(install --no-install-recommends --no-remove)
    if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
        say "this is no Debian or Ubuntu; what these packages hold is taken to be there: $*"
        return 0
    fi
    mapfile -t missing < <(missing_packages "$@")
    [ ${#missing[@]} -gt 0 ] || return 0
    apt_update
    say "installing ${missing[*]}"
    apt_get "${install[@]}" "${missing[@]}" && return
    if [[ " ${missing[*]} " == *' qemu-system-x86 '* ]]; then
        say 'trying again with qemu-utils and qemu-system-x86 in one version'
        apt_get "${install[@]}" --allow-downgrades "${missing[@]}" "qemu-utils=$(candidate qemu-system-x86)" && return
    fi
    tail -n 20 "$apt_log" >&2
    die 'could not install the packages; what apt said stands above'
}
