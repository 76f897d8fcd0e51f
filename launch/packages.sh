# packages.sh: what the commands of this folder share; to be sourced by a POSIX shell, with $root set.
#
# packages_ensure NAME...   installs the Debian packages that are missing; touches nothing, and needs
#                           neither the network nor any right, when all are there
# place NAME                prints where to build or write NAME: $root/NAME, or a folder of the user's own
#                           where the tree belongs to somebody else
# say TEXT                  one line about what comes next

build_packages="build-essential cmake ninja-build pkg-config libopenblas-serial-dev libopenmpi-dev openmpi-bin \
libhwloc-dev zlib1g-dev libzstd-dev libjansson-dev libyaml-dev libonig-dev libutf8proc-dev libcmocka-dev coinor-libcbc-dev"
check_packages="abigail-tools clang-format ccache lld locales python3-minimal iproute2"

# ccache writes into the home directory; a user without one gets a folder of his own.
[ -w "${HOME:-/nonexistent}" ] || export CCACHE_DIR="${TMPDIR:-/tmp}/tessera-$(id -u)/ccache"

say() {
    printf '\n== %s\n' "$*"
}

# Those of the named packages that are not installed.
packages_missing() {
    for package in "$@"; do
        case $(dpkg-query -W -f '${db:Status-Status} ' "$package" 2>/dev/null || true) in
        *"installed "*) ;;
        *) printf '%s ' "$package" ;;
        esac
    done
}

packages_install() {
    as_root=
    if [ "$(id -u)" -ne 0 ]; then
        as_root=sudo
        # Without a terminal sudo could only wait for a password that nobody types.
        [ -t 0 ] || as_root="sudo -n"
        if ! command -v sudo >/dev/null 2>&1 || ! $as_root true; then
            echo "These packages are missing, and only root can install them:" >&2
            echo "  apt-get install --no-install-recommends $*" >&2
            return 1
        fi
    fi
    # shellcheck disable=SC2086
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get update -q </dev/null &&
        $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$@" </dev/null || {
        echo "apt-get could not install: $* (is there a network?)" >&2
        return 1
    }
}

packages_ensure() {
    if ! command -v dpkg-query >/dev/null 2>&1; then
        echo "This is no Debian: install what stands behind these packages yourself: $*"
        return 0
    fi
    missing=$(packages_missing "$@")
    if [ -z "$missing" ]; then
        echo "all $# packages are installed"
        return 0
    fi
    echo "installing: $missing"
    # shellcheck disable=SC2086
    packages_install $missing
}

place() {
    here=$root/$1
    if [ -e "$here" ]; then
        [ -n "$(find "$here" ! -type l ! -writable -print 2>/dev/null | head -n 1)" ] || { echo "$here"; return; }
    elif [ -w "$root" ]; then
        echo "$here"
        return
    fi
    echo "${TMPDIR:-/tmp}/tessera-$(id -u)/$1"
}

# configure DIRECTORY CMAKE_OPTION...: quiet unless it fails.
configure() {
    build=$1
    shift
    mkdir -p "$build"
    if ! cmake -S "$root" -B "$build" -G Ninja "$@" >"$build/configure.log" 2>&1; then
        cat "$build/configure.log" >&2
        return 1
    fi
}
