# What scripts use to install Debian packages.
#
#   . tools/packages.sh
#   install_missing PACKAGE...
#   as_root COMMAND...
#
# shellcheck shell=bash

# Runs a command as root: directly, or by sudo, which may ask for the password.
as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

# Whether commands can be run as root without asking anybody.
can_be_root() {
    [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null
}

# Prints those of the given packages that are not installed.
missing_packages() {
    local package installed
    installed=$(dpkg-query -W -f='${db:Status-Status} ${Package}\n' "$@" 2>/dev/null) || true
    for package in "$@"; do
        grep -qx "installed $package" <<<"$installed" || echo "$package"
    done
}

# Installs those of the given packages that are not installed, and says so before. Fails with a reason where it cannot.
install_missing() {
    local missing
    command -v dpkg-query >/dev/null || {
        echo "this is no Debian or Ubuntu; what is needed there is called: $*" >&2
        return 0
    }
    mapfile -t missing < <(missing_packages "$@")
    [ ${#missing[@]} -gt 0 ] || return 0
    echo "installing ${missing[*]}"
    if ! can_be_root && ! { command -v sudo >/dev/null && [ -t 0 ]; }; then
        echo "that needs root: run  apt-get install ${missing[*]}  as root, then this again" >&2
        return 1
    fi
    # Without --no-remove apt may settle a conflict by removing something that the user wants.
    local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=600 -o APT::Sandbox::User=root)
    as_root "${apt[@]}" update >/dev/null || echo 'apt-get update failed; trying with what is known' >&2
    as_root "${apt[@]}" install --no-install-recommends --no-remove "${missing[@]}" >/dev/null
}
