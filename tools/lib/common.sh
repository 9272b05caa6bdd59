# shellcheck shell=bash
# Shared by tools/run, tools/test, tools/fetch, tools/fuzz, tools/check-deep and .ci/run: installing what is missing and
# building. Sourced by bash. Owns the build folders (build, build-clang, ...) and nothing else in the tree.
#
# Everything here speaks on stderr, never reads stdin, and leaves the working directory alone, so that
# tools/run can hand all three to fuserun untouched.

source_root=$(dirname "$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")")

# The one optimised build. Further options (tests, warnings as errors) come behind these.
release_options=(-Dbuildtype=release -Db_sanitize=none)

# Our own failures, told apart from fuserun's 1 (failed) and 2 (config error).
own_failure=125

say() {
    printf 'fuserun: %s\n' "$*" >&2
}

fail() {
    say "$*"
    exit "$own_failure"
}

# --- What is needed, how to see that it is there, and the Debian package that brings it -----------------------
# One line a need: name | level | package | test. Level: what it must be there for, or better (and
# better-WHAT): used when it can be had.
# The tests look for the thing, not for the package, so a machine that is not a Debian is fine as it is.
needs_table() {
    cat <<'TABLE'
C compiler|run|gcc|command -v ${CC:-cc}
C library headers|run|libc6-dev|has_header stdio.h
meson|run|meson|command -v meson
ninja|run|ninja-build|command -v ninja
pkg-config|run|pkg-config|command -v pkg-config
inih|run|libinih-dev|pkg-config --exists inih
jansson|run|libjansson-dev|pkg-config --exists jansson
xxHash|run|libxxhash-dev|pkg-config --exists libxxhash
oneDNN|better|libdnnl-dev|has_header oneapi/dnnl/dnnl.h
zlib|better|zlib1g-dev|has_header zlib.h
curl|fetch|curl|command -v curl
certificates|better-fetch|ca-certificates|test -e /etc/ssl/certs/ca-certificates.crt -o -e /etc/pki/tls/certs
Python 3|test|python3|command -v python3
cmocka|test|libcmocka-dev|pkg-config --exists cmocka
curl|better-test|curl|command -v curl
objdump|better-test|binutils|command -v objdump
C++ compiler|better-test|g++|command -v g++
locale sources|better-test|locales|test -e /usr/share/i18n/locales/de_DE
clang|clang|clang|command -v clang
clang's OpenMP|clang|libomp-dev|has_clang_openmp
clang-format|ci|clang-format|command -v clang-format
clang's sanitizers|clang-asan|libclang-rt-dev|has_clang_asan
clang's fuzzer|fuzz|libclang-rt-dev|has_clang_fuzzer
valgrind|better-deep|valgrind|command -v valgrind
clang-tidy|better-deep|clang-tidy|command -v clang-tidy
cppcheck|better-deep|cppcheck|command -v cppcheck
gcovr|better-deep|gcovr|command -v gcovr
aarch64 compiler|better-deep|gcc-aarch64-linux-gnu|command -v aarch64-linux-gnu-gcc
aarch64 headers|better-deep|libc6-dev-arm64-cross|test -e /usr/aarch64-linux-gnu/include/stdio.h
TABLE
}

has_header() {
    printf '#include <%s>\n' "$1" | "${CC:-cc}" -E -x c - -o /dev/null
}

has_clang_openmp() {
    printf '#include <omp.h>\n' | clang -fopenmp -E -x c - -o /dev/null
}

has_clang_asan() {
    local out status
    out=$(mktemp) || return 1
    printf 'int main(void) { return 0; }\n' | clang -fsanitize=address,undefined -x c - -o "$out"
    status=$?
    rm -f "$out"
    return "$status"
}

has_clang_fuzzer() {
    local out status
    out=$(mktemp) || return 1
    printf 'int LLVMFuzzerTestOneInput(const char *text, unsigned long size) { return size && !text; }\n' |
        clang -fsanitize=fuzzer -x c - -o "$out"
    status=$?
    rm -f "$out"
    return "$status"
}

# missing_needs LEVEL...: prints the lines of the table whose test fails.
missing_needs() {
    local name level package probe
    while IFS='|' read -r name level package probe; do
        case " $* " in *" $level "*) ;; *) continue ;; esac
        eval "$probe" >/dev/null 2>&1 </dev/null || printf '%s|%s|%s|%s\n' "$name" "$level" "$package" "$probe"
    done < <(needs_table)
}

# as_root COMMAND...: directly for root, else through sudo; fails when neither works.
as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif [ "${use_sudo:-no}" = yes ]; then
        sudo "$@"
    else
        return 1
    fi
}

find_sudo() {
    [ "$(id -u)" = 0 ] && return 0
    command -v sudo >/dev/null || return 1
    # Without a password, or with a terminal to type it on.
    sudo -n true 2>/dev/null || { [ -t 2 ] && sudo -v; } || return 1
    use_sudo=yes
}

apt_get() {
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -y -q -o DPkg::Lock::Timeout=300 "$@" \
        >>"$apt_log" 2>&1 </dev/null {lock_fd}<&-
}

apt_install() {
    apt_get install --no-install-recommends "$@" && return 0
    # Old lists name files that the mirror no longer has: refresh once, then try again.
    if [ "$lists_fresh" = no ]; then
        apt_update
        apt_get install --no-install-recommends "$@" && return 0
    fi
    return 1
}

apt_update() {
    say "fetching the package lists"
    apt_get update || say "warning: apt-get update failed (log: $apt_log)"
    lists_fresh=yes
}

# install_missing LEVEL...: 0 when everything that must be there is there. What is only better to have may stay
# away, with a warning.
install_missing() {
    local lines packages package names name level probe
    lines=$(missing_needs "$@")
    [ -n "$lines" ] || return 0
    packages=$(printf '%s\n' "$lines" | cut -d'|' -f3 | sort -u | tr '\n' ' ')
    packages=${packages% }
    names=$(printf '%s\n' "$lines" | grep -v '|better' | cut -d'|' -f1 | paste -sd, | sed 's/,/, /g')

    if ! command -v apt-get >/dev/null; then
        if [ -n "$names" ]; then
            say "not found: $names."
            say "This system has no apt-get: please install them with its own package manager, then run this again."
            say "(Debian's names for them: $packages)"
            return 1
        fi
        return 0
    fi
    if ! find_sudo; then
        if [ -n "$names" ]; then
            say "not found: $names."
            say "Installing them needs root or sudo, and this user has neither. Please have someone run:"
            say "    apt-get install --no-install-recommends $packages"
            return 1
        fi
        say "warning: without $packages (needs root or sudo); going on with what there is"
        return 0
    fi

    apt_log=$(mktemp "${TMPDIR:-/tmp}/fuserun-install.XXXXXX") || return 1
    lists_fresh=no
    compgen -G '/var/lib/apt/lists/*_Packages*' >/dev/null || apt_update
    say "installing $packages (once)"
    # shellcheck disable=SC2086 # a list of names
    if ! apt_install $packages; then
        # One of them spoils the whole call: find out which, and get the others.
        for package in $packages; do
            apt_install "$package"
        done
    fi
    hash -r
    lines=$(missing_needs "$@")
    if [ -z "$lines" ]; then
        rm -f "$apt_log"
        return 0
    fi
    names=""
    while IFS='|' read -r name level package probe; do
        if [ "${level#better}" != "$level" ]; then
            say "warning: $package cannot be had; going on without $name"
            say "(to have it later: install it, remove the folder build, run this again)"
        else
            names="$names, $package (for $name)"
        fi
    done <<<"$lines"
    names=${names#, }
    [ -n "$names" ] && say "cannot get $names"
    grep -E '^(E|Err):|^Err:[0-9]' "$apt_log" | grep -v 'Can not write log' | sort -u | head -n 4 | sed 's/^/    /' >&2
    say "apt-get's own words are in $apt_log"
    [ -z "$names" ] && return 0
    say "Please check the network and /etc/apt/sources.list*, or install these by hand, then run this again."
    return 1
}

# --- Building -------------------------------------------------------------------------------------------------

# One build or installation at a time in this tree; the lock is the tree's own folder, so it leaves no file.
lock_tree() {
    exec {lock_fd}<"$source_root" || fail "cannot open $source_root"
    trap 'exit 130' INT
    command -v flock >/dev/null || return 0
    flock -n "$lock_fd" && return 0
    say "waiting for another build in this tree to finish"
    flock "$lock_fd"
}

# What is started under the lock gets the descriptor closed: a daemon that it leaves behind must not hold the lock.
unlock_tree() {
    exec {lock_fd}<&-
    trap - INT
}

# Ours to remove only if meson or we made it.
clear_build_folder() {
    local folder=$1 mark
    [ -e "$folder" ] || return 0
    if [ -z "$(ls -A "$folder" 2>/dev/null)" ]; then
        return 0
    fi
    for mark in .fuserun-configured meson-private meson-logs meson-info build.ninja; do
        if [ -e "$folder/$mark" ]; then
            rm -rf --one-file-system "$folder"
            return
        fi
    done
    say "$folder is there but is not a build folder; please move it away"
    return 1
}

# configure FOLDER WHAT OPTION...: WHAT is remembered as the folder's stamp.
configure() {
    local folder=$1 what=$2 log status
    shift 2
    log=$(mktemp "${TMPDIR:-/tmp}/fuserun-meson.XXXXXX") || return 1
    rm -f "$folder/.fuserun-configured"
    say "configuring ${folder#"$source_root"/}"
    status=1
    if [ "${configure_afresh:-no}" = no ] && [ -e "$folder/meson-private/coredata.dat" ]; then
        meson setup --reconfigure "$@" "$folder" "$source_root" >"$log" 2>&1 </dev/null {lock_fd}<&-
        status=$?
    fi
    if [ "$status" != 0 ]; then
        clear_build_folder "$folder" || { rm -f "$log"; return 1; }
        meson setup "$@" "$folder" "$source_root" >"$log" 2>&1 </dev/null {lock_fd}<&-
        status=$?
    fi
    if [ "$status" = 0 ]; then
        printf '%s\n' "$what" >"$folder/.fuserun-configured"
        rm -f "$log"
        return 0
    fi
    tail -n 12 "$log" | sed 's/^/    /' >&2
    say "meson could not configure the build (all of it: $log)"
    return 1
}

# Follows ninja's output: all of it into the log, one line for a person, or a live count on a terminal.
follow_ninja() {
    local log=$1 line count begun=no
    : >"$log"
    while IFS= read -r line; do
        printf '%s\n' "$line" >>"$log"
        case $line in
        '['*/*']'*)
            count=${line%%]*}
            count=${count#[}
            if [ "$begun" = no ]; then
                begun=yes
                say "building (${count#*/} steps)"
            fi
            [ -t 2 ] && printf '\rfuserun: building %s ' "$count" >&2
            ;;
        esac
    done
    [ "$begun" = yes ] && [ -t 2 ] && printf '\r\033[K' >&2
    return 0
}

run_ninja() {
    local folder=$1 log=$1/fuserun-build.log
    NINJA_STATUS='[%f/%t] ' ninja -C "$folder" 2>&1 </dev/null {lock_fd}<&- | follow_ninja "$log"
    return "${PIPESTATUS[0]}"
}

show_build_failure() {
    local log=$1/fuserun-build.log
    if grep -q '^FAILED: ' "$log"; then
        # Without the steps that went well and without the compiler's command line, which follows FAILED.
        awk '/^FAILED: / { seen = 1; print "    " $0; getline; next }
             seen && !/^\[[0-9]+\/[0-9]+\]/ { print "    " $0 }' "$log" | cut -c1-300 | head -n 60 >&2
    else
        tail -n 20 "$log" | sed 's/^/    /' >&2
    fi
    say "the build failed (all of it: $log)"
}

# build_tree FOLDER "LEVEL..." OPTION...: installs, configures and builds as far as needed. The quick way, with
# nothing to do, is one look at the stamp and one call of ninja.
build_tree() {
    local folder=$1 levels=$2 what stamp="" attempt
    shift 2
    what="$source_root|${CC:-cc}|$*"
    [ -r "$folder/.fuserun-configured" ] && stamp=$(<"$folder/.fuserun-configured")
    configure_afresh=no
    # meson cannot change the compiler of a folder, nor follow a tree that was moved.
    if [ -n "$stamp" ] && [ "${stamp%|*}" != "${what%|*}" ]; then
        configure_afresh=yes
    fi
    for attempt in 1 2 3; do
        if [ "$stamp" != "$what" ] || [ ! -s "$folder/build.ninja" ]; then
            # shellcheck disable=SC2086 # a list of levels
            install_missing $levels || return 1
            configure "$folder" "$what" "$@" || return 1
            stamp=$what
        fi
        if run_ninja "$folder"; then
            [ -s "$folder/fuserun" ] && [ -x "$folder/fuserun" ] && return 0
        elif [ "$attempt" != 1 ] || { grep -q '^FAILED: ' "$folder/fuserun-build.log" &&
            ! grep -q '^FAILED: build.ninja' "$folder/fuserun-build.log" &&
            [ -z "$(missing_needs $levels | grep -v '|better')" ]; }; then
            show_build_failure "$folder"
            return 1
        fi
        # Not a mistake in the sources: a package has gone, or the folder is stale or broken.
        say "${folder#"$source_root"/} is stale or broken: configuring it again"
        stamp=""
        configure_afresh=yes
    done
    show_build_failure "$folder"
    return 1
}

# build/fuserun and its plugins. A folder in which tools/test, or meson called by hand, has turned the tests on stays as
# it is.
build_program() {
    local stamp="" release="$source_root|${CC:-cc}|${release_options[*]}"
    [ -r "$source_root/build/.fuserun-configured" ] && stamp=$(<"$source_root/build/.fuserun-configured")
    case $stamp in
    "$release"*) read -ra extra <<<"${stamp#"$release"}" ;;
    *)
        extra=(-Dtests=disabled)
        [ -z "$stamp" ] && [ -e "$source_root/build/meson-private/coredata.dat" ] && extra=()
        ;;
    esac
    build_tree "$source_root/build" "run better" "${release_options[@]}" "${extra[@]}"
}
